"""The card of a publication: one page that a privacy officer can read and sign."""
