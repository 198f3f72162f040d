"""The schema of a database: migrations, roles, tenants."""
