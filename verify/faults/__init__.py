"""Faults seeded into kernels and engine, to prove that every check can go red."""
