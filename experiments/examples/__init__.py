"""Short programs to copy from: loops, trainers, an RLModule, scripted policies, simulations."""
