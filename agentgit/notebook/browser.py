"""The tree of a session with handles: pick a checkpoint, then fork, switch, compare, or roll back with its plan."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from agentgit.errors import InvalidInput
from agentgit.handles.session import Session
from agentgit.notebook.tree_handles import TreeHandles

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent


def browse(source: RollbackAgent | Session) -> TreeBrowser:
    """Return the tree of a session with a handle for each checkpoint.

    In a notebook with anywidget, a click on a checkpoint shows its content and its actions. Everywhere,
    `tree["main#3"]` returns the handle of a checkpoint.

    Args:
        source: An agent, or a session without a graph.

    Raises:
        InvalidInput: It is neither.

    Example:
        >>> import agentgit
        >>> from agentgit.demo import EFFECTS, build
        >>> from agentgit.notebook import browse
        >>> agent = agentgit.open(":memory:").wrap(build("shop.db"), session="s", effects=EFFECTS)
        >>> answer = agent.run("order two chairs")
        >>> tree = browse(agent)
        >>> print(tree["main#1"].plan_rollback())
        Rollback of session s, branch main, to main#1: a new branch that begins with 0 tool calls.
          reverse  create_order(item='chair', quantity=2)  reversible  its undo reverses it
        1 will be reversed; no blockers.
        >>> tree["main#1"].rollback().branch.name, tree.agent.branch.name
        ('main-2', 'main-2')
    """
    if isinstance(source, Session):
        return TreeBrowser(source, None)
    if not isinstance(getattr(source, "session", None), Session):
        raise InvalidInput(f"browse needs an agent or a session, not {type(source).__name__}.")
    return TreeBrowser(source.session, source)


class TreeBrowser(TreeHandles):
    """The tree of a session with a handle for each checkpoint, as notebooks display it. `browse` creates it."""

    def __repr__(self) -> str:
        return str(self.session.tree())

    def _repr_html_(self) -> str:
        return self.session.tree()._repr_html_()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        view = self.widget.view() if self.widget is not None else {}
        return {**self.session.tree()._repr_mimebundle_(), **view}

    def _display_(self) -> Any:
        """Return what marimo displays."""
        return self.widget if self.widget is not None else self.session.tree()

    @cached_property
    def widget(self) -> Any:
        """The widget for clicks; None if anywidget is not installed."""
        try:
            from agentgit.notebook.tree_widget import TreeWidget
        except ModuleNotFoundError:
            return None
        return TreeWidget(self)
