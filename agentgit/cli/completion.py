"""Shell completion of the names of sessions, branches, tags and checkpoints.

It reads a SQLite file with Python's own module, because loading SQLAlchemy takes longer than a person waits for Tab.
For a database on a server, which takes even longer to reach, it offers no names.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from agentgit.auth.principal import LOCAL
from agentgit.cli.output import HOST
from agentgit.errors import AgentGitError
from agentgit.location import default_location

if TYPE_CHECKING:
    from agentgit.handles.session import Session
    from agentgit.repository import Repository

SESSION_PARAMETERS = ("target", "words", "first")
"""The names of the parameters whose first word may be a session."""

MAX_CHECKPOINTS = 50
"""The maximum number of checkpoints that are offered in a notebook or a chat; the newest ones."""

BUSY_SECONDS = 0.2
"""The number of seconds to wait for a locked database."""


class Names:
    """The names that a user can see in a database."""

    def __init__(self, connection: sqlite3.Connection, user: str) -> None:
        self._connection = connection
        now = datetime.now(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
        rows = connection.execute(_SESSIONS, {"user": user, "now": now})
        self.sessions = [VisibleSession(*row) for row in rows]

    def session(self, text: str) -> VisibleSession | None:
        """Find a session; None if there is none."""
        for name in (text, text.rpartition("@")[0]):
            if not name and len(self.sessions) == 1:
                return self.sessions[0]
            if found := next((one for one in self.sessions if name in (one.reference, str(one.id))), None):
                return found
        return None

    def branches(self, session: VisibleSession) -> list[str]:
        return self._names(_BRANCHES, session)

    def checkpoints(self, session: VisibleSession, incomplete: str) -> list[str]:
        """List HEAD, branches, tags and checkpoint names; after `BRANCH#`, also that branch's checkpoint numbers."""
        names = ["HEAD", *self.branches(session), *self._names(_TAGS, session), *self._names(_CHECKPOINTS, session)]
        branch, has_number, _ = incomplete.partition("#")
        return [*names, *(self._names(_NUMBERS, session, branch) if has_number else ())]

    def _names(self, query: str, session: VisibleSession, *parameters: str) -> list[str]:
        return [name for (name,) in self._connection.execute(query, (session.id, *parameters))]


class NamesHere:
    """The names of sessions, branches and checkpoints, like `Names`, for a database that this process has open."""

    def __init__(self, repository: Repository, bound: tuple[Session, str] | None) -> None:
        self._repository, self._bound = repository, bound
        self.sessions = repository.sessions()

    def session(self, text: str) -> Session | None:
        for name in (text, text.rpartition("@")[0]):
            try:
                if name:
                    return self._repository.session(name)
            except AgentGitError:  # no such session: the word is a reference
                continue
        return self._bound[0] if self._bound is not None else None

    def branches(self, session: Session) -> list[str]:
        return [branch.name for branch in session.branches()]

    def checkpoints(self, session: Session, incomplete: str = "") -> list[str]:
        branch = self._bound[1] if self._bound is not None and self._bound[0] == session else None
        points = session.log(branch=branch).page(MAX_CHECKPOINTS)
        return [
            "HEAD",
            "HEAD~1",
            *self.branches(session),
            *(tag.name for tag in session.tags()),
            *dict.fromkeys(point.checkpoint_name for point in points if point.checkpoint_name),
            *(point.metadata["reference"] for point in points),
        ]


class VisibleSession(NamedTuple):
    """A session that the user can see. `reference` is as in `agentgit.ExternalSession`."""

    id: int
    reference: str


def complete_session(context: typer.Context, incomplete: str) -> list[str]:
    """Return shell completions: the names of sessions, and after `SESSION@` the branches of that session.

    If the database is missing or cannot be read, the list is empty, because an error must not disturb the prompt.
    """
    return _complete(context, incomplete, lambda names: _session_words(names, incomplete))


def complete_checkpoint(context: typer.Context, incomplete: str) -> list[str]:
    """Return shell completions: branches, tags and checkpoints of a session, and session names if none is given yet.

    The session is the one that an earlier word names, by default the only one.
    """
    typed = next((context.params[name] for name in SESSION_PARAMETERS if context.params.get(name)), "")
    session_word = typed if isinstance(typed, str) else typed[0]

    def list_words(names: Names) -> Iterator[str]:
        if not session_word:
            yield from _session_words(names, incomplete)
        if session := names.session(session_word):
            yield from names.checkpoints(session, incomplete)

    return _complete(context, incomplete, list_words)


def _session_words(names: Names, incomplete: str) -> Iterator[str]:
    yield from (session.reference for session in names.sessions)
    name, has_branch, _ = incomplete.rpartition("@")
    if has_branch and (session := names.session(name)):
        yield from (f"{name}@{branch}" for branch in names.branches(session))


def _complete(context: typer.Context, incomplete: str, list_words: Callable[[Names], Iterator[str]]) -> list[str]:
    if (host := HOST.get()) is not None:
        here: Any = NamesHere(host.repository(), host.session(changes=False))  # it has the same methods
        return [word for word in dict.fromkeys(list_words(here)) if word.startswith(incomplete)]
    root, location = context.find_root().params, _database_of(context)
    try:
        with closing(_connect(location)) as connection:
            names = Names(connection, root.get("user") or LOCAL)
            # A name with a line break would look like two names.
            words = [word for word in list_words(names) if word.startswith(incomplete) and word.isprintable()]
    except (sqlite3.Error, OSError, ValueError):
        return []
    return list(dict.fromkeys(words))


def _database_of(context: typer.Context) -> str:
    """Return the database that the options before the word name, or else the default."""
    level: Any = context
    while level is not None:
        if location := level.params.get("db"):
            return str(location)
        level = level.parent
    return default_location()


def _connect(location: str) -> sqlite3.Connection:
    """Open an existing SQLite file for reading.

    It is opened with `rw`, which creates no file, because a connection in the mode `ro` leaves the files of the
    write-ahead log behind when it is closed.
    """
    path = re.sub(r"^sqlite(\+\w+)?:///([^?]*).*", r"\2", location)
    connection = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS)
    connection.execute("PRAGMA query_only = ON")
    return connection


_SESSIONS = """
SELECT session.id, CASE
    WHEN session.user_id = viewer.id THEN session.session_name ELSE owner.name || '/' || session.session_name END
FROM external_session AS session
JOIN user AS viewer ON viewer.name = :user AND viewer.disabled_at IS NULL
JOIN user AS owner ON owner.id = session.user_id
WHERE (session.user_id = viewer.id OR EXISTS (
    SELECT 1 FROM session_member AS member
    WHERE member.external_session_id = session.id AND member.user_id = viewer.id
    AND (member.expires_at IS NULL OR member.expires_at > :now)))
ORDER BY session.updated_at DESC, session.id DESC
"""

_BRANCHES = "SELECT name FROM internal_session WHERE external_session_id = ? ORDER BY id"

_TAGS = "SELECT name FROM tag WHERE external_session_id = ? ORDER BY name"

_CHECKPOINTS = """
SELECT checkpoint.name FROM internal_session AS branch
JOIN checkpoint ON checkpoint.internal_session_id = branch.id
WHERE branch.external_session_id = ? AND checkpoint.name IS NOT NULL ORDER BY checkpoint.id
"""

_NUMBERS = """
SELECT branch.name || '#' || checkpoint.number FROM internal_session AS branch
JOIN checkpoint ON checkpoint.internal_session_id = branch.id
WHERE branch.external_session_id = ? AND branch.name = ? ORDER BY checkpoint.number
"""
