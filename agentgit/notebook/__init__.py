"""Notebook support: the magics, a tree to click, and a tree that grows while a cell runs.

`%load_ext agentgit` loads the magics, `browse` returns the tree to click, and `live` redraws a tree until a block ends.

Values display themselves (`agentgit.render`) without this package. IPython is imported only when it is needed.
"""

from agentgit.notebook.browser import browse, live

__all__ = ["browse", "live"]
