"""The verbs that keep a database in order: what sessions keep, space back, and whether everything is whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress

from sqlalchemy import Connection

from agentgit.auth import User
from agentgit.auth.roles import OWNER, VIEWER
from agentgit.checkpoints.retention import Retention, Thinned, Verdict
from agentgit.errors import InvalidInput, NotFound, Unavailable
from agentgit.handles.session import BranchRef, SessionRef, Verbs
from agentgit.sessions import ExternalSession
from agentgit.sessions.maintenance import Checked, Parts, Progress, Reclaimed
from agentgit.sessions.stats import Prices, Stats, expect_prices
from agentgit.store.audit.trail import note
from agentgit.store.maintenance import retention as retention_store
from agentgit.store.maintenance import statistics
from agentgit.store.maintenance.fsck.check import HASHES, HEADS, REFERENCES, fsck
from agentgit.store.maintenance.gc import Collected, collect, sizes
from agentgit.store.maintenance.unused_checkpoints import Spare
from agentgit.store.maintenance.unused_checkpoints import find as find_steps
from agentgit.store.sql.tables import CHECKPOINT


class Upkeep(Verbs):
    """Methods of a repository that keep its database small and intact."""

    # -- what sessions keep

    def retention(self, session: SessionRef = None) -> Retention | None:
        """Return what a session keeps of its checkpoints; None is everything.

        Args:
            session: The session; None is the one that moved last.
        """
        return self._read(lambda c: retention_store.read(c, self.store, self.lookup.session(c, session).id))

    def set_retention(self, retention: Retention | None, session: SessionRef = None) -> Retention | None:
        """Set which checkpoints a session keeps, and return the previous setting.

        From then on, checkpoints that it does not keep are removed automatically, whenever a turn ends or a checkpoint
        is made. The conversation and the tool track stay, and so does each checkpoint that something needs: the head of
        a branch, where a branch leaves or begins, where a rollback went, what waits for an answer, and the way back
        before an effect that is not resolved.

        Args:
            retention: None to keep everything from now on.
            session: The session; None is the one that moved last.

        Raises:
            InvalidInput: It is not a `Retention`.

        Example:
            >>> import agentgit
            >>> from agentgit.checkpoints import Retention
            >>> repo = agentgit.open(":memory:")
            >>> session = repo.ensure_session("support-42")
            >>> repo.set_retention(Retention(max_checkpoints=30), session)
            >>> print(repo.retention(session))
            past 50, the first, the last 20 and the newest of each name; at most 30
        """
        if retention is not None and not isinstance(retention, Retention):
            raise InvalidInput(f"{retention!r} is no retention; give Retention(max_checkpoints=...), or None.")

        def change(connection: Connection) -> Retention | None:
            session_id = self.lookup.session(connection, session, OWNER).id
            before = retention_store.read(connection, self.store, session_id)
            retention_store.write(connection, self.store, session_id, retention)
            note(
                connection,
                self.store.tenant_id,
                "retention.changed",
                session_id=session_id,
                user_id=self.user.id,
                retention=retention.to_dict() if retention is not None else None,
            )
            return before

        return self._change(change)

    def thin(self, session: SessionRef = None, retention: Retention | None = None, *, dry_run: bool = False) -> Thinned:
        """Delete the checkpoints that a session does not keep, now; tell of each whether it goes, and why.

        Args:
            session: The session; None is the one that moved last.
            retention: The retention to apply this time; None is the one that `set_retention` set.
            dry_run: True to tell only. With `max_bytes` it also tells whether the limit can be kept: `is_within`.

        Raises:
            InvalidInput: Nobody said what the session keeps.
        """

        def work(connection: Connection) -> Thinned:
            found = self.lookup.session(connection, session, VIEWER if dry_run else OWNER)
            keeps = retention or retention_store.read(connection, self.store, found.id)
            if keeps is None:
                raise InvalidInput(
                    f"Session {found.session_name} keeps everything. Say what it keeps with "
                    "set_retention(Retention(...)), or give a retention here."
                )
            if dry_run:
                judged = retention_store.verdicts(connection, self.store, found.id, keeps)
            else:
                judged = retention_store.thin(connection, self.store, found.id, keeps, self.user.id)
            return Thinned(
                session_name=found.session_name,
                retention=keeps,
                verdicts=tuple(judged.verdicts),
                dry_run=dry_run,
                bytes_before=judged.bytes_before,
                bytes_after=judged.bytes_after,
            )

        if dry_run:
            return self._read(work)
        done = self._change(work)
        if done.gone:
            self._engine().files.release()
        return done

    def clear(self, session: SessionRef = None, branch: BranchRef = None) -> int:
        """Delete all checkpoints of a session that nothing needs, also the named ones; tell how many went.

        Args:
            session: The session; None is the one that moved last.
            branch: Only those that this branch made; None for all.
        """

        def work(connection: Connection) -> int:
            found = self.lookup.session(connection, session, OWNER)
            of = self.lookup.branch(connection, found, branch).id if branch is not None else None
            judged = retention_store.clear(connection, self.store, found.id, branch_id=of, user_id=self.user.id)
            return sum(one.goes for one in judged)

        gone = self._change(work)
        self._engine().files.release()
        return gone

    def _deleted(self, ids: Collection[int]) -> list[Verdict]:
        """Delete those of some checkpoints of one session that nothing needs; tell what became of each."""

        def work(connection: Connection) -> list[Verdict]:
            for row in self.store.checkpoints.find(connection, CHECKPOINT.c.id.in_(list(ids)[:1])):
                self._admit(connection, row.external_session_id)
                return retention_store.clear(
                    connection, self.store, row.external_session_id, ids=ids, user_id=self.user.id
                )
            return []

        judged = self._change(work, durable=False)
        self._engine().files.release()
        return judged

    # -- space back

    def gc(
        self,
        *,
        dry_run: bool = False,
        steps: bool = True,
        shrink: bool = True,
        imports: bool = False,
        progress: Progress | None = None,
    ) -> Reclaimed:
        """Return the space of what nothing needs any more; return what it was.

        Each session that has a retention is thinned out first. Then go: the graph checkpoints between checkpoints, the
        values and lists that nobody refers to, and the snapshots of files that no checkpoint has. It is
        safe beside turns and other processes; those that write wait for it. Branches that somebody runs are left as
        they are.

        Args:
            dry_run: True to tell only what would go.
            steps: False to keep what LangGraph saved between the checkpoints; `get_state_history` has it.
            shrink: False to keep the free space in the database, for what comes next.
            imports: True to also delete what imports have left half way.
            progress: Told how much is done, and of how much: sessions, branches, rows and values that are looked at.
                It is called inside of a transaction, so it may read, but not write to this database.

        Raises:
            Conflict: `progress` wrote to this database, or read one in memory; nothing of that transaction was stored.
        """
        self._expect_admin("gc")
        before = self.store.database.size()
        kept = self._read(lambda c: retention_store.with_retention(c, self.store))
        parts = Parts(progress, self._read(lambda c: self._sizes(c, kept)) if progress is not None else None)
        without = self._thin_all(parts.over("sessions", ([one] for one in kept)), dry_run=dry_run)

        def spare(connection: Connection) -> Iterator[Spare]:
            return find_steps(connection, self.store.tenant_id, without if dry_run else (), parts=parts)

        def work(connection: Connection) -> Collected:
            wanted = spare if steps else None
            blobs = self.store.graphs.content.blobs
            found = collect(connection, blobs, dry_run=dry_run, imports=imports, find_steps=wanted, parts=parts)
            if not dry_run:
                note(connection, self.store.tenant_id, "gc.done", user_id=self.user.id, **found._asdict())
            return found

        if dry_run:
            snapshots = self._read(lambda c: len(self.store.snapshots.free(c, without)))
            collected = self._read(work)
        else:
            snapshots = self._engine().files.release(collect=True)
            collected = self._change(work)
        problem = self._shrink() if shrink and not dry_run and any((*collected, *without)) else ""
        parts.end("space")
        return Reclaimed(
            **collected._asdict(),
            checkpoints=len(without),
            snapshots=snapshots,
            disk_before=before,
            disk_after=before if dry_run else self.store.database.size(),
            dry_run=dry_run,
            problem=problem,
        )

    def _sizes(self, connection: Connection, kept: Sequence[int]) -> dict[str, int]:
        """Count the things of each part of a collection; giving the space back copies all that is stored."""
        found = sizes(connection, self.store.tenant_id)
        return {"sessions": len(kept), **found, "space": found["values"]}

    def _thin_all(self, kept: Iterable[int], *, dry_run: bool) -> set[int]:
        """Thin out the sessions that have a retention; give the checkpoints that went, or would."""
        gone: set[int] = set()
        for session_id in kept:

            def work(connection: Connection, session_id: int = session_id) -> Sequence[Verdict]:
                keeps = retention_store.read(connection, self.store, session_id)
                if keeps is None:  # somebody has just changed it
                    return []
                judge = retention_store.verdicts if dry_run else retention_store.thin
                return judge(connection, self.store, session_id, keeps).verdicts

            with suppress(NotFound):  # somebody has just erased it
                judged = self._read(work) if dry_run else self._change(work, durable=False)
                gone.update(one.point.id for one in judged if one.goes)
        return gone

    def _shrink(self) -> str:
        """Release the free space of the database.

        Returns:
            Why that was not possible, if somebody holds the database; else an empty text.
        """
        try:
            self.store.database.shrink()
        except Unavailable as error:
            return f"The space is free in the database, and its files are as large as before: {error}"
        return ""

    # -- whether everything is whole

    def fsck(self, level: int = HASHES, *, progress: Progress | None = None) -> Checked:
        """Check the whole database; nothing is changed. It sees one moment, so turns may run beside it.

        Args:
            level: 1 looks whether what rows refer to is there. 2 also hashes every value and state. 3 also makes the
                state of every head, as its next turn would, and hashes that.
            progress: Told how many rows are done, and of how many.

        Returns:
            What is wrong; each finding names the row, and says what to do.

        Raises:
            InvalidInput: There is no such level.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> repo.fsck(level=3).is_sound
            True
        """
        if isinstance(level, bool) or level not in (REFERENCES, HASHES, HEADS):
            raise InvalidInput(f"There is no level {level!r}; give 1 (references), 2 (hashes too) or 3 (heads too).")
        self._expect_admin("fsck")
        return fsck(self.store, level, progress)

    # -- figures

    def stats(
        self,
        of: SessionRef | User = None,
        *,
        branch: BranchRef = None,
        prices: Prices | None = None,
        storage: bool = False,
    ) -> Stats:
        """Count checkpoints, calls, rollbacks, reversals and tokens, in all and for each branch; no state is read.

        Tokens are counted by themselves, from the `usage_metadata` of the messages as they are saved; those of a branch
        are what was used on it, without what it began with.

        Args:
            of: A session; None is the one that moved last. `repo.user` is all your sessions.
            branch: Only this branch of the session; None is all.
            prices: What a million tokens cost by the name of the model, of input and of output: `{"m": (1.25, 10)}`;
                a third and a fourth number are for input that a cache had, and that was put into one; `*` is every
                other model.
            storage: True to also measure what it takes of the database, which looks at all that is stored.

        Raises:
            NotFound: There is no such session, branch or user.
            InvalidInput: A price is none.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> answer = repo.wrap(build("shop.db"), session="s", effects=EFFECTS).run("order two chairs")
            >>> repo.stats("s").total.calls
            {'done': 1}
        """
        given = expect_prices(prices) if prices is not None else None

        def look(connection: Connection) -> Stats:
            sessions, subject = self._counted(connection, of)
            rows = [row for session in sessions for row in self.store.sessions.branches(connection, session.id)]
            if branch is not None:
                rows = [self.lookup.branch(connection, sessions[0], branch)]
                subject = f"branch {rows[0].name} of {subject}"
            return Stats(
                subject=subject,
                branches=tuple(statistics.figures(connection, self.store, sessions, rows)),
                names=statistics.names(connection, self.store, [row.id for row in rows]),
                sessions=len(sessions),
                prices=given,
                storage=statistics.storage(connection, self.store, rows) if storage else None,
            )

        if isinstance(of, User) and branch is not None:
            raise InvalidInput("A branch is of one session. Name the session, or leave the branch out.")
        return self._read(look)

    def _counted(self, connection: Connection, of: SessionRef | User) -> tuple[list[ExternalSession], str]:
        """Find the sessions that are to be counted, and what a person calls them."""
        if not isinstance(of, User):
            found = self.lookup.session(connection, of)
            return [found], f"session {found.reference}"
        if of.id != self.user.id:
            raise NotFound(f"This repository was opened for {self.user.name}. Open it with user={of.name!r}.")
        return self.store.visible.own(connection, self.user.id), f"user {self.user.name}"
