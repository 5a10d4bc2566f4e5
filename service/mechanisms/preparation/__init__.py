"""A feature map that is learnt privately and released, for other publications to name."""
