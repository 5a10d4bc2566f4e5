"""The parts of a guarantee: losses, noise, sensitivities and charges over records. Pure: no I/O, no clock."""
