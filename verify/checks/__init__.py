"""The checks of verify, one file per axis along which the bits must not move."""
