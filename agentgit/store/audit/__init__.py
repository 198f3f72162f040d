"""The audit trail, event callbacks, and the outbox of webhooks."""
