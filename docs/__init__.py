"""The documentation. `python -m docs.reference` writes the pages that follow from the code."""
