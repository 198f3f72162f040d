"""The contenders: the same graph without a checkpointer, with two savers, and wrapped by agentgit."""

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
"""A function that runs one turn, and returns the messages after it."""


class Contender(ABC):
    """One way to run the graph.

    Args:
        folder: The folder of its database.
        length: The number of characters in a reply of the model.
    """

    name: str
    file: str = ""

    def __init__(self, folder: Path, length: int) -> None:
        self.folder, self.length = folder, length
        self._numbers = count(1)

    @abstractmethod
    def conversation(self) -> Say:
        """Begin a conversation, and return a function that runs its turns."""

    @abstractmethod
    def close(self) -> None:
        """Close the database."""

    @property
    def path(self) -> Path:
        """The path of the database."""
        return self.folder / self.file

    def size(self) -> int:
        """Move the write-ahead log into the database file, and return the size of the file in bytes."""
        with closing(sqlite3.connect(self.path)) as connection:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise RuntimeError(f"the database of {self.name} is in use, so its size cannot be told")
        return self.path.stat().st_size


class Bare(Contender):
    """The graph alone; the caller keeps the conversation in memory."""

    name = BARE

    def conversation(self) -> Say:
        """Begin a conversation, and return a function that runs its turns."""
        graph, held = build(self.length), []

        def say(text: str) -> list[Any]:
            held[:] = graph.invoke({"messages": [*held, ("user", text)]})["messages"]
            return held

        return say

    def close(self) -> None:
        """Do nothing, because there is no database."""


class Saved(Contender):
    """The graph with a saver."""

    graph: Graph
    last: Any
    """The config of the newest conversation."""

    def conversation(self) -> Say:
        """Begin a conversation, and return a function that runs its turns."""
        config: Any = {"configurable": {"thread_id": f"thread-{next(self._numbers)}"}}
        self.last = config
        return lambda text: self.graph.invoke({"messages": [("user", text)]}, config)["messages"]


class Sqlite(Saved):
    """LangGraph's own saver for SQLite, with its default settings."""

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
    """The graph as `repo.wrap` returns it: tools recorded, a checkpoint before and after each turn."""

    name, file = WRAPPED, "agentgit.db"

    def __init__(self, folder: Path, length: int) -> None:
        super().__init__(folder, length)
        self.repo = agentgit.open(self.path, keyring=self.keyring())
        self.graph = build(length)

    def keyring(self) -> agentgit.Keyring | None:
        """Return the keys of the database, or None if it is not encrypted."""
        return None

    def agent(self) -> RollbackAgent:
        """Wrap the graph in a new session."""
        return self.repo.wrap(self.graph, session=f"session-{next(self._numbers)}", effects=EFFECTS)

    def conversation(self) -> Say:
        """Begin a conversation, and return a function that runs its turns."""
        agent = self.agent()
        return lambda text: agent.invoke({"messages": [("user", text)]})["messages"]

    def close(self) -> None:
        """Close the database."""
        self.repo.close()


class Sealed(Wrapped):
    """The wrapped graph with an encrypted database."""

    name, file = SEALED, "sealed.db"

    def keyring(self) -> agentgit.Keyring | None:
        """Return a keyring with one new key."""
        return agentgit.Keyring({"bench": agentgit.Keyring.new_key()})


class Talk:
    """The same conversation with several contenders, which grows in step; each turn is timed.

    Args:
        contenders: The contenders.
        kind: The kind of the turns.
        length: The number of characters in a message.
    """

    def __init__(self, contenders: Iterable[Contender], kind: str, length: int) -> None:
        self._says = {contender.name: contender.conversation() for contender in contenders}
        self._kind, self._length = kind, length
        self.turns = 0
        self.times: dict[str, list[float]] = {name: [] for name in self._says}
        self.messages: list[Any] = []

    def grow(self, messages: int) -> Talk:
        """Continue the conversation until it has that many messages."""
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
        """Return the times of the turns that began at about that many messages.

        Args:
            messages: The number of messages.
            spread: The largest deviation, as a fraction of that number.
        """
        step = MESSAGES[self._kind]
        chosen = [n for n in range(self.turns) if abs(n * step - messages) <= max(messages * spread, step / 2)]
        return {name: [times[n] for n in chosen] for name, times in self.times.items()}
