"""Storage of what a sequence leaves behind: sliding-window rings and compressed entries."""
