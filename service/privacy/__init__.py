"""What a guarantee is made of: losses, noise, sensitivities and charges over records. Pure: no I/O, no clock."""
