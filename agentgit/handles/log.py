"""The log of a session: its checkpoints by page and filter, and full-text search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from agentgit.async_api import async_twin
from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.checkpoint import Checkpoints, record_of
from agentgit.checkpoints.queries import (
    DEFAULT_PAGE_SIZE,
    MAX_PAGE_SIZE,
    Filter,
    HitCursor,
    Hits,
    Page,
    TimeCursor,
    parse_hit_cursor,
    parse_time_cursor,
    require_page_size,
)
from agentgit.checkpoints.search_words import Query, parse_query
from agentgit.errors import Corrupt, InvalidInput, NotFound, Unavailable
from agentgit.handles.branching import Tagging
from agentgit.handles.context import BranchRef, SessionAccess
from agentgit.render import html
from agentgit.render.view import Span, View, plain
from agentgit.render.views.checkpoints import log
from agentgit.sessions.reports import OnProgress
from agentgit.store.queries.graph_points import read_questions
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.log import LogPart, parts_of_branches, parts_of_path
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.values import Tabular


class TextSearch(SessionAccess):
    def find_words(self, text: str, scope: Scope, limit: int, after: str | None, progress: OnProgress | None) -> Hits:
        search_query, size, cursor = parse_query(text), require_page_size(limit), parse_hit_cursor(after)
        is_complete = self._index_texts(progress)
        return self.context.read(
            lambda c: self._find_hits(c, scope, search_query, cursor, size, is_complete=is_complete)
        )

    def _find_hits(
        self,
        transaction: Reading,
        scope: Scope,
        search_query: Query,
        after: HitCursor,
        limit: int,
        *,
        is_complete: bool,
    ) -> Hits:
        parts = LogReader(self.context, self.session_id).parts(transaction, scope, points=True)
        if not search_query.terms:  # only punctuation, which matches no text
            return Hits([], complete=is_complete, names_only=self.context.store.search_index.names_only)
        fetch_count = limit + 1
        hits = self.context.store.search.hits(
            transaction, self.session_id, parts, search_query, after, page_size=fetch_count
        )
        page = list(islice(hits, fetch_count))
        next_cursor = page[limit - 1][0].cursor if len(page) > limit else None
        return Hits(
            [hit for _, hit in page[:limit]],
            next_cursor,
            complete=is_complete,
            names_only=self.context.store.search_index.names_only,
        )

    def _index_next(self, transaction: Writing) -> int:
        return self.context.store.search_index.index_next(transaction, self.session_id)

    def _index_texts(self, progress: OnProgress | None) -> bool:
        """Index the texts of the session that are not indexed yet, and return whether that was possible."""

        index = self.context.store.search_index

        def count_unindexed(transaction: Reading) -> int:
            return index.count_unindexed(transaction, self.load_session(transaction).id)

        try:
            total, done = self.context.read(count_unindexed), 0
            while done < total and (count := self.context.store.database.write(self._index_next)):
                done += count
                if progress is not None:
                    progress(done, total)
        except (Unavailable, Corrupt):
            return False  # read-only, locked or damaged: the existing index can still be searched
        return True


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The part of a session that is listed or searched."""

    branch: BranchRef = None
    which: str = "path"

    def __post_init__(self) -> None:
        if self.which not in ("path", "branch", "all"):
            raise InvalidInput(f"which must be 'path', 'branch' or 'all', not {self.which!r}.")


class LogReader(SessionAccess):
    def author_id(self, name: str) -> int:
        users = self.context.store.users
        user = self.context.read(lambda c: users.find_by_name(c, name)) if isinstance(name, str) else None
        if user is None:
            raise NotFound(f"There is no user {name!r}.")
        return user.id

    def get(self, ref: CheckpointRef, scope: Scope) -> Checkpoint:

        def load(transaction: Reading) -> Checkpoint:
            return self.context.read_models.checkpoints(
                transaction, [self.find_checkpoint(transaction, ref, scope.branch)]
            )[0]

        return self.context.read(load)

    def page(self, scope: Scope, conditions: Filter, limit: int, after: TimeCursor) -> Page[Checkpoint]:

        def load(transaction: Reading) -> Page[Checkpoint]:
            parts = self.parts(transaction, scope, points=conditions.by_person)
            tagged_id = self._tagged_checkpoint_id(transaction, conditions.tag)
            rows = self.context.store.log.page(transaction, parts, conditions, tagged_id, after, limit + 1)
            page_rows = rows[:limit]
            next_cursor = TimeCursor(page_rows[-1].created_at, page_rows[-1].id).cursor if len(rows) > limit else None
            return Page(self.context.read_models.checkpoints(transaction, page_rows), next_cursor)

        return self.context.read(load)

    def questions(self, scope: Scope) -> list[Any]:

        def load(transaction: Reading) -> list[Any]:
            branch = self.find_branch(transaction, scope.branch)
            return read_questions(self.context.store, transaction, [branch]).get(branch.id, [])

        return self.context.read(load)

    def count(self, scope: Scope, conditions: Filter) -> int:

        def load(transaction: Reading) -> int:
            parts = self.parts(transaction, scope, points=conditions.by_person)
            return self.context.store.log.count(
                transaction, parts, conditions, self._tagged_checkpoint_id(transaction, conditions.tag)
            )

        return self.context.read(load)

    def parts(self, transaction: Reading, scope: Scope, *, points: bool) -> list[LogPart]:
        session, sessions = self.load_session(transaction), self.context.store.sessions
        if scope.which == "all":
            return parts_of_branches(sessions.branches(transaction, session.id))
        branch = self.context.lookup.branch(transaction, session.id, scope.branch)
        if scope.which == "branch":
            return parts_of_branches([branch])
        return parts_of_path(sessions.lineage(transaction, branch), with_branch_points=points)

    def _tagged_checkpoint_id(self, transaction: Reading, name: str | None) -> int | None:
        return (
            Tagging(self.context, self.session_id).find_tag(transaction, name).checkpoint_id
            if name is not None
            else None
        )


class Log(Tabular):
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

    _COLUMNS = Checkpoints._COLUMNS

    def __init__(self, reader: LogReader, scope: Scope, wanted: Filter) -> None:
        self._reader, self._scope, self._conditions = reader, scope, wanted

    def __repr__(self) -> str:
        conditions = {name: value for name, value in vars(self._conditions).items() if value is not None}
        return f"<Log of {self._scope.which}{''.join(f', {name}={value!r}' for name, value in conditions.items())}>"

    def _repr_html_(self) -> str:
        return html.page(self._view())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": plain(self._view()), "text/html": self._repr_html_()}

    def _records(self) -> Iterable[Any]:
        return map(record_of, self)

    def _view(self) -> View:
        """Show the first page."""
        page = self.page()
        footer = [(Span(f"the newest {len(page)} of {len(self)}", "dim"),)] if page.next is not None else []
        return [*log(page.items[::-1], self.questions), *footer]

    def __len__(self) -> int:
        return self._reader.count(self._scope, self._conditions)

    def __bool__(self) -> bool:
        return bool(self.page(1).items)

    def __iter__(self) -> Iterator[Checkpoint]:
        page = self.page(MAX_PAGE_SIZE // 5)
        yield from page
        while page.next is not None:
            page = self.page(MAX_PAGE_SIZE // 5, after=page.next)
            yield from page

    @property
    def is_filtered(self) -> bool:
        """True if the log has a filter."""
        return self._conditions != Filter()

    @property
    def questions(self) -> list[Any]:
        """The questions of the graph at the head of the branch; empty for a log with a filter or of all branches."""
        return self._reader.questions(self._scope) if self._scope.which != "all" and not self.is_filtered else []

    def page(self, limit: int = DEFAULT_PAGE_SIZE, *, after: Checkpoint | str | None = None) -> Page[Checkpoint]:
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
        return self._reader.page(self._scope, self._conditions, require_page_size(limit), parse_time_cursor(after))

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

    aget, alatest, ato_frame = async_twin(get), async_twin(latest), async_twin(Tabular.to_frame)

    def by_name(self, name: str) -> Log:
        """Return the log of the checkpoints to which a person gave exactly this name."""
        return self._narrow(name=name)

    def since(self, when: datetime) -> Log:
        """Return the log of the checkpoints created at this time or later.

        The time itself is included, as in `between`. For checkpoints strictly after another one, add the smallest
        step of the clock: `log.since(checkpoint.created_at + timedelta(microseconds=1))`.
        """
        return self._narrow(since=when)

    def between(self, start: datetime, end: datetime) -> Log:
        """Return the log of the checkpoints created between two times, both included."""
        return self._narrow(since=start, until=end)

    def _narrow(self, **conditions: Any) -> Log:
        return Log(self._reader, self._scope, self._conditions.narrowed(**conditions))
