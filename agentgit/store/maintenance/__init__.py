"""Garbage collection, retention, erasure, statistics, key rotation, and fsck."""
