"""Short programs to copy from: loops by hand, an RLModule and a scripted policy of one's own."""
