"""A tree display that updates while a cell runs."""

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
    # The callback runs in another thread. This context directs its output to the calling cell.
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
