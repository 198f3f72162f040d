"""The audit trail and event callbacks."""
