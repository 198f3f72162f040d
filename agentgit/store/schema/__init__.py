"""The schema of a database: migrations, introspection, roles, partitioning, sharding, tenants."""
