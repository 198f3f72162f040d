"""What agents leave in the world: counts, not times."""
