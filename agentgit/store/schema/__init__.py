"""The schema of a database: migrations and roles."""
