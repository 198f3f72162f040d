"""The handle that the verbs of a repository are methods of: one store, bound to one principal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from sqlalchemy import Connection

from agentgit.auth import Principal, User
from agentgit.auth.roles import EDITOR
from agentgit.auth.scopes import READ
from agentgit.effects import Effect
from agentgit.effects.registry import Registry
from agentgit.errors import InvalidInput, NotFound
from agentgit.rollback import Rollback
from agentgit.sessions import ExternalSession, InternalSession
from agentgit.store.database import Database
from agentgit.store.queries.lookup import Lookup
from agentgit.store.queries.read_models import Views
from agentgit.store.store import Store

T = TypeVar("T")

SessionRef = ExternalSession | str | int | None
BranchRef = InternalSession | str | int | None
UserRef = User | str | int


class Handle:
    """The base of all methods of a repository: the store, the principal, and the two ways into the database.

    Args:
        store: The store of one tenant.
        principal: The principal that it acts for; what belongs to others, and is not shared with the principal, is not
            found.
        effects: The effects of tools that are not declared elsewhere, by name; `*` stands for all of those.
        registry: The functions at hand, of the handle that this one comes from; None for a new one.
    """

    def __init__(
        self,
        store: Store,
        principal: Principal,
        effects: Mapping[str, Effect] | None = None,
        registry: Registry | None = None,
    ) -> None:
        self.store = store.of(principal)
        self.principal = principal
        self.lookup = Lookup(self.store, principal)
        self.views = Views(self.store, self.lookup.admit)
        self.effects = effects or {}
        self.registry = registry or Registry(self.effects)

    @property
    def user(self) -> User:
        """Whose sessions it shows."""
        return self.principal.user

    def _read(self, look: Callable[[Connection], T], *, one_moment: bool = False) -> T:
        with self.store.database.reading(one_moment=one_moment) as connection:
            self.lookup.stands(connection)
            return look(connection)

    def _change(
        self, work: Callable[[Connection], T], *, durable: bool = True, scope: str = READ, on: Database | None = None
    ) -> T:
        """Do something in one transaction, if the principal still holds in it and reaches so far.

        Args:
            work: A function that does the work.
            durable: The durability, as `Database.write` takes it.
            scope: The scope that the principal needs.
            on: The database bound to see more than the principal's sessions, where `work` asks who may itself.
        """

        def allowed(connection: Connection) -> T:
            self.lookup.expect_scope(connection, scope)
            return work(connection)

        return (on or self.store.database).write(allowed, durable=durable)

    def _expect_admin(self, verb: str) -> None:
        """Refuse what concerns everybody to all but admins."""
        with self.store.database.reading() as connection:
            self.lookup.expect_admin(connection, verb)

    def _admit(self, connection: Connection, session_id: int) -> None:
        self.lookup.admit(connection, session_id, EDITOR)

    def _find_user(self, connection: Connection, user: UserRef) -> User:
        """Find a user by name or id.

        Raises:
            NotFound: There is none.
        """
        found = self.store.users.find(connection, user) if isinstance(user, User | str | int) else None
        if found is None:
            called = user.name if isinstance(user, User) else user
            raise NotFound(
                f"There is no user {called!r}. An admin lists them: repo.users.all(), or agentgit users list."
            )
        return found

    def _engine(self) -> Rollback:
        return Rollback(self.store, self.registry, admit=self._admit)

    @staticmethod
    def expect_name(name: str) -> None:
        """Refuse what no session can be called.

        Raises:
            InvalidInput: It is empty, or longer than 200 characters.
        """
        if not isinstance(name, str) or not name.strip() or len(name) > 200:
            raise InvalidInput(f"A session needs a name of 1 to 200 characters, not {name!r}.")
