"""A small real subject: the simulator's own test and the example to write others after."""
