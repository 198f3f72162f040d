"""A tree that is drawn anew while a cell runs."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from agentgit.errors import InvalidInput
from agentgit.repository.events import Events

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.sessions.events import Event

KINDS = ("checkpoint.*", "call.*", "turn.*", "rollback.*", "switch.*", "fork.done", "merge.done", "tag.*")
"""The kinds of events that change a tree."""

_SECONDS = 0.2
"""The least seconds between two drawings; the last drawing is at the end of the block."""


@contextmanager
def live(agent: RollbackAgent) -> Iterator[None]:
    """Show the tree of a session, and draw it anew with every checkpoint and call until the block ends.

    Args:
        agent: The agent whose session is shown; in a notebook.

    Raises:
        InvalidInput: IPython is not there to show it.

    Example:
        ```
        with agentgit.notebook.live(agent):
            agent.run("order two chairs")
        ```
    """
    shown = _display(agent.tree())
    # What is drawn in the callback's thread belongs to the cell that called this.
    cell, drawn_at = contextvars.copy_context(), monotonic()

    def draw(event: Event) -> None:
        nonlocal drawn_at
        if monotonic() - drawn_at > _SECONDS:
            drawn_at = monotonic()
            cell.run(shown.update, agent.tree())

    try:
        with Events(agent.session.context).on(KINDS, draw, session=agent.session):
            yield
    finally:
        shown.update(agent.tree())


def _display(value: Any) -> Any:
    """Show a value; give what shows another one in its place."""
    try:
        from IPython.core.getipython import get_ipython
        from IPython.display import display
    except ImportError:
        shell = None
    else:
        shell = get_ipython()
    if shell is None:
        raise InvalidInput("A live tree needs a notebook or IPython; print(agent.tree()) draws it once.")
    return display(value, display_id=True)  # type: ignore[no-untyped-call]  # IPython does not say
