"""Benchmarks that count the effects that agents leave in the world."""
