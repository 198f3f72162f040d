"""The schema of a database: migrations, roles, partitioning, tenants."""
