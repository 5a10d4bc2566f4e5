"""JSON that people send: strict parsing, types of fields, and messages about what is wrong."""
