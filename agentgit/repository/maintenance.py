"""Maintenance of a database: garbage collection, integrity checks, statistics, encryption keys, unknown outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from agentgit.async_api import async_twin
from agentgit.checkpoints.retention import RetentionVerdict
from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import DECISIONS, DONE, RESOLVED, UNKNOWN
from agentgit.errors import Conflict, Corrupt, InvalidInput, NotFound, Unavailable
from agentgit.handles.context import Context
from agentgit.handles.retention import wipe
from agentgit.handles.session_reader import SessionRef, collect_stats
from agentgit.next_steps import Next
from agentgit.rollback.crash_recovery import recover_abandoned
from agentgit.sessions.reports import Checked, OnProgress, Reclaimed, Rotated
from agentgit.sessions.stats import Prices, Stats
from agentgit.store.audit.trail import NO_SESSION, record_event
from agentgit.store.maintenance import retention as retention_store
from agentgit.store.maintenance.fsck.check import fsck
from agentgit.store.maintenance.fsck.reading import HASHES, HEADS, REFERENCES
from agentgit.store.maintenance.gc import NOTHING_COLLECTED, Collected, collect
from agentgit.store.maintenance.key_rotation import rotate
from agentgit.store.maintenance.statistics import tokens_of_erased_sessions
from agentgit.store.records.encryption_keys import count_values_by_key
from agentgit.store.sql.ids import is_id
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads.owners import list_owners


@contextmanager
def _collecting(damage: list[Corrupt]) -> Iterator[None]:
    try:
        yield
    except Corrupt as error:
        damage.append(error)


class Maintenance:
    """Maintenance of a database, available as `Repository.maintenance`.

    Args:
        context: The store and the principal.
    """

    def __init__(self, context: Context) -> None:
        self.context = context

    def gc(
        self,
        *,
        dry_run: bool = False,
        steps: bool = True,
        shrink: bool = True,
        imports: bool = False,
        progress: OnProgress | None = None,
    ) -> Reclaimed:
        """Delete everything that is no longer needed, and report what was deleted.

        The retention of each session is applied first. Then the collection deletes graph checkpoints between
        checkpoints, values and lists that nothing refers to, and file snapshots that no checkpoint has. It is safe
        while turns and other processes run; those of a session wait while its data are collected, and on SQLite all.
        Branches that are in use are left unchanged.

        Args:
            dry_run: True to only report what would be deleted.
            steps: False to keep what LangGraph saved between the checkpoints, which `get_state_history` returns.
            shrink: False to keep the free space in the database for later data.
            imports: True to also delete what unfinished imports have left.
            progress: Called with the number of sessions that are done, and their total; to shrink the database counts
                as one more. It is called inside a transaction, so it may read from this database but not write to it.

        Raises:
            NotAllowed: You are not an admin.
            Conflict: `progress` wrote to this database, or read from one in memory; nothing of that transaction was
                stored.
            Corrupt: The data of a session are damaged. Those of the others are collected.
        """
        self.context.require_admin("gc")
        store = self.context.store
        size_before = store.database.size()
        session_ids = self.context.read(retention_store.sessions_with_retention)
        damage: list[Corrupt] = []
        removed_ids = self._thin_all(session_ids, damage, dry_run=dry_run)
        owners, problem = self.context.read(list_owners), ""
        numbers = {owner: number for number, owner in enumerate(owners, 1)}

        def report(done: int) -> None:
            if progress is not None:
                progress(done, len(owners) + 1)

        def collect_from(transaction: Reading, owner: int) -> Collected:
            ignored_checkpoints = removed_ids if dry_run else ()
            blobs = store.graphs.blobs.of(owner)
            found = collect(transaction, blobs, imports=imports, steps=steps, ignored_checkpoints=ignored_checkpoints)
            report(numbers[owner])
            return found

        if dry_run:
            snapshot_count = self.context.read(lambda c: len(store.snapshots.find_unused(c, removed_ids)))
            collected = self.context.read(lambda c: sum((collect_from(c, one) for one in owners), NOTHING_COLLECTED))
        else:
            snapshot_count = self.context.engine().files.release_unused(collect=True)
            collected = NOTHING_COLLECTED
            for owner in owners:
                with _collecting(damage):
                    collected += self.context.change(partial(collect_from, owner=owner), durable=False)
            last_erasure, last_wiped = self.context.read(self._erasures)
            if shrink and last_erasure != last_wiped:
                problem = wipe(store.database)
            elif shrink and any((*collected, *removed_ids)):
                problem = self._shrink()
            wiped = last_erasure if shrink and not problem else last_wiped
            details = {**collected._asdict(), "wiped": wiped}
            self.context.change(lambda c: record_event(c, "gc.done", user_id=self.context.user.id, **details))
        report(len(owners) + 1)
        if damage:  # the data of the other sessions are collected, and erased words are gone
            raise damage[0]
        return Reclaimed(
            **collected._asdict(),
            checkpoints=len(removed_ids),
            snapshots=snapshot_count,
            disk_before=size_before,
            disk_after=size_before if dry_run else self.context.store.database.size(),
            dry_run=dry_run,
            problem=problem,
        )

    def _erasures(self, transaction: Reading) -> tuple[int | None, int | None]:
        """Return the ids of the events of the last erasure, and of the last one whose traces a collection removed."""
        newest = partial(self.context.store.trail.newest, transaction, NO_SESSION, limit=1)
        erasures, collections = newest(kinds=("session.erased", "user.erased")), newest(kinds=("gc.done",))
        wiped = collections[0].detail.get("wiped") if collections else None
        return erasures[0].id if erasures else None, wiped

    def _thin_all(self, session_ids: Iterable[int], damage: list[Corrupt], *, dry_run: bool) -> set[int]:
        """Apply the retention of sessions, and return the ids of the checkpoints that were or would be deleted."""
        removed_ids: set[int] = set()
        for session_id in session_ids:

            def thin_session(transaction: Reading, session_id: int = session_id) -> Sequence[RetentionVerdict]:
                retention = retention_store.read_retention(transaction, self.context.store, session_id)
                if retention is None:  # the retention was removed meanwhile
                    return []
                return retention_store.apply_retention(transaction, self.context.store, session_id, retention)

            with suppress(NotFound), _collecting(damage):  # not found: the session was erased meanwhile
                verdicts = (
                    self.context.read(thin_session) if dry_run else self.context.change(thin_session, durable=False)
                )
                removed_ids.update(verdict.point.id for verdict in verdicts if verdict.is_removed)
        return removed_ids

    def _shrink(self) -> str:
        """Release the free space of the database to the file system."""
        try:
            self.context.store.database.shrink()
        except Unavailable as error:
            return f"The space is free in the database, but its files have not shrunk: {error}"
        return ""

    # -- integrity

    def fsck(self, level: int = HASHES, *, session: SessionRef = None, progress: OnProgress | None = None) -> Checked:
        """Check the integrity of the database, without changes. It reads one snapshot, so turns may run meanwhile.

        Args:
            level: 1 checks that everything rows refer to exists. 2 also hashes every value and state. 3 also builds the
                state of every head, as its next turn would, and hashes it.
            session: The session to check; None for all, and for what belongs to none.
            progress: Called with the number of rows that are done, and their total, which is 0 for one session.

        Returns:
            The result; each finding names the row, the problem and what to do.

        Raises:
            InvalidInput: There is no such level.
            NotFound: There is no such session.
            NotAllowed: You are not an admin.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> repo.maintenance.fsck(level=3).is_sound
            True
        """
        if isinstance(level, bool) or level not in (REFERENCES, HASHES, HEADS):
            raise InvalidInput(f"level must be 1 (references), 2 (hashes too) or 3 (heads too), not {level!r}.")
        self.context.require_admin("fsck")
        session_id = None
        if session is not None:
            session_id = self.context.read(lambda c: self.context.lookup.session(c, session).id)
        return fsck(self.context.store, level, progress, session_id)

    # -- statistics

    def stats(self, *, prices: Prices | None = None, storage: bool = False) -> Stats:
        """Return statistics of all sessions of the user, like `Session.stats` for one session.

        The tokens are also those of erased sessions, whose other figures are gone.

        Args:
            prices: The prices of a million tokens of input and output, by model: `{"m": (1.25, 10)}`. A third and a
                fourth number are the prices of input read from a cache and written into one; `*` is every other model.
            storage: True to also measure the space that they take in the database, which reads everything stored.

        Raises:
            InvalidInput: A price is not valid.
        """
        context = self.context

        def compute(transaction: Reading) -> Stats:
            sessions = context.store.visible_sessions.own(transaction, context.user.id)
            erased = tokens_of_erased_sessions(transaction, context.user.id)
            return collect_stats(
                transaction,
                context,
                sessions,
                f"user {context.user.name}",
                None,
                prices,
                storage=storage,
                erased=erased,
            )

        return context.read(compute)

    # -- encryption

    def encryption_keys(self) -> dict[str, int]:
        """Return the number of stored values of each key; plaintext is under the empty name.

        A key without any is no longer needed once `rotate_keys` has removed it.

        Raises:
            NotAllowed: You are not an admin.
        """
        self.context.require_admin("encryption_keys")
        return self.context.read(count_values_by_key)

    def rotate_keys(self, *, off: bool = False, progress: OnProgress | None = None) -> Rotated:
        """Encrypt all plaintext, and everything that is encrypted with an older key, with the current key.

        Turns and other processes may run meanwhile if they were opened with the same keys and the same current key. If
        it is interrupted, run it again; it skips what is done. At the end it clears the search index, which later
        searches fill again, and rewrites the files of SQLite without their old contents. Then keys that no longer
        encrypt anything can be thrown away.

        Args:
            off: True to store everything in plaintext again. Nobody else may have the database open.
            progress: Called with the number of rows that are done, and their total.

        Raises:
            InvalidInput: The repository was opened without keys.
            NotAllowed: You are not an admin.
            Corrupt: A value cannot be decrypted, or is in plaintext although everything was encrypted.
        """
        self.context.require_admin("rotate_keys")
        seal = self.context.store.database.seal
        if seal is None:
            raise InvalidInput("There are no keys to encrypt with.", Next("give_keys"))
        database = self.context.store.database
        rotated = rotate(database, seal, decrypt=off, user_id=self.context.user.id, progress=progress)
        return replace(rotated, problem=wipe(database))

    agc = async_twin(gc)
    afsck = async_twin(fsck)
    astats = async_twin(stats)
    aencryption_keys = async_twin(encryption_keys)
    arotate_keys = async_twin(rotate_keys)


class Resolution:
    def __init__(self, context: Context) -> None:
        self.context = context

    def resolve(self, invocation: ToolInvocation | int, outcome: str, *, result: Any) -> ToolInvocation:
        invocation_id = invocation.id if isinstance(invocation, ToolInvocation) else invocation

        def decide(transaction: Writing) -> ToolInvocation:
            call = self._load_visible_call(transaction, invocation_id)
            branch = self.context.store.sessions.branch(transaction, call.internal_session_id)
            self.context.authorize(transaction, branch.external_session_id)
            self.context.store.sessions.lock(transaction, branch.external_session_id)
            recover_abandoned(self.context.store, transaction, branch.external_session_id)
            call = self._load_visible_call(transaction, invocation_id)
            if call.id in self.context.registry.running_calls:
                raise Conflict(f"{call} still runs in this process. Wait until it ends: that is recorded.")
            decisions = DECISIONS.get(call.status)
            if decisions is None:
                raise InvalidInput(
                    f"{call} is {call.status}: there is nothing to resolve. Only a call that is "
                    f"{' or '.join(DECISIONS)} can be resolved."
                )
            if outcome not in decisions:
                raise InvalidInput(f"outcome must be {' or '.join(map(repr, decisions))}, not {outcome!r}.")
            if result is not None and decisions[outcome] != DONE:
                raise InvalidInput(f"{call} is {call.status}; only a call that happened has a result. Leave it out.")
            error = None if outcome == "happened" else RESOLVED
            if error is not None and call.own_error is not None:  # of a reversal, the decision comes first: it is proof
                error = call.own_error if call.status == UNKNOWN else f"{RESOLVED} ({call.own_error})"
            if decisions[outcome] != call.status:
                self.context.store.journal.move(transaction, call.id, decisions[outcome], error=error, result=result)
            else:
                self.context.store.journal.set_error_message(transaction, call, error)
            record_event(
                transaction,
                "call.resolved",
                branch_id=branch.id,
                user_id=self.context.user.id,
                invocation=call.id,
                tool=call.tool_name,
                outcome=outcome,
            )
            return self._load_visible_call(transaction, invocation_id)

        return self.context.change(decide)

    def _load_visible_call(self, transaction: Reading, invocation_id: int) -> ToolInvocation:
        call = self.context.store.journal.invocation(transaction, invocation_id) if is_id(invocation_id) else None
        if call is not None:
            # What the record answered is decided of the call that was made.
            call = self.context.store.recorded_calls.originals(transaction, {call.id: call})[call.id]
            branch = self.context.store.sessions.branch(transaction, call.internal_session_id)
            if self.context.lookup.find_visible(transaction, branch.external_session_id) is not None:
                return call
        raise NotFound(f"There is no tool invocation {invocation_id}.", Next("list_calls"))
