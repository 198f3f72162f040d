"""Database checks: rows against each other, values against their hashes, and heads against their states."""
