"""Opening a database."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from sqlalchemy import URL

from agentgit.auth import Keyring, Principal, User
from agentgit.auth.principal import LOCAL, require_name
from agentgit.auth.secret_names import excluded_names
from agentgit.checkpoints import references
from agentgit.effects import Effect
from agentgit.effects.declarations import as_effects
from agentgit.effects.memory import require_declarable
from agentgit.errors import InvalidInput, NotFound
from agentgit.handles.context import Context
from agentgit.location import default_location
from agentgit.next_steps import Next
from agentgit.repository.repository import Repository
from agentgit.repository.users import disabled_user_error
from agentgit.store.database import Database
from agentgit.store.sql.encryption import load_keyring
from agentgit.store.sql.postgres import POOL_SIZE
from agentgit.store.sql.process import LEASE_SECONDS
from agentgit.store.store import Store

TRUST = "AGENTGIT_TRUST"


def open(
    where: str | Path | URL | None = None,
    *,
    user: str | None = None,
    create: bool = True,
    effects: Mapping[str, Effect | str] | None = None,
    compression: str = "auto",
    keyring: Keyring | None = None,
    pool_size: int = POOL_SIZE,
    lease_seconds: float = LEASE_SECONDS,
    trust: Sequence[str] | None = None,
    exclude_metadata: Collection[str] = (),
) -> Repository:
    """Open a database. A SQLite database is created or upgraded if needed.

    Args:
        where: A path, `:memory:` or a URL; None for `$AGENTGIT_DATABASE_URL`, or `./agentgit.db` if that is not set.
        user: The user whose sessions to see; None for the local owner, who is an admin. No credential is needed,
            because the caller has the database. A missing user is created.
        create: False to raise `NotFound` if the file or the user does not exist.
        effects: The effects of tools that neither `wrap(effects=...)` nor the tool itself declares, by tool name: an
            Effect, or `read_only`, `state`, `workspace`, `idempotent`, `irreversible`. `*` is every tool that is not
            named.
        compression: The compression of new values: `auto` (zstd above 4 KiB; smaller ones stay readable with SQL),
            `zstd` (from 512 bytes on), `zlib` (the same, larger and slower) or `none`. Any of them can be read.
        pool_size: The maximum number of connections to a server.
        lease_seconds: The seconds after which a run on a server counts as dead if its process has not reported.
        keyring: The keys that encrypt the contents; None for `$AGENTGIT_ENCRYPTION_KEYS`, or no encryption if that is
            not set. Once encrypted, the database can only be opened with its keys.
        trust: Your modules, like `shop.tools`, whose tools can be undone and run again in every session; None for
            `$AGENTGIT_TRUST`, names separated by commas. They are imported at once. See `Repository.trust`.
        exclude_metadata: Names of settings in a run's `configurable`, and of metadata in its config, that are not
            stored. Names that look like secrets are never stored.

    Raises:
        InvalidInput: `where` is empty, a number is too small, `effects` has a value that is not an effect, a key is
            wrong, an entry of `trust` or `exclude_metadata` is not valid, or the name of the user is not
            valid.
        KeyMissing: The database is encrypted with a key that was not given.
        NotAllowed: The user is disabled.
        NotFound: `create` is False and the file or the user does not exist; the error suggests similar names. Or a
            module of `trust` cannot be imported, or declares nothing.
        SchemaMismatch: The database is older or newer than this library, or not agentgit's. The message has the command
            to run.
        Unavailable: The database cannot be read or written.

    Example:
        >>> with open(":memory:") as repo:
        ...     repo.sessions()
        []
    """
    if where == "":
        raise InvalidInput("The database is an empty string; give a path or a URL, or leave it out.")
    defaults = as_effects(effects, by_name=True)
    require_declarable(defaults)
    excluded = excluded_names(exclude_metadata)
    database = Database(
        where if where is not None else default_location(),
        pool_size=pool_size,
        lease_seconds=lease_seconds,
        keyring=load_keyring(keyring),
    )
    try:
        store = Store.open(
            database,
            create=create,
            compression=compression,
            exclude_metadata=excluded,
        )
        bound_user = _find_or_add_user(store, user or LOCAL, create=create or user in (None, LOCAL))
        repo = Repository(Context(store, Principal(user=bound_user), defaults))
        repo.trust(*modules_to_trust(trust))
    except BaseException:
        database.close()
        raise
    return repo


def modules_to_trust(named: Sequence[str] | None) -> list[str]:
    modules = os.environ.get(TRUST, "").split(",") if named is None else named
    if isinstance(modules, str) or not all(isinstance(name, str) for name in modules):
        raise InvalidInput(f"trust must be a list of modules, not {named!r}; write trust=['shop.tools'].")
    return [name.strip() for name in modules if name.strip()] if named is None else list(modules)


def _find_or_add_user(store: Store, name: str, *, create: bool) -> User:
    """Find or create a user. Finding one does not write, so a read-only database can be opened."""
    require_name(name, "user")
    with store.database.reading() as transaction:
        existing = store.users.find_by_name(transaction, name)
        if existing is None and not create:
            names = [user.name for user in store.users.all(transaction)]
            raise NotFound(f"There is no user {name!r}.", Next("add_user"), near=references.similar_names(name, names))
    if existing is not None and existing.disabled_at is not None:
        raise disabled_user_error(existing)
    return existing or store.database.write(
        lambda c: store.users.find_by_name(c, name) or store.users.add(c, name, is_admin=name == LOCAL)
    )
