"""Telling what happened: the audit trail, callbacks, and the outbox of webhooks."""
