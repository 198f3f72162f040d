"""A bar that shows how far long work is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentgit.sessions.maintenance import Progress


@contextmanager
def bar(what: str, as_json: bool) -> Iterator[Progress | None]:
    """Show how far it is by a bar, in a terminal only.

    Args:
        what: The action, in a word.
        as_json: True if a program reads the answer.
    """
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=None)
        step: Callable[[int, int], None] = lambda done, total: shown.update(task, completed=done, total=total)  # noqa: E731
        yield step
