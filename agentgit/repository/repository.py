"""The repository: an open handle on one database, bound to one principal."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from sqlalchemy import Connection

from agentgit.async_api import async_twin
from agentgit.auth import JWT, Principal, ShareLink, User
from agentgit.auth.principal import WRITE
from agentgit.checkpoints import Checkpoint
from agentgit.effects import Effect, RollbackReport, ToolInvocation
from agentgit.errors import InvalidInput, NotFound
from agentgit.handles.context import Context, UserRef
from agentgit.handles.session import Session
from agentgit.handles.session_reader import SessionRef
from agentgit.handles.templates import SessionFactory
from agentgit.repository.events import Events
from agentgit.repository.login import Authenticator
from agentgit.repository.maintenance import Maintenance
from agentgit.repository.resolution import Resolution
from agentgit.repository.transfer import Importer
from agentgit.repository.users import Keys, Users
from agentgit.repository.webhooks import Webhooks
from agentgit.sessions import ExternalSession
from agentgit.sessions.operation import Operation
from agentgit.sessions.reports import ImportReport, OnProgress
from agentgit.sessions.reports import Progress as ImportProgress
from agentgit.sessions.session import Sessions, place_of, require_limit
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.operations import value
from agentgit.store.sql.ids import is_id
from agentgit.store.transfer.summary import Carried

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.agents.branch_context import AutoCheckpoint
    from agentgit.agents.wrap import Fence
    from agentgit.workspace.api import Workspace


class Repository:
    """An open handle on one database, bound to one user. A context manager; safe to use from many threads.

    Args:
        context: The store and the principal.
        jwt: The settings by which tokens are verified; with None, no token is accepted.
        is_borrowed: True if another repository opened the database, and closes it.
    """

    def __init__(self, context: Context, *, jwt: JWT | None = None, is_borrowed: bool = False) -> None:
        self._context = context
        self._login = Authenticator(context, jwt)
        self._is_borrowed = is_borrowed

    def __repr__(self) -> str:
        return f"Repository({self._context.store.database.name!r}, user={self.user.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Any object that was made from this repository raises `Unavailable` from then on.

        The repositories that `as_user`, `login` and `authenticate` return share the connections of the one that was
        opened; closing them closes nothing.
        """
        if not self._is_borrowed:
            self._context.store.database.close()

    # -- namespaces

    @property
    def context(self) -> Context:
        """The store and the principal, for extensions; what it offers may change."""
        return self._context

    @property
    def user(self) -> User:
        """The user whose sessions it shows."""
        return self._context.user

    @cached_property
    def users(self) -> Users:
        """The users of the tenant, for its admins."""
        return Users(self._context)

    @cached_property
    def keys(self) -> Keys:
        """The API keys of the user."""
        return Keys(self._context)

    @cached_property
    def events(self) -> Events:
        """The events of the user's sessions, and the audit trail."""
        return Events(self._context)

    @cached_property
    def webhooks(self) -> Webhooks:
        """The webhooks that the user's events are sent to."""
        return Webhooks(self._context)

    @cached_property
    def maintenance(self) -> Maintenance:
        """Space, integrity, figures and encryption of the database."""
        return Maintenance(self._context)

    # -- graphs

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
            self._context,
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
        progress: Callable[[ImportProgress], None] | None = None,
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
        self._context.read(lambda c: self._context.lookup.require_scope(c, WRITE))
        agents = importlib.import_module("agentgit.agents.importing.import_langgraph")  # late, as in `wrap`
        report: ImportReport = agents.import_langgraph(
            self._context,
            saver_or_url,
            threads=threads,
            progress=progress,
            session_prefix=session_prefix,
            on_error=on_error,
        )
        return report

    def trust(self, *modules: str) -> None:
        """Import modules of yours, so that calls of their tools can be undone and made again without a wrapped graph.

        Known are then, in every session and to every handle that comes from this one: what the decorators in a module
        say, what its mappings of tool names to effects say, and its tools, lists of tools and graphs. A call is undone
        only by the function whose name it recorded. What is stored is never imported, whatever it says.

        Args:
            modules: `package.module`; or `package.module:name` for one list of tools or graph in it, or the function
                that makes it.

        Raises:
            NotFound: One cannot be imported, or declares nothing.
            InvalidInput: It is no name of a module, or an effect in it does not fit its tool.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> repo.trust("agentgit.demo.shop")
        """
        if modules:
            importlib.import_module("agentgit.agents.user_modules").trust(
                self._context.registry, modules
            )  # late: it needs LangGraph

    # -- sessions

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
            >>> made = [repo.session(name, create=True) for name in ("one", "two", "three")]
            >>> first = repo.sessions(2)
            >>> [one.session_name for one in first], [one.session_name for one in repo.sessions(2, first[-1])]
            (['three', 'two'], ['one'])
        """
        if limit is not None:
            require_limit(limit, "sessions")
        if name is not None and not isinstance(name, str):
            raise InvalidInput(f"name must be a string, or None for all, not {name!r}.")
        at = place_of(after)
        return Sessions(
            self._context.read(
                lambda c: self._context.store.visible.page(
                    c, self.user.id, limit=limit, after=at, shared=shared, name=name
                )
            )
        )

    def session(
        self,
        ref: Session | SessionRef = None,
        *,
        create: bool = False,
        template: CheckpointRef | None = None,
        checkpoint: Checkpoint | int | None = None,
    ) -> Session:
        """Find a session by its name or id.

        Args:
            ref: None is the one of your own that moved last. Others' sessions are called like `alice/support-42`, or by
                their name alone where none of your own has it.
            create: True to make the session, with its first branch, `main`, if there is none of that name.
            template: The checkpoint that a new session begins as, as `wrap` takes it.
            checkpoint: Instead of a name, the session that has this checkpoint, or the checkpoint of this id.

        Raises:
            NotFound: There is none; or there is no such template.
            Ambiguous: Several have that name, or one has that name and another one that id.
            InvalidInput: With `create`, no session can have that name.
            Conflict: With `template`, there is a session of that name which did not begin as the template.
        """
        if isinstance(ref, Session):
            ref = ref.id if not create else ref.name
        if ref is not None and checkpoint is not None:
            raise InvalidInput("Name the session, or one of its checkpoints, not both.")
        if create or template is not None:
            return Session(self._context, SessionFactory(self._context).ensure(_name_of(ref), template).id)
        lookup = self._context.lookup

        def find(connection: Connection) -> int:
            owner = None
            if checkpoint is not None:
                owner = lookup.owner_of(connection, checkpoint)
                if owner is None:
                    wanted = checkpoint.id if isinstance(checkpoint, Checkpoint) else checkpoint
                    raise NotFound(f"There is no checkpoint {wanted}. session.checkpoints() lists those of a branch.")
            return lookup.session(connection, owner or ref).id

        return Session(self._context, self._context.read(find))

    def accept(self, token: str) -> Session:
        """Join a session by the token of a link, and return the session.

        Args:
            token: The token as `session.sharing.create_link` returned it.

        Raises:
            NotFound: No link that holds has this token.
        """

        def join(connection: Connection) -> int:
            self._context.store.users.expect(connection, self._context.user.id)
            session_id = self._context.store.members.accept(connection, token, self._context.user.id)
            if session_id is None:
                raise NotFound("This link is not valid: it is mistyped, revoked or expired. Ask for a new one.")
            return session_id

        return Session(self._context, self._context.change(join, scope=WRITE))

    def revoke_link(self, link: ShareLink | int) -> ShareLink:
        """End a link of any session at once, as `session.sharing.revoke_link`.

        Args:
            link: The link or its id.

        Raises:
            NotFound: There is no such link.
            NotAllowed: You are not the owner of its session.
        """
        wanted = link.id if isinstance(link, ShareLink) else link

        def find(connection: Connection) -> int:
            found = self._context.store.members.link(connection, wanted) if is_id(wanted) else None
            if found is None or self._context.lookup.sees(connection, found.session_id) is None:
                raise NotFound(f"There is no link {wanted!r}. session.sharing.links() lists those of a session.")
            return found.session_id

        return Session(self._context, self._context.read(find)).sharing.revoke_link(wanted)

    def import_(
        self,
        path: str | Path | IO[bytes],
        *,
        session: str | None = None,
        workspace: str | Path | Workspace | None = None,
        progress: OnProgress | None = None,
    ) -> Carried:
        """Make a session of what `export` wrote, with ids and threads of its own; all of it, or nothing.

        The file is held against itself first: its hashes, and all that names something else. What its calls did is in
        the world that they were made in: it is never reversed or made again from here, and plans say so. What was
        consumed there stays consumed.

        Args:
            path: The file; or a binary stream.
            session: The name for the session; None for its own name, or the next free one like it.
            workspace: The directory that its files are to belong to, or a Workspace. They go into the store of that
                workspace; the directory stays as it is until you rewind or roll back. None leaves the files out.
            progress: Told how many bytes are read, and of how many; the file is read twice. It is called inside of a
                transaction, so it may read, but not write to this database.

        Raises:
            NotFound: There is no such file.
            InvalidInput: It is no export, or a newer one; or no session can be called so; or the workspace is none, or
                has an environment of its own.
            Corrupt: A line is damaged or forged; the text says which one, and what is wrong.
            Conflict: There is a session of that name; or `progress` wrote to this database, or read one in memory.
            Unavailable: Files cannot be stored.
        """
        return Importer(self._context).import_(path, session, workspace, progress)

    # -- what stopped half way

    def operation(self, operation: int) -> Operation:
        """Find an operation by its id.

        Raises:
            NotFound: There is none.
        """

        def look(connection: Connection) -> Operation:
            row = self._context.store.operations.find(connection, operation) if is_id(operation) else None
            if row is None or self._context.lookup.sees(connection, row.external_session_id) is None:
                raise NotFound(f"There is no operation {operation}. session.operations() lists those of a session.")
            return value(row)

        return self._context.read(look)

    def report(self, operation: Operation | int) -> RollbackReport:
        """Return what an operation did; of one that is not done, what it did until now.

        Args:
            operation: The operation as `operations` lists it, or its id.

        Raises:
            NotFound: There is no such operation.
        """
        found = self.operation(operation.id if isinstance(operation, Operation) else operation)
        return self._context.engine().read_report(found.id)

    def resume(self, operation: Operation | int, *, force: bool = False) -> RollbackReport:
        """Finish a rollback or switch that failed half way or whose process died; what was done is not done again.

        Args:
            operation: The operation as `operations` lists it, or its id.
            force: True to give up what still cannot be done: the world stays so, and the report says where.

        Raises:
            NotFound: There is no such operation.
            Conflict: It is being worked on, or a turn or another operation of its session runs.
            RollbackBlocked: What happened since it was planned cannot be reversed; nothing was done.
            RollbackIncomplete: A reversal or a tool failed again.
        """
        found = self.operation(operation.id if isinstance(operation, Operation) else operation)
        self._context.read(lambda c: self._context.authorize(c, found.external_session_id))
        with self._context.noting_moves(found.external_session_id):
            return self._context.engine().resume(found.id, force=force)

    def resolve(self, invocation: ToolInvocation | int, outcome: str, *, result: Any = None) -> ToolInvocation:
        """Record what really happened, where the record could not know, and return the updated invocation.

        For a call that is `unknown`, because it was broken off or raised, the outcome states whether the call happened;
        for one that is `reverse_failed` or `reverse_unknown`, whether its reversal happened.

        Args:
            invocation: The invocation or its id.
            outcome: `happened` or `did_not_happen`.
            result: What a call that happened has returned, JSON-like: its undo function gets it, and so does the model
                when its turn goes on.

        Raises:
            NotFound: There is no such invocation.
            InvalidInput: The outcome is neither, or there is nothing to decide, or there can be no result.
        """
        return Resolution(self._context).resolve(invocation, outcome, result=result)

    # -- acting for somebody

    def as_user(self, user: UserRef) -> Repository:
        """Return a handle that acts for another user of the tenant, with that user's rights and no more; for admins.

        It shares the database and what was wrapped here can be undone through it; closing it closes nothing. It ends
        when the user is disabled, and with the access of the admin.

        Args:
            user: A User, a name or an id.

        Raises:
            NotAllowed: You are no admin, or the user is disabled.
            NotFound: There is no such user.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> ada, bob = (repo.as_user(repo.users.add(name)) for name in ("ada", "bob"))
            >>> session = ada.session("support-42", create=True)
            >>> bob.sessions()
            []
            >>> member = session.sharing.share("bob")
            >>> [(one.reference, one.role) for one in bob.sessions()]
            [('ada/support-42', 'viewer')]
        """
        return self._bound_to(self._login.as_user(user))

    def authenticate(self, credential: str, source: str | None = None) -> Repository:
        """Return a handle for whoever shows this credential; it ends when that is revoked, disabled or over.

        Args:
            credential: An API key, or a token if the database was opened with `jwt=`.
            source: The caller's address, to count failures by; None counts none.

        Raises:
            NotAllowed: It does not hold; the text is the same whatever the cause.
            TooManyAttempts: There were too many failures from that address.
            Unavailable: PyJWT is not installed.
        """
        return self._bound_to(self._login.authenticate(credential, source))

    def login(self, name: str, password: str, source: str | None = None, device: str | None = None) -> Repository:
        """Return a handle for the user who has this password; it ends when the user is disabled or gets another one.

        Args:
            name: The name of the user.
            password: The password of the user.
            source: The caller's address, to count failures by; None counts by the name alone.
            device: What `keys.device()` gave after an earlier login there; while it holds, failures elsewhere do not
                count, and those of this device count for it alone.

        Raises:
            NotAllowed: Nobody of that name has this password; the text is the same whatever the cause.
            TooManyAttempts: There were too many failures; `retry_after` says how many seconds to wait.
            Unavailable: Argon2 is not installed.
        """
        return self._bound_to(self._login.login(name, password, source, device))

    def _bound_to(self, principal: Principal) -> Repository:
        """Return a repository on the same database for another principal."""
        return Repository(self._context.bound_to(principal), jwt=self._login.jwt, is_borrowed=True)

    aimport_langgraph = async_twin(import_langgraph)
    asessions = async_twin(sessions)
    asession = async_twin(session)
    aaccept = async_twin(accept)
    arevoke_link = async_twin(revoke_link)
    aas_user = async_twin(as_user)
    aimport_ = async_twin(import_)
    aoperation = async_twin(operation)
    areport = async_twin(report)
    aresume = async_twin(resume)
    aresolve = async_twin(resolve)
    alogin = async_twin(login)
    aauthenticate = async_twin(authenticate)


def _name_of(ref: SessionRef) -> str:
    """Return the name of a session that is to be made if it does not exist.

    Raises:
        InvalidInput: It is an id, or missing.
    """
    if isinstance(ref, ExternalSession):
        return ref.session_name
    if not isinstance(ref, str):
        raise InvalidInput(f"A session needs a name of 1 to 200 characters, not {ref!r}.")
    return ref
