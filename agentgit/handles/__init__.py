"""The session handle: all operations on one session that need no graph."""
