"""Opening a database."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy import URL

from agentgit.auth import JWT, Keyring, Principal, User
from agentgit.auth.principal import LOCAL, require_name
from agentgit.checkpoints import references
from agentgit.effects import Effect
from agentgit.effects.declarations import as_effects
from agentgit.errors import InvalidInput, NotFound
from agentgit.handles.context import Context
from agentgit.repository.login import disabled
from agentgit.repository.repository import Repository
from agentgit.sessions.webhooks import ENVIRONMENT as WEBHOOK_HOSTS
from agentgit.sessions.webhooks import WebhookHosts
from agentgit.store.database import Database
from agentgit.store.records.encryption_keys import unlock
from agentgit.store.schema import schema
from agentgit.store.schema.tenants import ensure_tenant
from agentgit.store.sql.encryption import keyring_from
from agentgit.store.sql.postgres import POOL_SIZE
from agentgit.store.sql.process import LEASE_SECONDS
from agentgit.store.store import Store

ENVIRONMENT = "AGENTGIT_DATABASE_URL"
TRUST = "AGENTGIT_TRUST"
DEFAULT = "agentgit.db"


def open(
    where: str | Path | URL | None = None,
    *,
    user: str | None = None,
    tenant: str | None = None,
    create: bool = True,
    effects: Mapping[str, Effect | str] | None = None,
    compression: str = "zstd",
    keyring: Keyring | None = None,
    pool_size: int = POOL_SIZE,
    lease_seconds: float = LEASE_SECONDS,
    jwt: JWT | None = None,
    trust: Sequence[str] | None = None,
    webhook_hosts: Sequence[str] | None = None,
) -> Repository:
    """Open a database, making or upgrading it if it is SQLite.

    Args:
        where: A path, `:memory:` or a URL; None is `$AGENTGIT_DATABASE_URL`, else `./agentgit.db`.
        user: Whose sessions to see; None is the local owner, an admin. Who has the database needs no credential, and
            a user who is not there is made.
        tenant: The name of one of the isolated customers of the database; None is the first one. A missing one is made.
        create: False to refuse a file, a tenant or a user that is not there.
        effects: What tools do to the world of which neither `wrap(effects=...)` nor the tool itself says anything, by
            tool name: as `wrap` takes it. `*` is every tool that is not named.
        compression: The packing of new values, `zstd`, `zlib` (bigger and slower) or `none`; all kinds are read.
        pool_size: The most connections to a server; on event loops, on each.
        lease_seconds: The seconds that a run on a server counts as alive after its process was last heard of.
        keyring: The keys that encrypt the contents; None is `$AGENTGIT_ENCRYPTION_KEYS`, else nothing is encrypted.
            From the first time on, the database can only be opened with its keys.
        jwt: The settings by which `authenticate` verifies tokens; None accepts no token.
        trust: Your modules, like `shop.tools`, whose tools can be undone and run again in every session; None is
            `$AGENTGIT_TRUST`, their names with commas between them. They are imported now. As `Repository.trust` takes
            them.
        webhook_hosts: Host names, addresses and networks, like `10.0.0.0/8`, to which webhooks may be sent although
            they are not public; None is `$AGENTGIT_WEBHOOK_ALLOW`, with commas between them.

    Raises:
        InvalidInput: `where` is empty, a number is too small, `effects` holds something that is no effect, a key is
            not the right one, `trust` names no module, `webhook_hosts` no host, or no user or tenant can be called so.
        KeyMissing: The database is encrypted with a key that was not given.
        NotAllowed: The user is disabled.
        NotFound: `create` is False and there is no such file, tenant or user; near names are told. Or a module of
            `trust` cannot be imported, or declares nothing.
        SchemaMismatch: It is older or newer than this library, or not agentgit's; the text has the command to run.
        Unavailable: It cannot be read or written.

    Example:
        >>> with open(":memory:") as repo:
        ...     repo.sessions()
        []
    """
    if where == "":
        raise InvalidInput("The database is an empty string; give a path or a URL, or leave it out.")
    defaults, hosts = as_effects(effects), WebhookHosts.of(_listed(webhook_hosts, WEBHOOK_HOSTS))
    database = Database(
        where if where is not None else os.environ.get(ENVIRONMENT) or DEFAULT,
        pool_size=pool_size,
        lease_seconds=lease_seconds,
        keyring=keyring_from(keyring),
    )
    try:
        if not create:
            _require_file(database)
        schema.ready(database)
        tenant_id = ensure_tenant(database, tenant, create=create)
        store = Store(database, tenant_id, compression, hosts)
        unlock(store.database, tenant_id)
        found = _user(store, user or LOCAL, create=create or user in (None, LOCAL))
        made = Repository(Context(store, Principal(tenant_id=store.tenant_id, user=found), defaults), jwt=jwt)
        made.trust(*trusted(trust))
    except BaseException:
        database.close()
        raise
    return made


def trusted(named: Sequence[str] | None) -> list[str]:
    """Return the modules to trust: those that are named, else those of the environment.

    Raises:
        InvalidInput: It is not a list of names.
    """
    found = _listed(named, TRUST)
    if isinstance(found, str) or not all(isinstance(name, str) for name in found):
        raise InvalidInput(f"trust must be a list of modules, not {named!r}; write trust=['shop.tools'].")
    return list(found)


def _listed(given: Sequence[str] | None, variable: str) -> Sequence[str]:
    """Return what is given, else what an environment variable lists with commas."""
    if given is not None:
        return given
    return [one.strip() for one in os.environ.get(variable, "").split(",") if one.strip()]


def _user(store: Store, name: str, *, create: bool) -> User:
    """Find the user, or make one; a database that cannot be written is read all the same."""
    require_name(name, "user")
    with store.database.reading() as connection:
        found = store.users.opening(connection, name)
        if found is None and not create:
            there = [user.name for user in store.users.all(connection)]
            raise NotFound(
                f"There is no user {name!r}. Add one: `agentgit users add NAME`", near=references.near(name, there)
            )
    if found is not None and found.disabled_at is not None:
        raise disabled(found)
    return found or store.database.write(
        lambda c: store.users.opening(c, name) or store.users.add(c, name, is_admin=name == LOCAL)
    )


def _require_file(database: Database) -> None:
    path = database.url.database
    if database.is_sqlite and not database.in_memory and not Path(path or "").exists():
        raise NotFound(f"There is no database {path}. Create one with: agentgit demo; or name another: --db PATH")
