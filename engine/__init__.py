"""Token ids in, token ids and log-probabilities out; text never enters."""
