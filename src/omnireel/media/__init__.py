"""Media files in and out: probing, decoding, encoding, recipes inside files. Knows no model."""
