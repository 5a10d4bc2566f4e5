"""`make demo`: a real stream, two publications, and an honest look at what they publish."""
