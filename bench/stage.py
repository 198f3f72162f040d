"""A run of the benchmarks: its folder, its scale, and the data that several subjects share."""

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
    """The scale of the measurements of the savers.

    Args:
        turns: The turns of the growing conversation at which its size is measured.
        messages: The messages of that conversation at which its turns are timed; at most twice the last of `turns`.
        fresh: The number of timed turns at two messages, each in a new conversation.
        stored: The messages of the checkpoints that are put and read.
        puts: The number of timed puts.
        forked: The turns of the conversation that is forked in its middle.
        forks: The number of timed forks.
        flat: The messages of the conversations for which the time of a fork is compared.
        listed: The turns of the conversation whose checkpoints are listed.
        lists: The number of timed lists.
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
    """The scale of the measurements of many users.

    Args:
        messages: The messages of their conversations.
        clients: The numbers of concurrent clients.
        turns: The turns of all clients together; each client has at least three.
        rounds: The number of runs of each contender with many threads in one process.
        sessions: The numbers of sessions among which one user lists some.
    """

    messages: tuple[int, ...]
    clients: tuple[int, ...]
    turns: int
    rounds: int
    sessions: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The scale of all measurements.

    Args:
        messages: The messages of the conversations whose turns are timed.
        fresh: The number of timed turns at the smallest of these, each in a new conversation.
        turns: The turns of the conversations whose size is measured.
        forks: The number of timed forks and rollbacks.
        forked: The messages of the conversations that are forked.
        starts: The number of timed imports.
        looks: The number of timed reads of the log.
        saver: The scale for the savers.
        rollbacks: The number of times that an agent goes back before its payment.
        steps: The number of steps with failing calls.
        explored: The choices and steps of each exploration.
        found: The number of checkpoints among which one is found.
        served: The numbers of sessions after which the memory is measured.
        values: The sizes of large values, in bytes.
        waits: The number of timed turns beside a slow model.
        read: The turns of the conversation that is read as a whole.
        rerun: The turns of the conversations that are run again.
        reruns: The number of timed reruns of each.
        rerun_sessions: The number of sessions that are run again by several processes.
        multiuser: The scale for many users.
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
    served: tuple[int, ...]
    values: tuple[int, ...]
    waits: int
    read: int
    rerun: tuple[int, ...]
    reruns: int
    rerun_sessions: int
    multiuser: CrowdScale


FULL = Scale(
    messages=(2, 100, 1000), fresh=30, turns=(100, 500), forks=25, forked=(10, 1000, 10_000), starts=9, looks=2,
    rollbacks=100, steps=100, explored=((2, 3), (2, 4), (4, 4), (4, 5)), found=100_000,
    served=(1_000, 5_000, 10_000), values=(1_000_000, 20_000_000), waits=5, read=10_000,
    rerun=(200, 1000), reruns=3, rerun_sessions=24,
    multiuser=CrowdScale(
        messages=(2, 100), clients=(1, 4, 16, 64), turns=480, rounds=5, sessions=(1_000, 10_000, 100_000, 1_000_000)
    ),
    saver=SaverScale(
        turns=(50, 200, 500, 1000), messages=(100, 400, 2000), fresh=30, stored=(10, 100, 500), puts=30,
        forked=300, forks=25, flat=(10, 100, 1000, 10_000), listed=334, lists=2,
    ),
)  # fmt: skip
QUICK = Scale(
    messages=(2, 100), fresh=12, turns=(20, 60), forks=8, forked=(10, 100), starts=3, looks=3,
    rollbacks=10, steps=10, explored=((2, 3), (2, 4)), found=5_000,
    served=(50, 100), values=(1_000_000,), waits=1, read=200,
    rerun=(10, 20), reruns=1, rerun_sessions=4,
    multiuser=CrowdScale(messages=(2,), clients=(1, 2), turns=6, rounds=1, sessions=(1_000, 2_000)),
    saver=SaverScale(
        turns=(4, 8), messages=(10,), fresh=2, stored=(10, 50), puts=2,
        forked=8, forks=2, flat=(10, 100), listed=10, lists=2,
    ),
)  # fmt: skip


@dataclass
class Stage:
    """One run of the benchmarks.

    Args:
        where: The folder for all databases.
        scale: The scale of the measurements.
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
        """Make contenders as `open` does, and delete their databases, which can be large, at the end of the block."""
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
        """Make contenders in a new folder; they are closed when the run ends.

        Args:
            kinds: The classes of the contenders.
            name: The name of the folder.
            length: The number of characters in a reply of the model.
        """
        folder = self.where / name
        folder.mkdir()
        made = [kind(folder, length) for kind in kinds]
        for contender in made:
            self._held.callback(contender.close)
        return made

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return the value that another subject has made, or make it."""
        if name not in self._made:
            self._made[name] = make()
        made: T = self._made[name]  # type: ignore[assignment]  # the same name is always of the same type
        return made
