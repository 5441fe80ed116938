"""Small tasks, with stored results of all algorithms that `muxrl compare` reads."""
