"""Search in a session by words."""

from __future__ import annotations

import functools
from itertools import islice

from sqlalchemy import Connection

from agentgit.checkpoints.queries import Hits, Rank, page_size, rank
from agentgit.checkpoints.search_words import Query, query
from agentgit.errors import Corrupt, Unavailable
from agentgit.handles.context import SessionAccess
from agentgit.handles.log import LogReader, Scope
from agentgit.sessions.maintenance import Progress
from agentgit.store.search.index import CHECKPOINTS_AT_ONCE


class TextSearch(SessionAccess):
    """Finds messages, tool calls and named checkpoints of a session by their words."""

    def find_words(self, text: str, scope: Scope, limit: int, after: str | None, progress: Progress | None) -> Hits:
        """Find what has all words of a text.

        Raises:
            InvalidInput, NotFound, Corrupt: As `Session.search`.
        """
        wanted, size, before = query(text), page_size(limit), rank(after)
        complete = self._index(progress)
        return self.context.read(lambda c: self._hits(c, scope, wanted, before, size, complete=complete))

    def _hits(
        self, connection: Connection, scope: Scope, wanted: Query, after: Rank, limit: int, *, complete: bool
    ) -> Hits:
        parts = LogReader(self.context, self.session_id).parts(connection, scope, points=True)
        if not wanted.terms:  # nothing but signs, and no text is found by these
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

    def _index(self, progress: Progress | None) -> bool:
        """Index the texts of the session that are not indexed yet; return whether that was possible."""

        def look(connection: Connection) -> dict[int, int]:
            return self.context.store.texts.behind(connection, self.find(connection).id)

        try:
            behind = self.context.read(look)
            total, done = sum(behind.values()), 0
            for branch_id in behind:
                index = functools.partial(self.context.store.texts.follow, branch_id=branch_id)
                while self.context.store.database.write(index):
                    done += CHECKPOINTS_AT_ONCE
                    if progress is not None:
                        progress(min(done, total), total)
        except (Unavailable, Corrupt):
            return False  # read only, locked or damaged: what is known can be searched all the same
        return True
