"""Where a run takes place: its folder, how much of everything it does, and what several subjects share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from bench.contenders import Contender

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured.

    Args:
        messages: of the conversations of which turns are timed.
        fresh: how often a turn at the smallest of these is timed, each in a conversation of its own.
        turns: of the conversations whose size is measured.
        forks: how often a fork and a rollback are timed.
        forked: messages of the conversations that are forked.
        starts: how often an import is timed.
        looks: how often the log is read.
    """

    messages: tuple[int, ...]
    fresh: int
    turns: tuple[int, ...]
    forks: int
    forked: tuple[int, ...]
    starts: int
    looks: int


FULL = Scale(messages=(2, 100, 1000), fresh=30, turns=(100, 500), forks=25, forked=(10, 1000), starts=9, looks=2)
QUICK = Scale(messages=(2, 100), fresh=12, turns=(20, 60), forks=8, forked=(10, 100), starts=3, looks=3)


@dataclass
class Stage:
    """One run.

    Args:
        where: the folder for all databases.
        scale: how much is measured.
    """

    where: Path
    scale: Scale
    _held: ExitStack = field(default_factory=ExitStack)
    _made: dict[str, object] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._held.close()

    def open(self, *kinds: type[Contender], name: str, length: int) -> list[Contender]:
        """Make contenders in a folder of their own; they are closed when the run ends.

        Args:
            kinds: which.
            name: of the folder.
            length: characters of what the model says.
        """
        folder = self.where / name
        folder.mkdir()
        made = [kind(folder, length) for kind in kinds]
        for contender in made:
            self._held.callback(contender.close)
        return made

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Give what another subject has made already, or make it."""
        if name not in self._made:
            self._made[name] = make()
        made: T = self._made[name]  # type: ignore[assignment]  # the same name is always of the same type
        return made
