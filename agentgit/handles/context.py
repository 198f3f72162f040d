"""The context that a repository and its sessions share: one store, bound to one principal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from agentgit.auth import Principal, User
from agentgit.auth.principal import EDITOR, READ, VIEWER, Role
from agentgit.effects import Effect
from agentgit.effects.registry import Registry
from agentgit.errors import NotFound
from agentgit.next_steps import Next
from agentgit.rollback import RollbackEngine, awaiter_for_current_loop
from agentgit.sessions import ExternalSession, InternalSession
from agentgit.store.queries.lookup import CheckpointRef, Lookup
from agentgit.store.queries.read_models import ReadModels
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql import process
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store

T = TypeVar("T")

BranchRef = InternalSession | str | int | None
"""A branch, its name or its id; None is the current one."""

UserRef = User | str | int
"""A user, their name or their id."""


class Context:
    """One store, bound to one principal. Its methods check the principal's rights before they use the database."""

    def __init__(
        self,
        store: Store,
        principal: Principal,
        effects: Mapping[str, Effect] | None = None,
        registry: Registry | None = None,
    ) -> None:
        self.store = store
        self.principal = principal
        self.lookup = Lookup(self.store, principal)
        self.read_models = ReadModels(self.store, self.lookup.require_role)
        self.effects = effects or {}
        self.registry = registry or Registry(self.effects)
        process.register_for_fork(self.registry)

    def for_principal(self, principal: Principal) -> Context:
        """Return a context on the same database for another principal, with the same registry."""
        return Context(self.store, principal, self.effects, self.registry)

    @property
    def user(self) -> User:
        return self.principal.user

    def read(self, query: Callable[[Reading], T], *, repeatable_read: bool = False) -> T:
        """Run a function in one read transaction, if the principal's access is still valid."""
        with self.store.database.reading(repeatable_read=repeatable_read) as transaction:
            self.lookup.check_valid(transaction)
            return query(transaction)

    def change(
        self,
        work: Callable[[Writing], T],
        *,
        durable: bool = True,
        scope: str = READ,
    ) -> T:
        """Run a function in one write transaction, if the principal's access is still valid and covers a scope."""

        def authorized_work(transaction: Writing) -> T:
            self.lookup.require_scope(transaction, scope)
            return work(transaction)

        return self.store.database.write(authorized_work, durable=durable)

    def require_admin(self, verb: str) -> None:
        """Check that the principal is an admin, for an operation that affects all users."""
        with self.store.database.reading() as transaction:
            self.lookup.require_admin(transaction, verb)

    def authorize(self, transaction: Reading, session_id: int) -> None:
        """Check that the principal may edit a session."""
        self.lookup.require_role(transaction, session_id, EDITOR)

    def find_user(self, transaction: Reading, user: UserRef) -> User:
        match = self.store.users.find(transaction, user) if isinstance(user, User | str | int) else None
        if match is None:
            name = user.name if isinstance(user, User) else user
            raise NotFound(f"There is no user {name!r}.", Next("list_users"))
        return match

    @contextmanager
    def recording_moves(self, session_id: int) -> Iterator[None]:
        """Record for the session's agents the branch on which it continues, if that changes within this block."""
        previous_id = self._current_branch_id(session_id)
        yield
        current_id = self._current_branch_id(session_id)
        if current_id is not None and current_id != previous_id:
            self.registry.session(session_id).moved_to = current_id

    def _current_branch_id(self, session_id: int) -> int | None:
        with self.store.database.reading() as transaction:
            return self.store.sessions.current_branch_id(transaction, session_id)

    def engine(self) -> RollbackEngine:
        """Return the rollback engine. Async functions run on the caller's event loop, if there is one."""
        return RollbackEngine(
            self.store, self.registry, awaiter_for_current_loop(), user_id=self.user.id, authorize=self.authorize
        )


@dataclass(frozen=True)
class SessionAccess:
    """Access to one session for one principal. The parts of `Session` derive from it."""

    context: Context
    session_id: int

    def load_session(self, transaction: Reading, required_role: Role = VIEWER) -> ExternalSession:
        """Read the session, after checking that the principal has a role in it."""
        session = self.context.lookup.session(transaction, self.session_id, required_role)
        if (graphs := self.context.registry.served_graphs) is not None:
            graphs.declare(session)
        return session

    def find_branch(self, transaction: Reading, ref: BranchRef, required_role: Role = VIEWER) -> StoredRow:
        return self.context.lookup.branch(transaction, self.load_session(transaction, required_role).id, ref)

    def read_branch(self, ref: BranchRef, required_role: Role = VIEWER) -> StoredRow:
        """Find the row of a branch, in its own transaction."""
        return self.context.read(lambda transaction: self.find_branch(transaction, ref, required_role))

    def find_checkpoint(self, transaction: Reading, ref: CheckpointRef, branch: BranchRef = None) -> StoredRow:
        return self.context.lookup.checkpoint(transaction, self.find_branch(transaction, branch), ref)
