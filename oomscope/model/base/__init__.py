"""What every part of the model builds on: observer, autograd functions, collectives, random numbers, copies."""
