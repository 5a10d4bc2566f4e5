"""Files of numbered records: where they are, how they are written, and how any range of records is read from them."""
