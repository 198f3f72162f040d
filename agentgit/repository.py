"""The repository: an open handle on one database, bound to one user, with the verbs on its sessions."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlalchemy import URL, Connection

from agentgit.auth import User
from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.diff import Diff, diff
from agentgit.errors import Conflict, InvalidInput, NotFound
from agentgit.render.drawn import DrawnTree
from agentgit.rollback import Rollback
from agentgit.sessions import ExternalSession, InternalSession, Tree
from agentgit.sessions.imports import ImportReport, Progress
from agentgit.sessions.operation import Operation
from agentgit.store import schema
from agentgit.store.database import Database
from agentgit.store.lookup import Lookup, Place
from agentgit.store.sessions import SESSION
from agentgit.store.store import Store
from agentgit.store.tenants import ensure_tenant
from agentgit.store.views import Views
from agentgit.tools import Effect, RollbackReport, ToolInvocation
from agentgit.tools.effects import Undo
from agentgit.tools.invocation import DECISIONS
from agentgit.tools.undos import Undos

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.agents.wrap import AutoCheckpoint

T = TypeVar("T")

ENVIRONMENT = "AGENTGIT_DATABASE_URL"
DEFAULT = "agentgit.db"
LOCAL_USER = "local"
"""The owner of everything in an embedded database that was opened without a user."""

SessionRef = ExternalSession | str | int | None
BranchRef = InternalSession | str | int | None


def open(where: str | Path | URL | None = None, *, user: str | None = None, create: bool = True) -> Repository:
    """Open a database, making or upgrading it if it is SQLite.

    Args:
        where: a path, `:memory:` or a URL; None is `$AGENTGIT_DATABASE_URL`, else `./agentgit.db`.
        user: whose sessions to see; None is the local owner.
        create: False to refuse a file that is not there.

    Raises:
        NotFound: `create` is False and there is no such file.
        SchemaMismatch: it is older or newer than this library, or not agentgit's; the text has the command to run.
        Unavailable: it cannot be read or written.

    Example:
        >>> with open(":memory:") as repo:
        ...     repo.sessions()
        []
    """
    if where == "":
        raise InvalidInput("An empty text names no database; give a path, a URL, or nothing at all.")
    database = Database(where if where is not None else os.environ.get(ENVIRONMENT) or DEFAULT)
    try:
        if not create:
            _expect_file(database)
        schema.ready(database)
        store = Store(database, ensure_tenant(database))
        found = _user(store, user or LOCAL_USER)
    except BaseException:
        database.close()
        raise
    return Repository(store, found)


def _user(store: Store, name: str) -> User:
    """Find the user, or make one; a database that cannot be written is read all the same."""
    with store.database.reading() as connection:
        found = store.sessions.find_user(connection, name)
    return found or store.database.write(
        lambda c: store.sessions.find_user(c, name) or store.sessions.add_user(c, name)
    )


def _expect_file(database: Database) -> None:
    path = database.url.database
    if database.is_sqlite and not database.in_memory and not Path(path or "").exists():
        raise NotFound(f"There is no database {path}. Make one with: agentgit demo; or name another one: --db PATH")


class Repository:
    """An open handle on one database, bound to one user. A context manager; safe to use from many threads.

    Args:
        store: the store of one tenant.
        user: whose sessions it shows; what belongs to others is not found.
    """

    def __init__(self, store: Store, user: User) -> None:
        self.store = store
        self.user = user
        self.lookup = Lookup(store, user.id)
        self.views = Views(store)
        self.undos = Undos()

    def __repr__(self) -> str:
        return f"Repository({self.store.database.url.render_as_string(hide_password=True)!r}, user={self.user.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give all connections back; the repository and its agents may not be used afterwards."""
        self.store.database.close()

    # -- wrap

    def wrap(
        self,
        graph: Any,
        session: str,
        *,
        effects: Mapping[str, Effect | str] | None = None,
        auto_checkpoint: AutoCheckpoint = "turn",
        branch: str | None = None,
        check_effects: bool = True,
        thread_id: str | None = None,
    ) -> RollbackAgent:
        """Wrap a compiled LangGraph graph; the session is made if it does not exist, else its current branch goes on.

        Args:
            graph: any compiled graph; it stays as it is.
            session: the session's name.
            effects: what tools do to the world, by tool name: an Effect, or `read_only`, `idempotent`, `irreversible`.
            auto_checkpoint: `turn` (before each user message and after its turn), `tool` (also after each batch of
                tool calls), a number n (after every n-th turn), or `off`.
            branch: which branch to continue; None is the current one.
            check_effects: False if `effects` names tools that nodes call out of sight of the graph.
            thread_id: a thread of the saver that the graph was compiled with, to be read into the session and
                continued; what was read before is not read again.

        Raises:
            InvalidInput: the graph is not compiled, or an effect is declared of a tool that it does not have; or it
                has no saver to read the thread from.
            NotFound: the session has no such branch, or the saver no such thread.
            Conflict: the session has other content than the thread.
        """
        # Late, so that everything but running an agent works without LangGraph, which takes a second to import.
        agents = importlib.import_module("agentgit.agents.wrap")
        made: RollbackAgent = agents.wrap(
            self,
            graph,
            session,
            effects=effects or {},
            auto_checkpoint=auto_checkpoint,
            branch=branch,
            check_effects=check_effects,
            thread_id=thread_id,
        )
        return made

    def import_langgraph(
        self,
        saver_or_url: Any,
        threads: Sequence[str] | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        session_prefix: str = "",
        on_error: str = "stop",
    ) -> ImportReport:
        """Make a session of each thread of a LangGraph saver, which is only read. Run again, it adds what is new.

        Args:
            saver_or_url: a saver, or the path or URL of a database of SqliteSaver, AsyncSqliteSaver or PostgresSaver.
            threads: which; None is all.
            progress: told how far it is.
            session_prefix: put before a thread's id to name its session.
            on_error: `stop` at the first thread that cannot be imported, or `continue` with the others.

        Raises:
            NotFound: there is no such file, or no such thread.
            SchemaMismatch: it is not a database of LangGraph's savers.
            Conflict: a session has other content, or went on here while the thread went on there.
            Corrupt: a thread is damaged, or what was stored differs from it; nothing of that thread is visible.
            Unavailable: the source does not answer.
        """
        agents = importlib.import_module("agentgit.agents.import_langgraph")  # late, as in `wrap`
        report: ImportReport = agents.import_langgraph(
            self, saver_or_url, threads=threads, progress=progress, session_prefix=session_prefix, on_error=on_error
        )
        return report

    @staticmethod
    def expect_name(name: str) -> None:
        """Refuse what no session can be called.

        Raises:
            InvalidInput: it is empty, or longer than 200 characters.
        """
        if not isinstance(name, str) or not name.strip() or len(name) > 200:
            raise InvalidInput(f"A session needs a name of 1 to 200 characters, not {name!r}.")

    def ensure_session(self, name: str) -> ExternalSession:
        """Find the session of that name, or make it with its first branch, `main`.

        Raises:
            InvalidInput: no session can be called so.
        """
        self.expect_name(name)

        def find_or_make(connection: Connection) -> ExternalSession:
            found = self.store.sessions.sessions(connection, self.user.id, SESSION.c.session_name == name, limit=1)
            if found:
                return found[0]
            session_id = self.store.sessions.create(connection, self.user.id, name)
            return self.lookup.session(connection, session_id)

        return self.store.database.write(find_or_make, durable=True)

    # -- look

    def _read(self, look: Callable[[Connection], T]) -> T:
        with self.store.database.reading() as connection:
            return look(connection)

    def sessions(self) -> list[ExternalSession]:
        """List the sessions, the one that moved last first."""
        return self._read(self.lookup.sessions)

    def session(self, ref: SessionRef = None) -> ExternalSession:
        """Find a session by its name or id.

        Args:
            ref: None is the one that moved last.

        Raises:
            NotFound: there is none.
            Ambiguous: one session has that name and another one that id.
        """
        return self._read(lambda connection: self.lookup.session(connection, ref))

    def branches(self, session: SessionRef = None) -> list[InternalSession]:
        """List the branches of a session in the order they were made."""
        return self._read(lambda c: self.views.branches(c, self.lookup.session(c, session)))

    def branch(self, session: SessionRef = None, name: BranchRef = None) -> InternalSession:
        """Find a branch by its name or id.

        Args:
            session: None is the one that moved last.
            name: None is the current branch.

        Raises:
            NotFound: there is none.
        """

        def look(connection: Connection) -> InternalSession:
            found = self.lookup.session(connection, session)
            return self.views.branch(connection, found, self.lookup.branch(connection, found, name))

        return self._read(look)

    def tree(self, session: SessionRef = None) -> Tree:
        """Give the tree of a session's branches; `str` draws it."""
        tree = self._read(lambda c: self.views.tree(c, self.lookup.session(c, session)))
        return DrawnTree(session_name=tree.session_name, roots=tree.roots)

    def checkpoints(self, session: SessionRef = None, branch: BranchRef = None) -> list[Checkpoint]:
        """List the checkpoints from the root of a session to the head of a branch, oldest first.

        Args:
            session: None is the one that moved last.
            branch: None is the current one.
        """

        def look(connection: Connection) -> list[Checkpoint]:
            found = self.lookup.session(connection, session)
            rows = self.lookup.path(connection, self.lookup.branch(connection, found, branch))
            return [self.views.checkpoint(row) for row in rows]

        return self._read(look)

    def checkpoint(self, ref: Place, session: SessionRef = None, *, branch: BranchRef = None) -> Checkpoint:
        """Find a checkpoint.

        Args:
            ref: its id, its name, `branch`, `branch#7`, `branch~2`, `HEAD`, `HEAD~1`, or the Checkpoint itself.
            session: None is the one that moved last, or any for an id.
            branch: what `HEAD` is on; None is the current one.

        Raises:
            NotFound: nothing is called so; near names are told.
            Ambiguous: several things are.
            InvalidInput: it belongs to another session.
        """

        def look(connection: Connection) -> Checkpoint:
            owner = None
            if session is None and isinstance(ref, (int, Checkpoint)):
                owner = self.lookup.owner_of(connection, ref if isinstance(ref, int) else ref.id or 0)
            found = owner or self.lookup.session(connection, session)
            on = self.lookup.branch(connection, found, branch)
            return self.views.checkpoint(self.lookup.checkpoint(connection, found, on, ref))

        return self._read(look)

    def delete_checkpoint(self, ref: Place, session: SessionRef = None, *, branch: BranchRef = None) -> Checkpoint:
        """Delete a checkpoint; the conversation and the tool track stay. Gives the deleted one.

        Args:
            ref: as `checkpoint` takes it.
            session: as `checkpoint` takes it.
            branch: as `checkpoint` takes it.

        Raises:
            Conflict: it is the head of a branch, or a branch or a rollback needs it.
            NotFound, Ambiguous, InvalidInput: as `checkpoint`.
        """
        found = self.checkpoint(ref, session, branch=branch)
        found.to_dict()  # its content, while it is there
        gone = self.store.database.write(lambda c: self.store.checkpoints.delete(c, [found.id or 0]))
        if not gone:
            raise Conflict(f"Checkpoint {found.metadata['reference']} is needed by a branch or a rollback, and stays.")
        return found

    def cleanup_auto_checkpoints(self, session: SessionRef = None, *, branch: BranchRef = None, keep: int = 5) -> int:
        """Delete the automatic checkpoints of a path but the newest ones; tell how many went.

        Named ones stay, and so do branch heads and what a branch or a rollback needs.

        Args:
            session: None is the one that moved last.
            branch: None is the current one.
            keep: how many automatic ones to keep.

        Raises:
            InvalidInput: `keep` is negative.
        """
        if keep < 0:
            raise InvalidInput(f"keep={keep} is negative; give the number of automatic checkpoints to keep.")
        automatic = [point.id or 0 for point in self.checkpoints(session, branch) if point.is_auto]
        old = automatic[: len(automatic) - keep] if keep else automatic
        return self.store.database.write(lambda c: self.store.checkpoints.delete(c, old))

    def tool_track(self, session: SessionRef = None, branch: BranchRef = None) -> list[ToolInvocation]:
        """List the tool invocations along a branch, from the root of the session, in order."""

        def look(connection: Connection) -> list[ToolInvocation]:
            found = self.lookup.session(connection, session)
            return self.store.live_track(connection, self.lookup.branch(connection, found, branch))

        return self._read(look)

    def diff(self, a: Place, b: Place, session: SessionRef = None) -> Diff:
        """Compare two checkpoints: state, messages and tool calls.

        Args:
            a: the one to start from, as `checkpoint` takes it.
            b: the one to compare it with.
            session: where names are looked up; None is the one that moved last.
        """
        return diff(self.checkpoint(a, session), self.checkpoint(b, session))

    # -- rollbacks that stopped half way

    def operations(self, session: SessionRef = None) -> list[Operation]:
        """List the rollbacks and forks of a session, newest first."""
        return self._read(lambda c: self.store.operations.all(c, self.lookup.session(c, session).id))

    def resume(self, operation: Operation | int) -> RollbackReport:
        """Finish a rollback that failed half way or whose process died; what was reversed is not reversed again.

        Args:
            operation: as `operations` lists it, or its id.

        Raises:
            NotFound: there is no such operation.
            Conflict: it is being worked on.
            RollbackIncomplete: a reversal failed again.
        """
        operation_id = operation.id if isinstance(operation, Operation) else operation
        self._read(lambda c: self._owns_operation(c, operation_id))
        return Rollback(self.store, self.undos).resume(operation_id)

    def _owns_operation(self, connection: Connection, operation_id: int) -> None:
        row = self.store.operations.find(connection, operation_id)
        if row is None or not self._owns(connection, row.external_session_id):
            raise NotFound(f"There is no operation {operation_id}. repo.operations() lists those of a session.")

    def resolve(self, invocation: ToolInvocation | int, outcome: str) -> ToolInvocation:
        """Say what really happened, where the record could not know; give the invocation as it is then.

        Of a call that is `unknown` it says whether the call happened; of one that is `reverse_failed` or
        `reverse_unknown`, whether its reversal did.

        Args:
            invocation: the invocation or its id.
            outcome: `happened` or `did_not_happen`.

        Raises:
            NotFound: there is no such invocation.
            InvalidInput: the outcome is neither, or there is nothing to decide.
        """
        invocation_id = invocation if isinstance(invocation, int) else invocation.id

        def decide(connection: Connection) -> ToolInvocation:
            call = self._own_invocation(connection, invocation_id)
            self.store.recover(connection, self.store.sessions.branch(connection, call.internal_session_id))
            call = self._own_invocation(connection, invocation_id)
            decisions = DECISIONS.get(call.status)
            if decisions is None:
                raise InvalidInput(f"{call} is {call.status}: there is nothing to decide about it.")
            if outcome not in decisions:
                raise InvalidInput(f"outcome={outcome!r} means nothing; it can be {' or '.join(decisions)}.")
            if decisions[outcome] != call.status:
                error = None if outcome == "happened" else call.error_message or "somebody saw that it did not happen"
                self.store.journal.move(connection, call.id, decisions[outcome], error=error)
            return self._own_invocation(connection, invocation_id)

        return self.store.database.write(decide, durable=True)

    def _own_invocation(self, connection: Connection, invocation_id: int) -> ToolInvocation:
        call = self.store.journal.invocation(connection, invocation_id)
        if call is not None:
            branch = self.store.sessions.branch(connection, call.internal_session_id)
            if self._owns(connection, branch.external_session_id):
                return call
        raise NotFound(f"There is no tool invocation {invocation_id}. tool_track() lists those of a branch.")

    def recover(self, session: SessionRef = None, branch: BranchRef = None) -> InternalSession:
        """Take back a branch whose turn died where nobody here can see it: on another machine, in another container.

        Dead turns of this machine are taken back by themselves. What the turn was calling is unknown from then on.

        Args:
            session: None is the one that moved last.
            branch: None is the current one.
        """

        def take(connection: Connection) -> InternalSession:
            found = self.lookup.session(connection, session)
            row = self.lookup.branch(connection, found, branch)
            self.store.journal.abandon(connection, row.id, row.owner)
            self.store.sessions.release(connection, row.id, row.owner)
            return self.views.branch(connection, found, self.store.sessions.branch(connection, row.id))

        return self.store.database.write(take, durable=True)

    def _owns(self, connection: Connection, session_id: int) -> bool:
        return bool(self.store.sessions.sessions(connection, self.user.id, SESSION.c.id == session_id, limit=1))

    def declare(self, session_id: int, tool_name: str, undo: Undo | str) -> None:
        """Remember the undo function of a tool of a session, for rollbacks in this process."""
        self.undos.declare(session_id, tool_name, undo)
