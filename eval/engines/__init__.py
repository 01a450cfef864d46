"""Adapters that let the evaluation ask an engine through one protocol."""
