"""The spent ε and δ of every record: admission, charges, verification, high-water mark."""
