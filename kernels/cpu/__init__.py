"""Batch-invariant CPU ops: every output element is one chain of operations in a fixed order."""
