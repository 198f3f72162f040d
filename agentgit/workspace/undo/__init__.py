"""The undo stack: the state of files before each call that modified them."""
