"""Speculative decoding: who drafts, how much of a draft is verified, and what verification accepts."""
