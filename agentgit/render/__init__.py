"""Values as text, SVG and HTML: trees, logs, checkpoints, branches, sessions, diffs. Pure functions.

The views return lines: tuples of text spans, each with the name of a style. The terminal, page or notebook decides what
a style looks like. All text from a database is escaped here (`text.clean`).
"""
