"""The undo stack: what files were before each call that modified them."""
