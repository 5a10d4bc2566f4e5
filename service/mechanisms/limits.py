"""Limits that several mechanisms share."""

MAX_BLOCKS = 4096
MAX_REMEMBERED = 2**25  # the most numbers of a window's statistics
FULL = 1.2  # root mean square of a feature whose rows fill the norm √d; found on noaa_weather, elec2 and covtype
