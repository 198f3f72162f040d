"""Notebook support: `%load_ext agentgit` loads the magics, and `live` shows a tree that updates while a cell runs.

Values display themselves (`agentgit.render`) without this package. IPython is imported only when it is needed.
"""

from agentgit.notebook.live_tree import live

__all__ = ["live"]
