"""Locked baselines, a leaf of the import graph: no torch, no engine."""
