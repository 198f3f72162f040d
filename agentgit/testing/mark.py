"""The mark of tests that `agentgit.testing.sessions` runs for each exported session."""

MARK = "agentgit_sessions"
"""The name of the mark."""
