"""What every command of the command line shares: how it ends, its options, its progress display."""
