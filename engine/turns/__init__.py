"""Turns: decode steps that are planned, run, sampled and drafted on the device, from one small table."""
