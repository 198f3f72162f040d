"""Many users on one PostgreSQL: turns at once, and lists among many sessions."""
