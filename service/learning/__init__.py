"""Models and how to fit them, with what one record can change about the result. Pure: no I/O, no clock, no noise."""
