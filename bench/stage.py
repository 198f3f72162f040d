"""Where a run takes place: its folder, how much of everything it does, and what several subjects share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from bench.contenders import Contender

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SaverScale:
    """How much is measured of the savers.

    Args:
        turns: of the conversation whose size is measured, as it grows.
        messages: of that conversation when its turns are timed; at most twice the last of `turns`.
        fresh: how often a turn at two messages is timed, each in a conversation of its own.
        stored: messages of the checkpoints that are put and read.
        puts: how often that is timed.
        forked: turns of the conversation that is forked in its middle.
        forks: how often that is timed.
        flat: messages of the conversations by which the time of a fork is compared.
        listed: turns of the conversation whose checkpoints are listed.
        lists: how often that is timed.
    """

    turns: tuple[int, ...]
    messages: tuple[int, ...]
    fresh: int
    stored: tuple[int, ...]
    puts: int
    forked: int
    forks: int
    flat: tuple[int, ...]
    listed: int
    lists: int


@dataclass(frozen=True, kw_only=True)
class CrowdScale:
    """How much is measured of many users.

    Args:
        messages: of their conversations.
        clients: how many talk at once.
        turns: of all of them together, at least three each.
        sessions: how many there are when one user lists his.
    """

    messages: tuple[int, ...]
    clients: tuple[int, ...]
    turns: int
    sessions: tuple[int, ...]


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
        saver: how much of the savers.
        rollbacks: how often an agent goes back before its payment.
        steps: how many steps are made whose calls fail.
        explored: choices and steps of what is explored.
        found: checkpoints among which one is found.
        multiuser: how much of many users.
    """

    messages: tuple[int, ...]
    fresh: int
    turns: tuple[int, ...]
    forks: int
    forked: tuple[int, ...]
    starts: int
    looks: int
    saver: SaverScale
    rollbacks: int
    steps: int
    explored: tuple[tuple[int, int], ...]
    found: int
    multiuser: CrowdScale


FULL = Scale(
    messages=(2, 100, 1000), fresh=30, turns=(100, 500), forks=25, forked=(10, 1000), starts=9, looks=2,
    rollbacks=100, steps=100, explored=((2, 3), (2, 4), (4, 4), (4, 5)), found=100_000,
    multiuser=CrowdScale(
        messages=(2, 100), clients=(1, 4, 16, 64), turns=480, sessions=(1_000, 10_000, 100_000, 1_000_000)
    ),
    saver=SaverScale(
        turns=(50, 200, 500, 1000), messages=(100, 400, 2000), fresh=30, stored=(10, 100, 500), puts=30,
        forked=300, forks=25, flat=(10, 100, 1000, 10_000), listed=334, lists=2,
    ),
)  # fmt: skip
QUICK = Scale(
    messages=(2, 100), fresh=12, turns=(20, 60), forks=8, forked=(10, 100), starts=3, looks=3,
    rollbacks=10, steps=10, explored=((2, 3), (2, 4)), found=5_000,
    multiuser=CrowdScale(messages=(2,), clients=(1, 2), turns=6, sessions=(1_000, 2_000)),
    saver=SaverScale(
        turns=(4, 8), messages=(10,), fresh=2, stored=(10, 50), puts=2,
        forked=8, forks=2, flat=(10, 100), listed=10, lists=2,
    ),
)  # fmt: skip


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

    @contextmanager
    def briefly(self, kinds: Sequence[type[Contender]], *, name: str, length: int) -> Iterator[list[Contender]]:
        """Make contenders as `open` does, and delete their databases at the end of the block: some are large."""
        folder = self.where / name
        folder.mkdir()
        with ExitStack() as held:
            held.callback(shutil.rmtree, folder)
            made = []
            for kind in kinds:
                made.append(kind(folder, length))
                held.callback(made[-1].close)
            yield made

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
