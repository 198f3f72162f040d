"""The verbs that find: the log by page and by filter, search by words, and tags."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import Connection

from agentgit.auth.roles import EDITOR
from agentgit.checkpoints import Checkpoint, references
from agentgit.checkpoints.checkpoint import Checkpoints
from agentgit.checkpoints.queries import (
    LARGEST_PAGE,
    PAGE,
    Filter,
    Hits,
    Mark,
    Page,
    Rank,
    Tag,
    Tags,
    mark,
    page_size,
    rank,
)
from agentgit.checkpoints.search_words import Query, query
from agentgit.errors import Conflict, Corrupt, InvalidInput, NotFound, Unavailable
from agentgit.handles.session import BranchRef, SessionRef, Verbs
from agentgit.render import html
from agentgit.render.lines import Line, Span, plain
from agentgit.render.log import lines as log_lines
from agentgit.sessions import ExternalSession
from agentgit.sessions.maintenance import Progress
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.log import LogPart, of_branches, of_path
from agentgit.store.search.index import CHECKPOINTS_AT_ONCE
from agentgit.store.sql.tables import CHECKPOINT


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The part of a session that is searched.

    Args:
        session: The session; None is the one that moved last.
        branch: The branch; None is the current one.
        which: `path`, `branch` or `all`.
    """

    session: SessionRef = None
    branch: BranchRef = None
    which: str = "path"


class Log:
    """The checkpoints of a path, a branch or a session, the newest first. Made by `Repository.log`.

    Nothing is read before it is asked for, and then columns only: states are read when they are looked at.

    Args:
        repository: The repository whose checkpoints are listed.
        scope: The path, branch or session.
        wanted: The checkpoints that are wanted.

    Example:
        >>> import agentgit
        >>> from agentgit.demo import EFFECTS, build
        >>> repo = agentgit.open(":memory:")
        >>> agent = repo.wrap(build("shop.db"), session="s", effects=EFFECTS)
        >>> for text in ("order two chairs", "and a lamp"):
        ...     _ = agent.run(text), agent.checkpoint("payment")
        >>> log = repo.log("s")
        >>> len(log), [point.metadata["reference"] for point in log.by_name("payment")]
        (6, ['main#6', 'main#3'])
        >>> first = log.page(4)
        >>> [point.metadata["reference"] for point in log.page(4, after=first.next)]
        ['main#2', 'main#1']
    """

    def __init__(self, repository: Finds, scope: Scope, wanted: Filter) -> None:
        self._repository, self._scope, self._wanted = repository, scope, wanted

    def __repr__(self) -> str:
        asked = {name: value for name, value in vars(self._wanted).items() if value is not None}
        return f"<Log of {self._scope.which}{''.join(f', {name}={value!r}' for name, value in asked.items())}>"

    def _repr_html_(self) -> str:
        return html.pre(self._lines())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": plain(self._lines()), "text/html": self._repr_html_()}

    def _lines(self) -> list[Line]:
        """Draw the first page."""
        page = self.page()
        more = [(Span(f"the newest {len(page)} of {len(self)}", "dim"),)] if page.next is not None else []
        return [*log_lines(page.items[::-1]), *more] or [(Span("no checkpoints yet", "dim"),)]

    def __len__(self) -> int:
        return self._repository.count_log(self._scope, self._wanted)

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
        """True if it leaves anything out."""
        return self._wanted != Filter()

    def page(self, limit: int = PAGE, *, after: Checkpoint | str | None = None) -> Page[Checkpoint]:
        """Read a part of it. What is added meanwhile is on no later page, and what is deleted moves nothing.

        Args:
            limit: The largest number of results, 1 to 1,000.
            after: The `next` of the page before, or a checkpoint to go on behind; None for the first one.

        Raises:
            InvalidInput: The limit or the cursor is none.
            NotFound: There is no such session, branch or tag.
        """
        if isinstance(after, Checkpoint) and after.created_at is not None:
            after = Mark(after.created_at, after.id or 0).cursor
        return self._repository.page_of_log(self._scope, self._wanted, page_size(limit), mark(after))

    async def apage(self, limit: int = PAGE, *, after: Checkpoint | str | None = None) -> Page[Checkpoint]:
        """Read a part of it, as `page`, while the event loop goes on."""
        return await asyncio.to_thread(self.page, limit, after=after)

    def get(self, ref: CheckpointRef) -> Checkpoint | None:
        """Find a checkpoint, as `Repository.checkpoint` does; None if there is none."""
        try:
            return self._repository.checkpoint(ref, self._scope.session, branch=self._scope.branch)
        except NotFound:
            return None

    def latest(self, name: str | None = None) -> Checkpoint | None:
        """Return the newest checkpoint, or the newest one of a name; None if there is none."""
        log = self if name is None else self.by_name(name)
        return next(islice(log.page(1), 1), None)

    def by_name(self, name: str) -> Log:
        """Leave only those that a person called exactly so."""
        return self._only(name=name)

    def since(self, when: datetime) -> Log:
        """Leave only those made then or later."""
        return self._only(since=when)

    def between(self, start: datetime, end: datetime) -> Log:
        """Leave only those made from one time to another, both included."""
        return self._only(since=start, until=end)

    def _only(self, **more: Any) -> Log:
        return Log(self._repository, self._scope, self._wanted.narrowed(**more))


class Finds(Verbs):
    """Methods of a repository that find a checkpoint again."""

    def checkpoints(self, session: SessionRef = None, branch: BranchRef = None) -> list[Checkpoint]:
        """List the checkpoints from the root of a session to the head of a branch, oldest first.

        Args:
            session: The session; None is the one that moved last.
            branch: The branch; None is the current one.
        """

        def look(connection: Connection) -> list[Checkpoint]:
            found = self.lookup.session(connection, session)
            rows = self.lookup.path(connection, self.lookup.branch(connection, found, branch))
            return Checkpoints(self.views.checkpoints(connection, rows))

        return self._read(look)

    def checkpoint(self, ref: CheckpointRef, session: SessionRef = None, *, branch: BranchRef = None) -> Checkpoint:
        """Find a checkpoint.

        Args:
            ref: Its id, a tag, its name, `branch`, `branch#7`, `branch~2`, `HEAD`, `HEAD~1`, or the Checkpoint itself.
            session: None is the one that moved last, or any for an id.
            branch: The branch of `HEAD`; None is the current one.

        Raises:
            NotFound: Nothing is called so; near names are told.
            Ambiguous: Several things are.
            InvalidInput: It belongs to another session.
        """

        def look(connection: Connection) -> Checkpoint:
            owner = None
            if session is None and isinstance(ref, (int, Checkpoint)):
                owner = self.lookup.owner_of(connection, ref if isinstance(ref, int) else ref.id or 0)
            found = self.lookup.session(connection, owner or session)
            on = self.lookup.branch(connection, found, branch)
            return self.views.checkpoints(connection, [self.lookup.checkpoint(connection, found, on, ref)])[0]

        return self._read(look)

    # -- the log

    def log(
        self,
        session: SessionRef = None,
        branch: BranchRef = None,
        *,
        which: str = "path",
        name: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        tag: str | None = None,
        author: str | None = None,
        auto: bool | None = None,
    ) -> Log:
        """List checkpoints, the newest first, by page; all conditions hold at once.

        The first checkpoint of a branch stands for the one that it left from. Asked for by name, by tag or with
        `auto=False`, that one itself is on the path.

        Args:
            session: The session; None is the one that moved last.
            branch: The branch; None is the current one.
            which: `path` (from the head of the branch to the root of the session), `branch` (only those that were made
                on it) or `all` (those of all branches of the session).
            name: Only those that a person called exactly so.
            since: Only those made then or later, a time with a zone.
            until: Only those made then or earlier.
            tag: Only the one that has this tag.
            author: Only those that this user made.
            auto: True for automatic ones only, False for those that somebody asked for.

        Raises:
            InvalidInput: A condition cannot be meant.
            NotFound: There is no such user. Of session, branch and tag it is raised where the log is read.
        """
        if which not in ("path", "branch", "all"):
            raise InvalidInput(f"which={which!r} means nothing; it can be path, branch or all.")
        by = self._author(author) if author is not None else None
        wanted = Filter(name=name, since=since, until=until, tag=tag, author=by, auto=auto)
        return Log(self, Scope(session=session, branch=branch, which=which), wanted)

    def _author(self, name: str) -> int:
        found = self._read(lambda c: self.store.users.named(c, name)) if isinstance(name, str) else None
        if found is None:
            raise NotFound(f"There is no user {name!r}.")
        return found.id

    def page_of_log(self, scope: Scope, wanted: Filter, limit: int, after: Mark) -> Page[Checkpoint]:
        """Read a part of a log, see `Log.page`."""

        def look(connection: Connection) -> Page[Checkpoint]:
            session, parts = self._parts(connection, scope, points=wanted.by_person)
            tagged = self._tagged(connection, session, wanted.tag)
            rows = self.store.log.page(connection, parts, wanted, tagged, after, limit + 1)
            shown = rows[:limit]
            more = Mark(shown[-1].created_at, shown[-1].id).cursor if len(rows) > limit else None
            return Page(self.views.checkpoints(connection, shown), more)

        return self._read(look)

    def count_log(self, scope: Scope, wanted: Filter) -> int:
        """Count the checkpoints of a log, see `Log`."""

        def look(connection: Connection) -> int:
            session, parts = self._parts(connection, scope, points=wanted.by_person)
            return self.store.log.count(connection, parts, wanted, self._tagged(connection, session, wanted.tag))

        return self._read(look)

    def _parts(self, connection: Connection, scope: Scope, *, points: bool) -> tuple[ExternalSession, list[LogPart]]:
        session = self.lookup.session(connection, scope.session)
        if scope.which == "all":
            return session, of_branches(self.store.sessions.branches(connection, session.id))
        branch = self.lookup.branch(connection, session, scope.branch)
        if scope.which == "branch":
            return session, of_branches([branch])
        return session, of_path(self.store.sessions.lineage(connection, branch), points=points)

    def _tagged(self, connection: Connection, session: ExternalSession, name: str | None) -> int | None:
        return self._tag(connection, session, name).checkpoint_id if name is not None else None

    # -- search

    def search(
        self,
        text: str,
        session: SessionRef = None,
        branch: BranchRef = None,
        *,
        all_branches: bool = False,
        limit: int = 20,
        after: str | None = None,
        progress: Progress | None = None,
    ) -> Hits:
        """Find messages, tool calls and named checkpoints by their words.

        What people wrote at checkpoints (names and descriptions) comes first, then messages and calls, each the newest
        first. All words must be in one text, whole, whatever their case and accents. What stands together in the query,
        like `create_order` or `日本`, is found where it stands together. Nothing in it is an operator. In an
        encrypted database only the names of checkpoints are found, and the answer says so (`names_only`).

        Args:
            text: The words to look for.
            session: The session; None is the one that moved last.
            branch: None is the current one; its path to the root is searched.
            all_branches: True to search all branches of the session.
            limit: The largest number of results, 1 to 1,000.
            after: The `next` of the page before; None for the first one.
            progress: Told how many of the checkpoints are looked through whose words are not known yet, as after an
                import.

        Raises:
            InvalidInput: The text is empty or too long, or the limit or the cursor is none.
            NotFound: There is no such session or branch.
            Corrupt: A text that was found is damaged.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> answer = repo.wrap(build("shop.db"), session="s", effects=EFFECTS).run("order two chairs")
            >>> for hit in repo.search("TWO chairs"):
            ...     print(hit.reference, hit.role, hit.snippet)
            main#2 user order two chairs
        """
        wanted, size, before = query(text), page_size(limit), rank(after)
        complete = self._take_in(session, progress)

        def look(connection: Connection) -> Hits:
            return self._hits(
                connection,
                Scope(session=session, branch=branch, which="all" if all_branches else "path"),
                wanted,
                before,
                size,
                complete=complete,
            )

        return self._read(look)

    def _hits(
        self, connection: Connection, scope: Scope, wanted: Query, after: Rank, limit: int, *, complete: bool
    ) -> Hits:
        session, parts = self._parts(connection, scope, points=True)
        if not wanted.terms:  # nothing but signs, and no text is found by these
            return Hits([], complete=complete, names_only=self.store.texts.names_only)
        whole = scope.which == "all"
        at_once = limit + 1
        hits = self.store.search.hits(connection, session.id, parts, wanted, after, whole=whole, at_once=at_once)
        found = list(islice(hits, at_once))
        more = found[limit - 1][0].cursor if len(found) > limit else None
        return Hits([hit for _, hit in found[:limit]], more, complete=complete, names_only=self.store.texts.names_only)

    def _take_in(self, session: SessionRef, progress: Progress | None) -> bool:
        """Make the texts of a session known that are not yet; tell whether that was possible."""

        def look(connection: Connection) -> dict[int, int]:
            return self.store.texts.behind(connection, self.lookup.session(connection, session).id)

        try:
            behind = self._read(look)
            total, done = sum(behind.values()), 0
            for branch_id in behind:
                while self.store.database.write(lambda c, one=branch_id: self.store.texts.follow(c, one)):  # type: ignore[misc]
                    done += CHECKPOINTS_AT_ONCE
                    if progress is not None:
                        progress(min(done, total), total)
        except (Unavailable, Corrupt):
            return False  # read only, locked or damaged: what is known can be searched all the same
        return True

    # -- tags

    def tag(
        self,
        ref: CheckpointRef,
        name: str,
        session: SessionRef = None,
        *,
        branch: BranchRef = None,
        description: str | None = None,
    ) -> Tag:
        """Tag a checkpoint: the tag is a name for the place, unique in the session. A tagged checkpoint is kept.

        Args:
            ref: The checkpoint, as `checkpoint` takes it.
            name: A text of up to 200 characters that is not a number, not HEAD, and without # ~ @.
            session: The session, as `checkpoint` takes it.
            branch: The name or id of the branch; None is the current one.
            description: A sentence about it.

        Raises:
            InvalidInput: The name is not valid.
            Conflict: Another checkpoint has this tag, or a branch this name.
            NotFound, Ambiguous: As `checkpoint`.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> answer = repo.wrap(build("shop.db"), session="s", effects=EFFECTS).run("order two chairs")
            >>> repo.tag("HEAD", "v1").reference, repo.checkpoint("v1").metadata["tags"]
            ('main#2', ['v1'])
        """
        references.place_name(name, "tag")
        if description is not None and not isinstance(description, str):
            raise InvalidInput(f"A description is a text, not {description!r}.")
        found = self.checkpoint(ref, session, branch=branch)

        def give(connection: Connection) -> Tag:
            branch_id = found.internal_session_id or 0
            self._admit(connection, self.store.sessions.branch(connection, branch_id).external_session_id)
            point = self.store.checkpoints.find(connection, CHECKPOINT.c.id == found.id)
            if not point:
                raise NotFound(f"Checkpoint {found.metadata['reference']} was deleted meanwhile.")
            self.store.sessions.lock(connection, point[0].external_session_id)
            branches = self.store.sessions.branches(connection, point[0].external_session_id)
            if name in {row.name for row in branches}:
                raise Conflict(f"There is a branch {name}, which names the place already. Choose another name.")
            return self.store.tags.add(connection, point[0], name, description, self.user.id)

        return self._change(give)

    def untag(self, name: str, session: SessionRef = None) -> Tag:
        """Take a tag away; the checkpoint stays as it is. Gives what it was.

        Raises:
            NotFound: The session has no such tag.
        """

        def take(connection: Connection) -> Tag:
            found = self.lookup.session(connection, session, EDITOR)
            tag = self._tag(connection, found, name)
            self.store.tags.remove(connection, found.id, name, self.user.id)
            return tag

        return self._change(take)

    def tags(self, session: SessionRef = None) -> list[Tag]:
        """List the tags of a session, the newest first."""
        return Tags(self._read(lambda c: self.store.tags.all(c, self.lookup.session(c, session).id)))

    def _tag(self, connection: Connection, session: ExternalSession, name: str) -> Tag:
        found = self.store.tags.find(connection, session.id, references.place_name(name, "tag"))
        if found is None:
            names = [tag.name for tag in self.store.tags.all(connection, session.id)]
            raise NotFound(
                f"Session {session.session_name} has no tag {name!r}. List them: repo.tags(), or agentgit tag.",
                near=references.near(name, names),
            )
        return found
