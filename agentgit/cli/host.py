"""Who runs a command: a terminal, or a program of this process that gives its repository and takes values."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from agentgit.handles.session import Session
    from agentgit.render.text import Line
    from agentgit.repository import Repository


class Host(Protocol):
    """A program that runs commands: a notebook or a chat."""

    yes: bool
    """True if nobody is to be asked."""

    def repository(self) -> Repository:
        """Return the repository for commands that name no database."""

    def session(self, *, changes: bool) -> tuple[Session, str] | None:
        """Return the session and branch for commands that name none; None if there is no such session."""

    def names(self) -> Any:
        """Return the names that completion offers, as `agentgit.cli.completion.NamesHere`."""

    def show(self, value: Any, lines: Sequence[Line]) -> None:
        """Show a result: its value, or the lines that draw it if there is none."""

    def ask(self, question: str) -> bool:
        """Ask a yes-or-no question."""


HOST: ContextVar[Host | None] = ContextVar("agentgit_host", default=None)
"""The program that runs the commands; None for a terminal."""
