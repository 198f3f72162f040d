"""The notebook's face: `%load_ext agentgit` gives the magics, and `live` a tree that grows while a cell runs.

Values show themselves (`agentgit.render`), and need nothing of this. Nothing imports IPython before it is used.
"""

from agentgit.notebook.live_tree import live

__all__ = ["live"]
