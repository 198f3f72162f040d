"""Values as text: the tree, the log, one checkpoint, branches, sessions, a diff. Pure, and the one place for it.

Every module gives `lines(...)`, which are spans of text with the name of a style, and a function that draws them as
plain text. A terminal, a page or a notebook decides what a style looks like. Whatever text comes out of a database is
made harmless here (`text.clean`).
"""
