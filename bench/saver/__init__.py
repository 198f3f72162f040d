"""Measurements of `SQLModelSaver` beside LangGraph's own savers: `python -m bench --only saver`."""
