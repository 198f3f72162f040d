"""What is compared: the same graph without a checkpointer, with two savers, and wrapped by agentgit."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver

import agentgit
from agentgit.agents.agent import RollbackAgent
from bench.graphs import EFFECTS, MESSAGES, Graph, build, check, said
from bench.measure import rotated, timed

BARE = "no checkpointer"
SQLITE = "SqliteSaver"
OURS = "SQLModelSaver"
WRAPPED = "wrapped by agentgit"
SEALED = "wrapped, encrypted"

Say = Callable[[str], list[Any]]
"""Runs one turn; gives the messages then."""


class Contender(ABC):
    """One way to run the graph.

    Args:
        folder: where it may keep its database.
        length: characters of what the model says.
    """

    name: str
    file: str = ""

    def __init__(self, folder: Path, length: int) -> None:
        self.folder, self.length = folder, length
        self._numbers = count(1)

    @abstractmethod
    def conversation(self) -> Say:
        """Begin a conversation."""

    @abstractmethod
    def close(self) -> None:
        """Close the database."""

    @property
    def path(self) -> Path:
        """The database."""
        return self.folder / self.file

    def size(self) -> int:
        """Tell the bytes of the database once all of it is in the one file."""
        with closing(sqlite3.connect(self.path)) as connection:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise RuntimeError(f"the database of {self.name} is in use, so its size cannot be told")
        return self.path.stat().st_size


class Bare(Contender):
    """The graph alone; the caller keeps the conversation in memory."""

    name = BARE

    def conversation(self) -> Say:
        """Begin a conversation."""
        graph, held = build(self.length), []

        def say(text: str) -> list[Any]:
            held[:] = graph.invoke({"messages": [*held, ("user", text)]})["messages"]
            return held

        return say

    def close(self) -> None:
        """There is nothing to close."""


class Saved(Contender):
    """The graph with a saver."""

    graph: Graph
    last: Any
    """The config of the newest conversation."""

    def conversation(self) -> Say:
        """Begin a conversation."""
        config: Any = {"configurable": {"thread_id": f"thread-{next(self._numbers)}"}}
        self.last = config
        return lambda text: self.graph.invoke({"messages": [("user", text)]}, config)["messages"]


class Sqlite(Saved):
    """LangGraph's own saver for SQLite, with its own settings."""

    name, file = SQLITE, "sqlite-saver.db"

    def __init__(self, folder: Path, length: int) -> None:
        super().__init__(folder, length)
        self._connection = sqlite3.connect(self.path, check_same_thread=False)
        self.graph = build(length, SqliteSaver(self._connection))

    def close(self) -> None:
        """Close the database."""
        self._connection.close()


class Ours(Saved):
    """The saver of agentgit, used alone."""

    name, file = OURS, "sqlmodel-saver.db"

    def __init__(self, folder: Path, length: int) -> None:
        super().__init__(folder, length)
        self._saver = agentgit.SQLModelSaver.from_conn_string(self.path)
        self.graph = build(length, self._saver)

    def close(self) -> None:
        """Close the database."""
        self._saver.close()


class Wrapped(Contender):
    """The graph as `repo.wrap` gives it: tools recorded, a checkpoint before and after each turn."""

    name, file = WRAPPED, "agentgit.db"

    def __init__(self, folder: Path, length: int) -> None:
        super().__init__(folder, length)
        self.repo = agentgit.open(self.path, keyring=self.keyring())
        self.graph = build(length)

    def keyring(self) -> agentgit.Keyring | None:
        """Give what the database is encrypted with; None if it is not."""
        return None

    def agent(self) -> RollbackAgent:
        """Wrap the graph in a new session."""
        return self.repo.wrap(self.graph, session=f"session-{next(self._numbers)}", effects=EFFECTS)

    def conversation(self) -> Say:
        """Begin a conversation."""
        agent = self.agent()
        return lambda text: agent.invoke({"messages": [("user", text)]})["messages"]

    def close(self) -> None:
        """Close the database."""
        self.repo.close()


class Sealed(Wrapped):
    """The same in an encrypted database."""

    name, file = SEALED, "sealed.db"

    def keyring(self) -> agentgit.Keyring | None:
        """Give the key that the database is encrypted with."""
        return agentgit.Keyring({"bench": agentgit.Keyring.new_key()})


class Talk:
    """The same conversation with several contenders, growing in step, each turn timed.

    Args:
        contenders: with whom.
        kind: of the turns.
        length: characters of each message.
    """

    def __init__(self, contenders: Iterable[Contender], kind: str, length: int) -> None:
        self._says = {contender.name: contender.conversation() for contender in contenders}
        self._kind, self._length = kind, length
        self.turns = 0
        self.times: dict[str, list[float]] = {name: [] for name in self._says}
        self.messages: list[Any] = []

    def grow(self, messages: int) -> Talk:
        """Go on until the conversation has that many messages."""
        while self.turns * MESSAGES[self._kind] < messages:
            self._turn()
        return self

    def _turn(self) -> None:
        text = said(self._kind, self.turns, self._length)
        self.turns += 1
        for name in rotated(list(self._says), self.turns):
            took, self.messages = timed(partial(self._says[name], text))
            self.times[name].append(took)
            check(self.messages, self.turns * MESSAGES[self._kind])

    def around(self, messages: int, spread: float) -> dict[str, list[float]]:
        """Give the times of the turns that began at about that many messages.

        Args:
            messages: how many.
            spread: how far from that a turn may be, as a part of it.
        """
        step = MESSAGES[self._kind]
        chosen = [n for n in range(self.turns) if abs(n * step - messages) <= max(messages * spread, step / 2)]
        return {name: [times[n] for n in chosen] for name, times in self.times.items()}
