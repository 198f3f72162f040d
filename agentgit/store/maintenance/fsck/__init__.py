"""Checking a database: rows against each other, values against their hashes, heads against their states."""
