"""Queries that combine several kinds of records: references, read models, comparison, explorations, templates."""
