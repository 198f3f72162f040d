"""Search: the index and the queries on it."""
