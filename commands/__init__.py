"""Commands of the command line, and what they share: how they end, their options, their progress display."""
