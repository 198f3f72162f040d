"""Trees in notebooks: one with a handle for each checkpoint, and one that grows while a cell runs."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Any

from agentgit.errors import InvalidInput
from agentgit.handles.session import Session
from agentgit.notebook.tree_handles import TreeHandles
from agentgit.repository.events import Events

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.sessions.events import Event


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


KINDS = ("checkpoint.*", "call.*", "turn.*", "rollback.*", "switch.*", "fork.done", "merge.done", "tag.*")
"""The kinds of events after which the tree is redrawn."""

_MIN_SECONDS = 0.2
"""The minimum number of seconds between two redraws. The end of the block always redraws."""


@contextmanager
def live(agent: RollbackAgent) -> Iterator[None]:
    """Display the tree of a session, and redraw it as checkpoints and calls are made until the block ends.

    Args:
        agent: The agent whose session is shown.

    Raises:
        InvalidInput: The code does not run in a notebook or IPython.

    Example:
        ```
        with agentgit.notebook.live(agent):
            agent.run("order two chairs")
        ```
    """
    display_handle = _display(agent.tree())
    # The callback may run in another thread. This context directs its output to the calling cell.
    cell_context, drawn_at = contextvars.copy_context(), monotonic()

    def draw(event: Event) -> None:
        nonlocal drawn_at
        if monotonic() - drawn_at > _MIN_SECONDS:
            drawn_at = monotonic()
            cell_context.run(display_handle.update, agent.tree())

    try:
        with Events(agent.session.context).on(KINDS, draw, session=agent.session):
            yield
    finally:
        display_handle.update(agent.tree())


def _display(value: Any) -> Any:
    """Display a value, and return a handle that can replace it with another one."""
    try:
        from IPython.core.getipython import get_ipython
        from IPython.display import display
    except ImportError:
        shell = None
    else:
        shell = get_ipython()
    if shell is None:
        raise InvalidInput("A live tree needs a notebook or IPython; print(agent.tree()) draws it once.")
    return display(value, display_id=True)  # type: ignore[no-untyped-call]  # untyped in IPython
