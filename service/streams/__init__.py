"""The schema of a stream, its feature maps, and the formats in which records arrive."""
