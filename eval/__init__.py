"""What to ask of an engine, how to score the answers, and what to store of them."""
