"""The repository: an open handle on one database, bound to one user, with the verbs on its sessions."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import URL, Connection

from agentgit.auth import JWT, Keyring, Principal, User
from agentgit.auth.roles import EDITOR
from agentgit.auth.scopes import FORK, WRITE
from agentgit.auth.user import LOCAL, expect_name
from agentgit.checkpoints import Checkpoint, references
from agentgit.effects import Effect, ToolInvocation
from agentgit.effects.declarations import as_effects
from agentgit.effects.invocation import ToolTrack
from agentgit.errors import Conflict, InvalidInput, NotFound
from agentgit.handles.branching import Branching
from agentgit.handles.comparison import Across
from agentgit.handles.log import Finds
from agentgit.handles.session import BranchRef, SessionRef
from agentgit.repository.access import People, shut_out
from agentgit.repository.events import Tells
from agentgit.repository.maintenance import Upkeep
from agentgit.repository.privacy import Privacy
from agentgit.repository.transfer import Carrying
from agentgit.sessions import ExternalSession, InternalSession, Tree
from agentgit.sessions.imports import ImportReport, Progress
from agentgit.sessions.session import Branches, Sessions, expect_limit, place_of
from agentgit.sessions.webhook_hosts import ENVIRONMENT as WEBHOOK_HOSTS
from agentgit.sessions.webhook_hosts import WebhookHosts
from agentgit.store.database import Database
from agentgit.store.queries import templates
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.encryption_keys import unlock
from agentgit.store.schema import schema
from agentgit.store.schema.tenants import ensure_tenant
from agentgit.store.sql.encryption import keyring_from
from agentgit.store.sql.leases import LEASE_SECONDS
from agentgit.store.sql.postgres import POOL_SIZE
from agentgit.store.sql.tables import SESSION
from agentgit.store.store import Store

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.agents.turn.auto_checkpoint import AutoCheckpoint
    from agentgit.agents.wrap import Fence
    from agentgit.workspace.api import Workspace

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
        raise InvalidInput("An empty text names no database; give a path, a URL, or nothing at all.")
    defaults, hosts = as_effects(effects), WebhookHosts.of(_listed(webhook_hosts, WEBHOOK_HOSTS))
    database = Database(
        where if where is not None else os.environ.get(ENVIRONMENT) or DEFAULT,
        pool_size=pool_size,
        lease_seconds=lease_seconds,
        keyring=keyring_from(keyring),
    )
    try:
        if not create:
            _expect_file(database)
        schema.ready(database)
        tenant_id = ensure_tenant(database, tenant, create=create)
        store = Store(database, tenant_id, compression, hosts)
        unlock(store.database, tenant_id)
        found = _user(store, user or LOCAL, create=create or user in (None, LOCAL))
        made = Repository(store, Principal(tenant_id=store.tenant_id, user=found), defaults)
        made.trust(*trusted(trust))
    except BaseException:
        database.close()
        raise
    made.jwt = jwt
    return made


def trusted(named: Sequence[str] | None) -> list[str]:
    """Return the modules to trust: those that are named, else those of the environment.

    Raises:
        InvalidInput: It is not a list of names.
    """
    found = _listed(named, TRUST)
    if isinstance(found, str) or not all(isinstance(name, str) for name in found):
        raise InvalidInput(f"trust={named!r} is no list of modules; write trust=['shop.tools'].")
    return list(found)


def _listed(given: Sequence[str] | None, variable: str) -> Sequence[str]:
    """Return what is given, else what an environment variable lists with commas."""
    if given is not None:
        return given
    return [one.strip() for one in os.environ.get(variable, "").split(",") if one.strip()]


def _user(store: Store, name: str, *, create: bool) -> User:
    """Find the user, or make one; a database that cannot be written is read all the same."""
    expect_name(name, "user")
    with store.database.reading() as connection:
        found = store.users.opening(connection, name)
        if found is None and not create:
            there = [user.name for user in store.users.all(connection)]
            raise NotFound(
                f"There is no user {name!r}. `agentgit users add NAME` makes one.", near=references.near(name, there)
            )
    if found is not None and found.disabled_at is not None:
        raise shut_out(found)
    return found or store.database.write(
        lambda c: store.users.opening(c, name) or store.users.add(c, name, is_admin=name == LOCAL)
    )


def _expect_file(database: Database) -> None:
    path = database.url.database
    if database.is_sqlite and not database.in_memory and not Path(path or "").exists():
        raise NotFound(f"There is no database {path}. Make one with: agentgit demo; or name another one: --db PATH")


class Repository(Across, Branching, Carrying, Finds, People, Privacy, Tells, Upkeep):
    """An open handle on one database, bound to one user. A context manager; safe to use from many threads.

    Args:
        store: The store of one tenant.
        principal: The user it acts for; what belongs to others, and is not shared with them, is not found.
        effects: The effects of tools that declare no other, by name; `*` is all of those.
        registry: The functions at hand, of the handle that this one comes from; None for a new one.
    """

    def __repr__(self) -> str:
        return f"Repository({self.store.database.name!r}, user={self.user.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Any object that was made from this repository raises `Unavailable` from then on.

        The repositories that `as_user`, `login` and `authenticate` return share the connections of the one that was
        opened; closing them closes nothing.
        """
        if not self.is_borrowed:
            self.store.database.close()

    def wrap(
        self,
        graph: Any,
        session: str,
        *,
        effects: Mapping[str, Effect | str] | None = None,
        auto_checkpoint: AutoCheckpoint = "turn",
        branch: str | None = None,
        check_effects: bool = True,
        fence: Fence = "replay",
        workspace: str | Path | Workspace | None = None,
        thread_id: str | None = None,
        template: CheckpointRef | None = None,
        replay: str = "record",
        force: bool = False,
    ) -> RollbackAgent:
        """Wrap a compiled LangGraph graph; the session is made if it does not exist, else its current branch goes on.

        Args:
            graph: Any compiled graph; it stays as it is.
            session: The session's name.
            effects: The effects of tools, by tool name: an Effect, or `read_only`, `idempotent`, `irreversible`.
                It wins over what a tool says of itself, and that over the defaults of `agentgit.open`.
            auto_checkpoint: `turn` (before each user message and after its turn), `tool` (also after each batch of
                tool calls), `tool:10` (only at every tenth call), a number n (after every n-th turn), or `off`.
            branch: The branch to continue; None is the current one.
            check_effects: False if `effects` names tools that nodes call out of sight of the graph.
            fence: What to do, after a rollback, about a call that would do what an irreversible or compensable one has
                done, and what that rollback kept: `replay` (answer it from the record), `raise` (`Fenced`), or `off`
                (make it again). A tool that is declared `once` is never called twice.
            workspace: The directory whose files belong to the session: checkpoints keep them, and rollbacks bring them
                back. Or a Workspace, made with its own options.
            thread_id: A thread of the saver that the graph was compiled with, to be read into the session and
                continued; what was read before is not read again.
            template: The checkpoint that a new session begins as: its conversation and state, and its files if a
                workspace is given. A Checkpoint, its id, or text like `support-42` or `support-42@main#3`. What its
                tools did is history: the new session has a world of its own, and never reverses it.
            replay: `execute` to make the tool calls of the template again in the world of the new session: a new
                sandbox, a test system. They run once, when the session is made, in order; `agent.report` has the
                results that differ. Nothing of the session of the template is touched. `record`: no tool runs.
            force: With `replay="execute"`, True to answer from the record the calls that must not or cannot run again.

        Raises:
            InvalidInput: The graph is not compiled, or an effect is declared of a tool that it does not have, or names
                an argument that the tool does not have; or the graph has no saver to read the thread from; or the
                workspace is a directory that is never one, like the home directory.
            NotFound: The session has no such branch, or the saver no such thread; or there is no such template; or a
                function of an effect cannot be imported.
            Conflict: The session has other content than the thread, or began otherwise than as the template.
            WorkspaceChanged: The template's files would take the place of others.
            RollbackBlocked: With `replay="execute"`, a call of the template is irreversible, unknown, undeclared or
                `once`, or its tool is not in the graph; nothing was done, and no session was made.
            RollbackIncomplete: With `replay="execute"`, a tool raised; the same call of `wrap` goes on from there.
        """
        # Late, so that everything but running an agent works without LangGraph, which takes a second to import.
        agents = importlib.import_module("agentgit.agents.wrap")
        made: RollbackAgent = agents.wrap(
            self,
            graph,
            session,
            effects=effects,
            auto_checkpoint=auto_checkpoint,
            branch=branch,
            check_effects=check_effects,
            fence=fence,
            workspace=workspace,
            thread_id=thread_id,
            template=template,
            replay=replay,
            force=force,
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
            saver_or_url: A saver, or the path or URL of a database of SqliteSaver, AsyncSqliteSaver or PostgresSaver.
            threads: The ids of the threads; None is all.
            progress: Told how far it is.
            session_prefix: Put before a thread's id to name its session.
            on_error: `stop` at the first thread that cannot be imported, or `continue` with the others.

        Raises:
            NotFound: There is no such file, or no such thread.
            SchemaMismatch: It is not a database of LangGraph's savers.
            Conflict: A session has other content, or went on here while the thread went on there.
            Corrupt: A thread is damaged, or what was stored differs from it; nothing of that thread is visible.
            Unavailable: The source does not answer.
        """
        self._read(lambda c: self.lookup.expect_scope(c, WRITE))
        agents = importlib.import_module("agentgit.agents.importing.import_langgraph")  # late, as in `wrap`
        report: ImportReport = agents.import_langgraph(
            self, saver_or_url, threads=threads, progress=progress, session_prefix=session_prefix, on_error=on_error
        )
        return report

    def ensure_session(self, name: str, template: CheckpointRef | None = None) -> ExternalSession:
        """Find the session of that name, or make it with its first branch, `main`.

        Args:
            name: The session's name.
            template: The template, as `wrap` takes it.

        Raises:
            InvalidInput: No session can be called so.
            NotFound: There is no such template.
            Conflict: There is a session of that name, which did not begin as the template.
        """
        return self._ensure_session(name, template)

    def _ensure_session(
        self,
        name: str,
        template: CheckpointRef | None,
        *,
        run: Callable[[int], None] | None = None,
        force: bool = False,
    ) -> ExternalSession:
        """Do as `ensure_session`, for a session that is to make the calls of its template again.

        Args:
            name: The session's name.
            template: The template, as `wrap` takes it.
            run: Gets the id of a new session, and provides its tools; None if no calls come along.
            force: True to make the session also if some of them cannot be made again.

        Raises:
            RollbackBlocked: One of them cannot; no session was made.
        """
        self.expect_name(name)

        def find_or_make(connection: Connection) -> ExternalSession:
            found = self._called(connection, name)
            if template is not None:
                point = self._template(connection, template)
                if found:
                    templates.expect_same(self.store, connection, found[0].id, name, *point)
                else:
                    self.lookup.expect_scope(connection, FORK)
                    session_id = templates.begin(
                        self.store, connection, self.user.id, name, *point, calls=run is not None
                    )
                    if run is not None:
                        run(session_id)
                        if not force:
                            self._expect_runnable(connection, session_id)
            elif not found:
                self.lookup.expect_scope(connection, WRITE)
                session_id = self.store.sessions.create(connection, self.user.id, name)
            return found[0] if found else self.lookup.session(connection, session_id)

        return self._change(find_or_make)

    def _called(self, connection: Connection, name: str) -> list[ExternalSession]:
        """Find the session of that name: an own one, or another one's by its full name.

        Raises:
            NotFound: It is the full name of another user's session that they do not see.
        """
        own = self.store.visible.own(connection, self.user.id, SESSION.c.session_name == name, limit=1)
        owner = self.store.users.named(connection, name.partition("/")[0]) if "/" in name else None
        if not own and owner is not None and owner.id != self.user.id:
            return [self.lookup.session(connection, name)]
        return [self.lookup.session(connection, one) for one in own]

    # -- look

    def sessions(
        self,
        limit: int | None = None,
        after: ExternalSession | str | None = None,
        *,
        shared: bool = True,
        name: str | None = None,
    ) -> list[ExternalSession]:
        """List the sessions, own ones and those that others share, the one that moved last first.

        Args:
            limit: The largest number of results; None for all. A page costs the same however many sessions there are.
            after: The last one of the page before, or its `cursor`.
            shared: False for own ones only.
            name: Only those with this in their name, in capitals or not.

        Raises:
            InvalidInput: The limit, the place or the name is none.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> made = [repo.ensure_session(name) for name in ("one", "two", "three")]
            >>> first = repo.sessions(2)
            >>> [one.session_name for one in first], [one.session_name for one in repo.sessions(2, first[-1])]
            (['three', 'two'], ['one'])
        """
        if limit is not None:
            expect_limit(limit, "sessions")
        if name is not None and not isinstance(name, str):
            raise InvalidInput(f"name={name!r} is no part of a name; give a text, or None for all.")
        at = place_of(after)
        return Sessions(
            self._read(
                lambda c: self.store.visible.page(c, self.user.id, limit=limit, after=at, shared=shared, name=name)
            )
        )

    def session(self, ref: SessionRef = None) -> ExternalSession:
        """Find a session by its name or id.

        Args:
            ref: None is the one of your own that moved last. Others' sessions are called like `alice/support-42`, or by
                their name alone where none of your own has it.

        Raises:
            NotFound: There is none.
            Ambiguous: Several have that name, or one has that name and another one that id.
        """
        return self._read(lambda connection: self.lookup.session(connection, ref))

    def branches(self, session: SessionRef = None) -> list[InternalSession]:
        """List the branches of a session in the order they were made."""
        return Branches(self._read(lambda c: self.views.branches(c, self.lookup.session(c, session))))

    def branch(self, session: SessionRef = None, name: BranchRef = None) -> InternalSession:
        """Find a branch by its name or id.

        Args:
            session: The session; None is the one that moved last.
            name: None is the current branch.

        Raises:
            NotFound: There is none.
        """

        def look(connection: Connection) -> InternalSession:
            found = self.lookup.session(connection, session)
            return self.views.branch(connection, found, self.lookup.branch(connection, found, name))

        return self._read(look)

    def tree(self, session: SessionRef = None) -> Tree:
        """Return the tree of a session's branches; `str` draws it."""
        return self._read(lambda c: self.views.tree(c, self.lookup.session(c, session)))

    def delete_checkpoint(
        self, ref: CheckpointRef, session: SessionRef = None, *, branch: BranchRef = None
    ) -> Checkpoint:
        """Delete a checkpoint; the conversation and the tool track stay. Gives the deleted one.

        Args:
            ref: The checkpoint, as `checkpoint` takes it.
            session: The session, as `checkpoint` takes it.
            branch: The branch, as `checkpoint` takes it.

        Raises:
            Conflict: Something needs it, as a branch, a tag, a rollback, a merge or a call that is not resolved.
            NotFound, Ambiguous, InvalidInput: As `checkpoint`.
        """
        found = self.checkpoint(ref, session, branch=branch)
        found.to_dict()  # its content, while it is there
        for one in self._deleted({found.id or 0}):
            if not one.goes:
                raise Conflict(f"Checkpoint {one.point.reference} stays: {one.why}.")
        return found

    def cleanup_auto_checkpoints(self, session: SessionRef = None, *, branch: BranchRef = None, keep: int = 5) -> int:
        """Delete the automatic checkpoints of a path but the newest ones; tell how many went.

        Named ones stay, and so does each that something needs, as `set_retention` tells it.

        Args:
            session: The session; None is the one that moved last.
            branch: The branch; None is the current one.
            keep: The number of automatic ones to keep.

        Raises:
            InvalidInput: `keep` is negative.
        """
        if keep < 0:
            raise InvalidInput(f"keep={keep} is negative; give the number of automatic checkpoints to keep.")
        self._read(lambda c: self.lookup.session(c, session, EDITOR))
        automatic = [point.id or 0 for point in self.checkpoints(session, branch) if point.is_auto]
        return sum(one.goes for one in self._deleted(set(automatic[: max(0, len(automatic) - keep)])))

    def tool_track(self, session: SessionRef = None, branch: BranchRef = None) -> list[ToolInvocation]:
        """List the tool invocations along a branch, from the root of the session, in order."""

        def look(connection: Connection) -> list[ToolInvocation]:
            found = self.lookup.session(connection, session)
            return ToolTrack(self.store.live_track(connection, self.lookup.branch(connection, found, branch)))

        return self._read(look)
