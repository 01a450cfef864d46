"""Is the answer the same, bit for bit, and if not, where does it first differ."""
