"""Benchmarks of `SQLModelSaver` and LangGraph's own savers: `python -m bench --only saver`."""
