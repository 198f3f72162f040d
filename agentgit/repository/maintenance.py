"""Keeping a database in order: space back, whether everything is whole, figures, encryption keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from sqlalchemy import Connection

from agentgit.async_api import async_twin
from agentgit.checkpoints.retention import RetentionVerdict
from agentgit.errors import InvalidInput, NotFound, Unavailable
from agentgit.handles.context import Context
from agentgit.handles.retention import wiped
from agentgit.handles.statistics import count
from agentgit.sessions.reports import Checked, OnProgress, Parts, Reclaimed, Rotated
from agentgit.sessions.stats import Prices, Stats
from agentgit.store.audit.trail import note
from agentgit.store.maintenance import retention as retention_store
from agentgit.store.maintenance.fsck.check import HASHES, HEADS, REFERENCES, fsck
from agentgit.store.maintenance.gc import Collected, Spare, collect, sizes
from agentgit.store.maintenance.gc import find as find_steps
from agentgit.store.maintenance.key_rotation import Rotation


class Maintenance:
    """Keeps a database small, intact and encrypted. `Repository.maintenance` is it.

    Args:
        context: The store and the principal.
    """

    def __init__(self, context: Context) -> None:
        self.context = context

    def __repr__(self) -> str:
        return f"Maintenance({self.context.store.database.name!r})"

    def gc(
        self,
        *,
        dry_run: bool = False,
        steps: bool = True,
        shrink: bool = True,
        imports: bool = False,
        progress: OnProgress | None = None,
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
        self.context.require_admin("gc")
        before = self.context.store.database.size()
        kept = self.context.read(lambda c: retention_store.with_retention(c, self.context.store))
        parts = Parts(progress, self.context.read(lambda c: self._sizes(c, kept)) if progress is not None else None)
        without = self._thin_all(parts.over("sessions", ([one] for one in kept)), dry_run=dry_run)

        def spare(connection: Connection) -> Iterator[Spare]:
            return find_steps(connection, self.context.store.tenant_id, without if dry_run else (), parts=parts)

        def work(connection: Connection) -> Collected:
            wanted = spare if steps else None
            blobs = self.context.store.graphs.content.blobs
            found = collect(connection, blobs, dry_run=dry_run, imports=imports, find_steps=wanted, parts=parts)
            if not dry_run:
                note(
                    connection, self.context.store.tenant_id, "gc.done", user_id=self.context.user.id, **found._asdict()
                )
            return found

        if dry_run:
            snapshots = self.context.read(lambda c: len(self.context.store.snapshots.free(c, without)))
            collected = self.context.read(work)
        else:
            snapshots = self.context.engine().files.release(collect=True)
            collected = self.context.change(work)
        problem = self._shrink() if shrink and not dry_run and any((*collected, *without)) else ""
        parts.end("space")
        return Reclaimed(
            **collected._asdict(),
            checkpoints=len(without),
            snapshots=snapshots,
            disk_before=before,
            disk_after=before if dry_run else self.context.store.database.size(),
            dry_run=dry_run,
            problem=problem,
        )

    def _sizes(self, connection: Connection, kept: Sequence[int]) -> dict[str, int]:
        """Count the things of each part of a collection; giving the space back copies all that is stored."""
        found = sizes(connection, self.context.store.tenant_id)
        return {"sessions": len(kept), **found, "space": found["values"]}

    def _thin_all(self, kept: Iterable[int], *, dry_run: bool) -> set[int]:
        """Thin out the sessions that have a retention; give the checkpoints that went, or would."""
        gone: set[int] = set()
        for session_id in kept:

            def work(connection: Connection, session_id: int = session_id) -> Sequence[RetentionVerdict]:
                keeps = retention_store.read(connection, self.context.store, session_id)
                if keeps is None:  # somebody has just changed it
                    return []
                judge = retention_store.verdicts if dry_run else retention_store.thin
                return judge(connection, self.context.store, session_id, keeps).verdicts

            with suppress(NotFound):  # somebody has just erased it
                judged = self.context.read(work) if dry_run else self.context.change(work, durable=False)
                gone.update(one.point.id for one in judged if one.goes)
        return gone

    def _shrink(self) -> str:
        """Release the free space of the database.

        Returns:
            Why that was not possible, if somebody holds the database; else an empty text.
        """
        try:
            self.context.store.database.shrink()
        except Unavailable as error:
            return f"The space is free in the database, but its files have not shrunk: {error}"
        return ""

    # -- whether everything is whole

    def fsck(self, level: int = HASHES, *, progress: OnProgress | None = None) -> Checked:
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
            >>> repo.maintenance.fsck(level=3).is_sound
            True
        """
        if isinstance(level, bool) or level not in (REFERENCES, HASHES, HEADS):
            raise InvalidInput(f"level must be 1 (references), 2 (hashes too) or 3 (heads too), not {level!r}.")
        self.context.require_admin("fsck")
        return fsck(self.context.store, level, progress)

    # -- figures

    def stats(self, *, prices: Prices | None = None, storage: bool = False) -> Stats:
        """Count what all sessions of the user have, as `Session.stats` counts one.

        Args:
            prices: What a million tokens cost, as `Session.stats` takes it.
            storage: True to also measure what they take of the database, which looks at all that is stored.

        Raises:
            InvalidInput: A price is not valid.
        """
        context = self.context

        def look(connection: Connection) -> Stats:
            own = context.store.visible.own(connection, context.user.id)
            return count(connection, context, own, f"user {context.user.name}", None, prices, storage=storage)

        return context.read(look)

    # -- encryption

    def encryption_keys(self) -> dict[str, int]:
        """Count how many stored values and codes of rows each key has; those in clear are under the empty name.

        A key that has none is needed no more, once `rotate_keys` has forgotten it.
        """
        self.context.require_admin("encryption_keys")
        return Rotation(self.context.store.database, self.context.store.tenant_id).counts()

    def rotate_keys(self, *, off: bool = False, progress: OnProgress | None = None) -> Rotated:
        """Encrypt everything with the current key that is not: in clear until now, or with an older key.

        Turns and other processes may go on meanwhile, if they were opened with the same keys, and the same current one.
        Broken off, it is run again and passes over what is done. At its end the words of messages are forgotten, the
        files of SQLite are written anew without what was in them, and the keys that nothing is encrypted with any more
        may be thrown away.

        Args:
            off: True to store everything in clear again. Nobody else may have the database open.
            progress: Told how many rows are done, and of how many.

        Raises:
            InvalidInput: The repository was opened without keys.
            NotAllowed: This is for admins.
            Corrupt: A value does not open, or is in clear where everything was encrypted.
        """
        self.context.require_admin("rotate_keys")
        seal = self.context.store.database.seal
        if seal is None:
            raise InvalidInput(
                "There are no keys to encrypt with. Open the database with agentgit.open(..., keyring=Keyring(...))."
            )
        rotated = Rotation(self.context.store.database, self.context.store.tenant_id).run(
            seal, off=off, user_id=self.context.user.id, progress=progress
        )
        return replace(rotated, problem=wiped(self.context.store.database))

    agc = async_twin(gc)
    afsck = async_twin(fsck)
    astats = async_twin(stats)
    aencryption_keys = async_twin(encryption_keys)
    arotate_keys = async_twin(rotate_keys)
