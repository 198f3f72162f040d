"""The append-only table of events, its feed, and event callbacks."""
