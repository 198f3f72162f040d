"""Benchmarks of many users on one PostgreSQL server: concurrent turns, and lists among many sessions."""
