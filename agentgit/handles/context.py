"""The context of the verbs of a repository and of its sessions: one store, bound to one principal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from agentgit.auth import Principal, User
from agentgit.auth.principal import EDITOR, READ, VIEWER, Role
from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.merge import MergePlan, Resolve
from agentgit.effects import Effect
from agentgit.effects.registry import Registry
from agentgit.errors import NotFound
from agentgit.rollback import RollbackEngine, settle_here
from agentgit.sessions import ExternalSession, InternalSession
from agentgit.store.database import Database
from agentgit.store.queries.lookup import CheckpointRef, Lookup
from agentgit.store.queries.read_models import ReadModels
from agentgit.store.records.sessions import Found
from agentgit.store.store import Store

T = TypeVar("T")

BranchRef = InternalSession | str | int | None
"""A branch, its name or its id; None is the current one."""

UserRef = User | str | int
"""A user, their name or their id."""


class WrappedGraph(Protocol):
    """An agent on a branch, as far as a session without a graph needs one: its graph's reducers merge."""

    def plan_merge(self, source: CheckpointRef, *, resolve: Resolve = None) -> MergePlan:
        """Return what `merge` would bring."""

    def merge(self, source: CheckpointRef, *, resolve: Resolve = None, name: str | None = None) -> Checkpoint:
        """Bring in what another branch did."""

    def plan_cherry_pick(self, what: Any) -> MergePlan:
        """Return what `cherry_pick` would bring."""

    def cherry_pick(self, what: Any, *, name: str | None = None) -> Checkpoint:
        """Bring in chosen messages."""


class Context:
    """One store, bound to one principal, with the ways into the database that check the principal's rights.

    Args:
        store: The store of one tenant.
        principal: The principal to act for; what belongs to others, and is not shared with the principal, is not found.
        effects: The effects of tools that are not declared elsewhere, by name; `*` stands for all of those.
        registry: The functions at hand, of the context that this one comes from; None for a new one.
        entered: The branches that sessions were moved to, of the context that this one comes from; None for a new one.
    """

    def __init__(
        self,
        store: Store,
        principal: Principal,
        effects: Mapping[str, Effect] | None = None,
        registry: Registry | None = None,
        entered: dict[int, int] | None = None,
    ) -> None:
        self.store = store.of(principal)
        self.principal = principal
        self.lookup = Lookup(self.store, principal)
        self.views = ReadModels(self.store, self.lookup.admit)
        self.effects = effects or {}
        self.registry = registry or Registry(self.effects)
        self.entered = {} if entered is None else entered
        """The branch that a rollback or switch of this process has moved each session to, by the session's id."""
        self.wrapped: dict[int, Callable[[int], WrappedGraph]] = {}
        """Functions that return an agent on a branch of a session, by the session's id, for graphs wrapped here."""

    def bound_to(self, principal: Principal) -> Context:
        """Return a context on the same database for another principal, with the same functions at hand."""
        return Context(self.store, principal, self.effects, self.registry, self.entered)

    @property
    def user(self) -> User:
        """The user of the principal."""
        return self.principal.user

    def read(self, look: Callable[[Connection], T], *, one_moment: bool = False) -> T:
        """Read in one transaction, if the principal's access still holds.

        Args:
            look: A function that reads.
            one_moment: True to see one moment of the database in all statements.
        """
        with self.store.database.reading(one_moment=one_moment) as connection:
            self.lookup.check_valid(connection)
            return look(connection)

    def change(
        self, work: Callable[[Connection], T], *, durable: bool = True, scope: str = READ, on: Database | None = None
    ) -> T:
        """Do something in one transaction, if the principal's access still holds in it and covers a scope.

        Args:
            work: A function that does the work.
            durable: The durability, as `Database.write` takes it.
            scope: The scope that the principal needs.
            on: The database bound to see more than the principal's sessions, where `work` itself checks who may.
        """

        def allowed(connection: Connection) -> T:
            self.lookup.require_scope(connection, scope)
            return work(connection)

        return (on or self.store.database).write(allowed, durable=durable)

    def require_admin(self, verb: str) -> None:
        """Refuse a verb that concerns everybody to all but admins.

        Raises:
            NotAllowed: The principal is not an admin.
        """
        with self.store.database.reading() as connection:
            self.lookup.require_admin(connection, verb)

    def authorize(self, connection: Connection, session_id: int) -> None:
        """Refuse a change of a session to a principal that may not edit it.

        Raises:
            NotFound, NotAllowed: The principal may not.
        """
        self.lookup.admit(connection, session_id, EDITOR)

    def find_user(self, connection: Connection, user: UserRef) -> User:
        """Find a user by name or id.

        Raises:
            NotFound: There is none.
        """
        found = self.store.users.find(connection, user) if isinstance(user, User | str | int) else None
        if found is None:
            called = user.name if isinstance(user, User) else user
            raise NotFound(
                f"There is no user {called!r}. An admin can list the users: repo.users.all() or agentgit users list."
            )
        return found

    @contextmanager
    def noting_moves(self, session_id: int) -> Iterator[None]:
        """Note in `entered` where the session continues, if that changes in this block."""
        before = self._current(session_id)
        yield
        now = self._current(session_id)
        if now is not None and now != before:
            self.entered[session_id] = now

    def _current(self, session_id: int) -> int | None:
        with self.store.database.reading() as connection:
            return self.store.sessions.current(connection, session_id)

    def engine(self) -> RollbackEngine:
        """Return what rolls back and switches; asynchronous functions run on the event loop that called, if one did."""
        return RollbackEngine(self.store, self.registry, settle_here(), admit=self.authorize)


@dataclass(frozen=True)
class SessionAccess:
    """One session, as far as a principal may see it. The parts of `Session` are made on it.

    Args:
        context: The store and the principal.
        session_id: The id of the session.
    """

    context: Context
    session_id: int

    def find(self, connection: Connection, needs: Role = VIEWER) -> ExternalSession:
        """Read the session, for a principal that has a role in it.

        Raises:
            NotFound, NotAllowed: The principal does not have that role.
        """
        return self.context.lookup.session(connection, self.session_id, needs)

    def branch(self, connection: Connection, ref: BranchRef, needs: Role = VIEWER) -> Found:
        """Find the row of a branch of the session.

        Raises:
            NotFound: The session has no such branch.
        """
        return self.context.lookup.branch(connection, self.find(connection, needs), ref)

    def read_branch(self, ref: BranchRef, needs: Role = VIEWER) -> Found:
        """Find the row of a branch, in a transaction of its own."""
        return self.context.read(lambda connection: self.branch(connection, ref, needs))

    def checkpoint(self, connection: Connection, ref: CheckpointRef, branch: BranchRef = None) -> Found:
        """Find the row of a checkpoint of the session.

        Raises:
            NotFound, Ambiguous, InvalidInput: As `Session.get_checkpoint`.
        """
        found = self.find(connection)
        return self.context.lookup.checkpoint(
            connection, found, self.context.lookup.branch(connection, found, branch), ref
        )
