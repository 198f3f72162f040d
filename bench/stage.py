"""A run of the benchmarks: its folder and its scale."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import postgres
from bench.contenders import POSTGRES, Address, Kind, Opened


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured.

    Args:
        messages: The messages of the conversations whose turns are timed.
        rounds: The rounds of what is quick: turns of short conversations, forks, calls of a saver.
        waits: The rounds beside a slow model.
        forked: The messages of the conversations that are forked.
        rollbacks: How often an agent goes back before its payment.
        stored: The messages of the checkpoints that are put and read.
        listed: The turns of the conversation whose graph checkpoints a saver lists.
        turns: The turns of the conversations whose size is measured.
        read: The turns of the conversation that is read as a whole.
        files: The files of the directory of large files, and of that of small ones.
        clients: The numbers of concurrent clients.
        shared: The turns of all clients together; each client has at least three.
    """

    messages: tuple[int, ...]
    rounds: int
    waits: int
    forked: tuple[int, ...]
    rollbacks: int
    stored: tuple[int, ...]
    listed: int
    turns: tuple[int, ...]
    read: int
    files: tuple[int, int]
    clients: tuple[int, ...]
    shared: int


FULL = Scale(
    messages=(2, 100, 1000), rounds=30, waits=5, forked=(10, 1000, 10_000), rollbacks=100, stored=(10, 100, 500),
    listed=334, turns=(100, 500), read=10_000, files=(5_000, 50_000), clients=(1, 4, 16, 64), shared=480,
)  # fmt: skip
QUICK = Scale(
    messages=(2, 20), rounds=2, waits=1, forked=(10, 100), rollbacks=3, stored=(10,),
    listed=5, turns=(5, 10), read=50, files=(50, 100), clients=(1, 2), shared=6,
)  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """One run: the folder for all databases, and the scale."""

    where: Path
    scale: Scale

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield a new folder, and delete it at the end: the databases of the peers can be large."""
        with TemporaryDirectory(dir=self.where) as name:
            yield Path(name)

    @contextmanager
    def open(self, kinds: dict[str, Kind], length: int) -> Iterator[dict[str, Opened]]:
        """Open contenders, each with a new database of its own."""
        with ExitStack() as held:
            folder = held.enter_context(self.folder())
            opened = {}
            for number, (name, kind) in enumerate(kinds.items()):
                address: Address = folder / f"{number}.db"
                if POSTGRES in kinds:
                    address = held.enter_context(postgres.scratch())
                opened[name] = held.enter_context(kind(address, length))
            yield opened
