"""Readable torch definitions of every op; they fix the meaning within a tolerance, not the bits."""
