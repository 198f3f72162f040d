"""The time to find a checkpoint among many with the log and with search, and the cost of indexing words in a turn."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
from sqlalchemy import URL, Connection, text

import agentgit
from agentgit.handles.log import Log
from agentgit.store.database import Database
from agentgit.store.objects.blobs import Leaf, leaf
from agentgit.store.objects.content import Encoded
from agentgit.store.records.checkpoints import CheckpointState, Label
from agentgit.store.schema import schema
from agentgit.store.search.index import SearchIndex
from agentgit.store.threads.graph_rows import Draft, GraphKey
from bench import postgres
from bench.contenders import Wrapped
from bench.graphs import CHAT, said
from bench.graphs import text as words
from bench.measure import Line, Subject, interleaved, lines
from bench.stage import Stage

BRANCHES = 10
"""The number of branches on the path; each one begins at the end of the previous one."""

STEP = 100
"""The number of messages that are saved at once, which only speeds up the preparation."""

NAMED = 100
"""The number of checkpoints for each one that has a name."""

NOTE = (
    "Milliseconds, of one session whose path goes through ten branches, with a message for each checkpoint. A page is\n"
    "50 checkpoints; a search gives the newest 20, with snippets. `every checkpoint` is session.checkpoints() and a\n"
    "filter in Python; `every message` reads the conversation at the head and looks through it; LIKE is SQLite's over\n"
    "a plain table of the same texts, without a session or a branch. The turns are chats of 1 KB messages."
)

EVERY, MESSAGES, LIKE, BARE = "every checkpoint", "every message", "LIKE", "words left out"


@dataclass
class _Case:
    """A database with many checkpoints, and a plain table of the same texts.

    Args:
        repo: The repository.
        plain: The database of the table.
        count: The number of checkpoints.
    """

    repo: agentgit.Repository
    plain: sqlite3.Connection
    count: int

    def runs(self) -> dict[str, Callable[[], Any]]:
        """Return the functions that read the log, by name."""
        log, when = (
            self.repo.session("long").log(),
            self.repo.session("long").log().page(1).items[0].created_at or datetime.now(UTC),
        )
        middle, early = when - timedelta(seconds=self.count // 2), when - timedelta(seconds=self.count - 100)
        deep = self.repo.session("long").log(until=middle).page(50).next
        return {
            EVERY: lambda: [p for p in self.repo.session("long").checkpoints() if p.checkpoint_name == "named 7"][-50:],
            "first page": lambda: _full(log),
            "page in the middle": lambda: log.page(50, after=deep),
            "page of the named": lambda: _full(self.repo.session("long").log(auto=False)),
            "page of one name": lambda: self.repo.session("long").log(name="named 7").page(50),
            "page until early": lambda: _full(log.between(early - timedelta(seconds=99), early)),
            "page of an author": lambda: _full(self.repo.session("long").log(author=self.repo.user.name)),
            "page of nothing": lambda: self.repo.session("long").log(auto=False, until=early).page(50),
            "page of all branches": lambda: _full(self.repo.session("long").log(which="all")),
            "len": lambda: len(log),
            "a place, main-5#7": lambda: self.repo.session("long").get_checkpoint("main-5#7"),
        }

    def searches(self) -> dict[str, Callable[[], Any]]:
        """Return the functions that search, by name."""
        run: dict[str, Callable[[], Any]] = {
            MESSAGES: lambda: [m for m in self.repo.session("long").get_checkpoint("HEAD").conversation_history
                               if "needle" in str(m["content"])],
            LIKE: lambda: self.plain.execute(
                "SELECT * FROM text WHERE body LIKE '%needle%' ORDER BY id DESC LIMIT 20"
            ).fetchall(),
        }  # fmt: skip
        for name, wanted in {
            "a rare word": "needle", "a word of every text": "order", "both": "order needle",
            "two words together": "order_two", "no such word": "haystack",
        }.items():  # fmt: skip
            run[f"search, {name}"] = lambda wanted=wanted: self.repo.session("long").search(wanted)
            run[f"search, {name}, all branches"] = lambda wanted=wanted: self.repo.session("long").search(
                wanted, all_branches=True
            )
        run["search, a name"] = lambda: self.repo.session("long").search("named")
        run["search, a branch that left early"] = lambda: self.repo.session("long").search("order", branch="early")
        return run


def _full(log: Log) -> None:
    if len(log.page(50)) != 50:
        raise RuntimeError(f"a page of {log} is not full")


def measure(stage: Stage) -> Subject:
    """Time the log and the searches on each database, and then turns."""
    found: list[Line] = []
    for name, where in _databases(stage):
        with where as url, closing(agentgit.open(url)) as repo:
            case = f"{name}, {stage.scale.found:,} checkpoints"
            with closing(_plain()) as plain:
                made = _make(_Case(repo, plain, stage.scale.found))
                found += lines(f"log: {case}", interleaved(made.runs(), stage.scale.looks * 5), [EVERY])
                found += lines(f"search: {case}", interleaved(made.searches(), stage.scale.looks * 5), [MESSAGES, LIKE])
    found += _turns(stage)
    return Subject("Time to find a checkpoint", NOTE, found)


def _databases(stage: Stage) -> Iterator[tuple[str, Any]]:
    yield "SQLite", _file(stage.where / "find")
    if postgres.about():
        yield "PostgreSQL", _server()


@contextmanager
def _file(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    yield folder / "agentgit.db"
    shutil.rmtree(folder)


@contextmanager
def _server() -> Iterator[URL]:
    with postgres.scratch() as url:
        with closing(Database(url)) as database:
            schema.upgrade(database)
        yield url


def _plain() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE text (id INTEGER PRIMARY KEY, body TEXT)")
    return connection


# -- many checkpoints


def _make(case: _Case) -> _Case:
    """Fill a session, in which each branch continues where the previous one ended."""
    repo, store = case.repo, case.repo.context.store
    session = repo.session("long", create=True)
    began = datetime.now(UTC) - timedelta(seconds=case.count)
    held: list[Leaf] = []
    heads: dict[int, Any] = {}

    def grow(connection: Connection, branch: Any, first: int) -> None:
        last: tuple[str, str] | tuple[None, None] = heads.get(branch.parent_id, (None, None))
        for start in range(first, first + case.count // BRANCHES, STEP):
            held.extend(_message(case, number) for number in range(start, start + STEP))
            head = store.graphs.put(
                connection, GraphKey(branch.thread_id, "", f"{start:032}"), _draft(list(held), *last)
            )
            last = (head.checkpoint_id, branch.thread_id)
            for number in range(start, start + STEP):
                named = number % NAMED == 0
                name = f"named {number // NAMED % 20}" if named else None
                point = CheckpointState(
                    graph_checkpoint_id=head.checkpoint_id, state_hash=head.state_hash, position=0,
                    message_count=number + 1,
                )  # fmt: skip
                made = began + timedelta(seconds=number)
                why = Label(kind="named" if named else "after", user_id=repo.user.id, name=name, created_at=made)
                store.checkpoints.add(connection, branch.id, point, why)
        heads[branch.id] = last

    branch_id = repo.session("long").branch().id
    for number in range(BRANCHES):
        first = number * (case.count // BRANCHES)
        store.database.write(lambda c, b=branch_id, f=first: grow(c, store.sessions.branch(c, b), f))
        if number < BRANCHES - 1:
            branch_id = store.database.write(lambda c, b=branch_id, n=number: _branch(case, c, session.id, b, n + 2))
    store.database.write(lambda c: store.sessions.set_current(c, session.id, branch_id))
    early = repo.session("long").get_checkpoint("main#50")
    store.database.write(lambda c: store.sessions.create_branch(
        c, session.id, "early", parent_id=early.internal_session_id, branch_point_id=early.id or 0
    ))  # fmt: skip
    repo.session("long").search("needle")
    _tidy(case)
    return case


def _branch(case: _Case, connection: Connection, session_id: int, parent_id: int, number: int) -> int:
    sessions = case.repo.context.store.sessions
    head_id = sessions.branch(connection, parent_id).head_id
    return sessions.create_branch(
        connection, session_id, f"main-{number}", parent_id=parent_id, branch_point_id=head_id
    )


def _message(case: _Case, number: int) -> Leaf:
    body = f"order two {words(number, 200)}" + (" a needle" if number % 5_000 == 0 else "")
    case.plain.execute("INSERT INTO text (id, body) VALUES (?, ?)", (number, body))
    data = {"content": body, "id": f"m{number}"}
    return leaf("message", orjson.dumps({"type": "human", "data": data}))


def _draft(held: list[Leaf], parent_id: str | None, thread: str | None) -> Draft:
    header = {"versions": {"messages": f"{len(held)}"}}
    return Draft(
        parent_id=parent_id, parent_thread=thread, meta={}, header=header, channels=["messages"],
        changed_channels=frozenset(["messages"]), encode=lambda _: Encoded(held, len(held)),
    )  # fmt: skip


def _tidy(case: _Case) -> None:
    """Update the statistics of PostgreSQL, as autovacuum does after a while."""
    if not case.repo.context.store.database.is_sqlite:
        case.repo.context.store.database.write(lambda c: c.execute(text("ANALYZE")))


# -- the cost of the index in a turn


def _turns(stage: Stage) -> list[Line]:
    """Time the turns of two conversations in step; one of them does not index its words."""
    (wrapped,) = stage.open(Wrapped, name="find-turn", length=1024)
    say = {name: wrapped.conversation() for name in (BARE, "wrapped by agentgit")}
    numbers = count()

    def turn(name: str) -> None:
        with ExitStack() as held:
            if name == BARE:
                held.enter_context(patch.object(SearchIndex, "index_next", lambda *_: False))
            say[name](said(CHAT, next(numbers), 1024))

    times = interleaved({name: lambda name=name: turn(name) for name in say}, stage.scale.fresh * 4)
    return lines("a turn", times, [BARE])
