"""The log of a session: its checkpoints by page and filter, and full-text search."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import Connection

from agentgit.async_api import async_twin
from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.queries import (
    LARGEST_PAGE,
    PAGE,
    Filter,
    HitCursor,
    Hits,
    Page,
    TimeCursor,
    mark,
    page_size,
    rank,
)
from agentgit.checkpoints.search_words import Query, query
from agentgit.errors import Corrupt, InvalidInput, NotFound, Unavailable
from agentgit.handles.branching import Tagging
from agentgit.handles.context import BranchRef, SessionAccess
from agentgit.render import html
from agentgit.render.text import Line, Span, plain
from agentgit.render.views.log import lines as log_lines
from agentgit.sessions.reports import OnProgress
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.log import LogPart, of_branches, of_path
from agentgit.store.search.index import CHECKPOINTS_AT_ONCE


class TextSearch(SessionAccess):
    """Finds messages, tool calls and named checkpoints of a session by their words."""

    def find_words(self, text: str, scope: Scope, limit: int, after: str | None, progress: OnProgress | None) -> Hits:
        """Find the messages, calls and checkpoints that contain all words of a text.

        Raises:
            InvalidInput, NotFound, Corrupt: As for `Session.search`.
        """
        wanted, size, before = query(text), page_size(limit), rank(after)
        complete = self._index(progress)
        return self.context.read(lambda c: self._hits(c, scope, wanted, before, size, complete=complete))

    def _hits(
        self, connection: Connection, scope: Scope, wanted: Query, after: HitCursor, limit: int, *, complete: bool
    ) -> Hits:
        parts = LogReader(self.context, self.session_id).parts(connection, scope, points=True)
        if not wanted.terms:  # only punctuation, which matches no text
            return Hits([], complete=complete, names_only=self.context.store.texts.names_only)
        whole = scope.which == "all"
        at_once = limit + 1
        hits = self.context.store.search.hits(
            connection, self.session_id, parts, wanted, after, whole=whole, at_once=at_once
        )
        found = list(islice(hits, at_once))
        more = found[limit - 1][0].cursor if len(found) > limit else None
        return Hits(
            [hit for _, hit in found[:limit]], more, complete=complete, names_only=self.context.store.texts.names_only
        )

    def _index(self, progress: OnProgress | None) -> bool:
        """Index the texts of the session that are not indexed yet, and return whether that was possible."""

        def look(connection: Connection) -> dict[int, int]:
            return self.context.store.texts.unindexed(connection, self.find(connection).id)

        try:
            behind = self.context.read(look)
            total, done = sum(behind.values()), 0
            for branch_id in behind:
                index = functools.partial(self.context.store.texts.index_next, branch_id=branch_id)
                while self.context.store.database.write(index):
                    done += CHECKPOINTS_AT_ONCE
                    if progress is not None:
                        progress(min(done, total), total)
        except (Unavailable, Corrupt):
            return False  # read-only, locked or damaged: the existing index can still be searched
        return True


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The part of a session that is listed or searched.

    Args:
        branch: The branch; None is the current one.
        which: `path`, `branch` or `all`.
    """

    branch: BranchRef = None
    which: str = "path"

    def __post_init__(self) -> None:
        if self.which not in ("path", "branch", "all"):
            raise InvalidInput(f"which must be 'path', 'branch' or 'all', not {self.which!r}.")


class LogReader(SessionAccess):
    """Reads the checkpoints of a session for its log."""

    def author(self, name: str) -> int:
        """Return the id of a user, to list only their checkpoints.

        Raises:
            NotFound: There is no such user.
        """
        users = self.context.store.users
        found = self.context.read(lambda c: users.named(c, name)) if isinstance(name, str) else None
        if found is None:
            raise NotFound(f"There is no user {name!r}.")
        return found.id

    def get(self, ref: CheckpointRef, scope: Scope) -> Checkpoint:
        """Find a checkpoint.

        Raises:
            NotFound, Ambiguous, InvalidInput: As for `Session.get_checkpoint`.
        """

        def look(connection: Connection) -> Checkpoint:
            return self.context.views.checkpoints(connection, [self.checkpoint(connection, ref, scope.branch)])[0]

        return self.context.read(look)

    def page(self, scope: Scope, wanted: Filter, limit: int, after: TimeCursor) -> Page[Checkpoint]:
        """Read one page of a log; see `Log.page`."""

        def look(connection: Connection) -> Page[Checkpoint]:
            parts = self.parts(connection, scope, points=wanted.by_person)
            tagged = self._tagged(connection, wanted.tag)
            rows = self.context.store.log.page(connection, parts, wanted, tagged, after, limit + 1)
            shown = rows[:limit]
            more = TimeCursor(shown[-1].created_at, shown[-1].id).cursor if len(rows) > limit else None
            return Page(self.context.views.checkpoints(connection, shown), more)

        return self.context.read(look)

    def count(self, scope: Scope, wanted: Filter) -> int:
        """Count the checkpoints of a log."""

        def look(connection: Connection) -> int:
            parts = self.parts(connection, scope, points=wanted.by_person)
            return self.context.store.log.count(connection, parts, wanted, self._tagged(connection, wanted.tag))

        return self.context.read(look)

    def parts(self, connection: Connection, scope: Scope, *, points: bool) -> list[LogPart]:
        """Return the parts of branches that a scope covers.

        Args:
            connection: An open connection.
            scope: The path, branch or session.
            points: True to include, on a path, the checkpoints that branches were forked from.
        """
        session, sessions = self.find(connection), self.context.store.sessions
        if scope.which == "all":
            return of_branches(sessions.branches(connection, session.id))
        branch = self.context.lookup.branch(connection, session, scope.branch)
        if scope.which == "branch":
            return of_branches([branch])
        return of_path(sessions.lineage(connection, branch), points=points)

    def _tagged(self, connection: Connection, name: str | None) -> int | None:
        return (
            Tagging(self.context, self.session_id).find_tag(connection, name).checkpoint_id
            if name is not None
            else None
        )


class Log:
    """The checkpoints of a path, a branch or a session, newest first. `Session.log` creates it.

    Checkpoints are read on demand, without their states. The state of a checkpoint is read when it is accessed.

    Args:
        reader: The reader of the session's checkpoints.
        scope: The path, branch or session to list.
        wanted: The filter for the checkpoints.

    Example:
        >>> import agentgit
        >>> from agentgit.demo import EFFECTS, build
        >>> repo = agentgit.open(":memory:")
        >>> agent = repo.wrap(build("shop.db"), session="s", effects=EFFECTS)
        >>> for text in ("order two chairs", "and a lamp"):
        ...     _ = agent.run(text), agent.checkpoint("payment")
        >>> log = repo.session("s").log()
        >>> len(log), [point.metadata["reference"] for point in log.by_name("payment")]
        (6, ['main#6', 'main#3'])
        >>> first = log.page(4)
        >>> [point.metadata["reference"] for point in log.page(4, after=first.next)]
        ['main#2', 'main#1']
    """

    def __init__(self, reader: LogReader, scope: Scope, wanted: Filter) -> None:
        self._reader, self._scope, self._wanted = reader, scope, wanted

    def __repr__(self) -> str:
        asked = {name: value for name, value in vars(self._wanted).items() if value is not None}
        return f"<Log of {self._scope.which}{''.join(f', {name}={value!r}' for name, value in asked.items())}>"

    def _repr_html_(self) -> str:
        return html.pre(self._lines())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": plain(self._lines()), "text/html": self._repr_html_()}

    def _lines(self) -> list[Line]:
        """Render the first page."""
        page = self.page()
        more = [(Span(f"the newest {len(page)} of {len(self)}", "dim"),)] if page.next is not None else []
        return [*log_lines(page.items[::-1]), *more] or [(Span("no checkpoints yet", "dim"),)]

    def __len__(self) -> int:
        return self._reader.count(self._scope, self._wanted)

    def __bool__(self) -> bool:
        return bool(self.page(1).items)

    def __iter__(self) -> Iterator[Checkpoint]:
        page = self.page(LARGEST_PAGE // 5)
        yield from page
        while page.next is not None:
            page = self.page(LARGEST_PAGE // 5, after=page.next)
            yield from page

    @property
    def is_filtered(self) -> bool:
        """True if the log has a filter."""
        return self._wanted != Filter()

    def page(self, limit: int = PAGE, *, after: Checkpoint | str | None = None) -> Page[Checkpoint]:
        """Read one page.

        Checkpoints that are added in the meantime are on no later page, and deleted ones do not shift the pages.

        Args:
            limit: The maximum number of results, 1 to 1,000.
            after: The `next` of the previous page, or the checkpoint to continue after; None for the first page.

        Raises:
            InvalidInput: The limit or the cursor is not valid.
            NotFound: There is no such session, branch or tag.
        """
        if isinstance(after, Checkpoint) and after.created_at is not None:
            after = TimeCursor(after.created_at, after.id or 0).cursor
        return self._reader.page(self._scope, self._wanted, page_size(limit), mark(after))

    apage = async_twin(page)

    def get(self, ref: CheckpointRef) -> Checkpoint | None:
        """Find a checkpoint, as `Session.get_checkpoint` does; None if there is none."""
        try:
            return self._reader.get(ref, self._scope)
        except NotFound:
            return None

    def latest(self, name: str | None = None) -> Checkpoint | None:
        """Return the newest checkpoint, or the newest one with a name; None if there is none."""
        log = self if name is None else self.by_name(name)
        return next(islice(log.page(1), 1), None)

    def by_name(self, name: str) -> Log:
        """Return the log of the checkpoints to which a person gave exactly this name."""
        return self._only(name=name)

    def since(self, when: datetime) -> Log:
        """Return the log of the checkpoints created at this time or later."""
        return self._only(since=when)

    def between(self, start: datetime, end: datetime) -> Log:
        """Return the log of the checkpoints created between two times, both included."""
        return self._only(since=start, until=end)

    def _only(self, **more: Any) -> Log:
        return Log(self._reader, self._scope, self._wanted.narrowed(**more))
