"""Losses and how to minimise them, with what one record can change about the result. Pure: no I/O, clock or noise."""
