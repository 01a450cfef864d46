"""deepinfer: batch-invariant inference, evaluation and bitwise verification for DeepSeek-V4.1-Flash."""

__version__ = "0.1.0"
