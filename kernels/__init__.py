"""Tensors in, tensors out: one op, one name, and an order of every sum that no batch can change."""
