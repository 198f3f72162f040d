"""The repository: an open handle on one database, bound to one principal."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from agentgit.async_api import async_twin, twin_of
from agentgit.auth import Principal, ShareLink, User
from agentgit.auth.principal import EDITOR, WRITE
from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.queries import parse_time_cursor
from agentgit.effects import Effect, RollbackPlan, RollbackReport, ToolInvocation
from agentgit.errors import InvalidInput, NotFound
from agentgit.handles.context import Context, SessionAccess, UserRef
from agentgit.handles.session import Session
from agentgit.handles.session_reader import SessionRef
from agentgit.handles.templates import SessionFactory
from agentgit.next_steps import Next
from agentgit.repository.events import Events
from agentgit.repository.maintenance import Maintenance, Resolution
from agentgit.repository.transfer import Importer
from agentgit.repository.users import Keys, Users, principal_of_key, principal_of_user
from agentgit.sessions import ExternalSession
from agentgit.sessions.reports import ImportReport, OnProgress, Operation
from agentgit.sessions.reports import Progress as ImportProgress
from agentgit.sessions.rerun import RerunReport, Reruns
from agentgit.sessions.session import RERUN, Sessions, require_limit
from agentgit.sessions.stats import Prices
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.operations import operation_from_row
from agentgit.store.sql.ids import is_id
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.transfer.summary import TransferSummary

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from agentgit.agents.agent import RollbackAgent
    from agentgit.agents.branch_context import AutoCheckpoint
    from agentgit.agents.graph.host_saver import HostSaver
    from agentgit.agents.graph.rollback_graph import RollbackGraph
    from agentgit.agents.graph.threads import Confirm
    from agentgit.agents.rerun.answers import OnMiss
    from agentgit.agents.rerun.session import GraphFactory, Judge, SessionOrBranch
    from agentgit.agents.wrap import FenceMode, OnUnanswered, UnownedCalls
    from agentgit.workspace.api import Workspace


class Repository:
    """An open handle on one database, bound to one user. A context manager; safe to use from many threads.

    Args:
        context: The store and the principal.
        is_borrowed: True if another repository has opened the database and closes it.
    """

    def __init__(self, context: Context, *, is_borrowed: bool = False) -> None:
        self._context = context
        self._is_borrowed = is_borrowed

    def __repr__(self) -> str:
        return f"Repository({self._context.store.database.name!r}, user={self.user.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what running turns have not written yet, and close all connections.

        Objects created from this repository raise `Unavailable` from then on.

        The repositories that `as_user` and `authenticate` return share the connections of the one that was opened;
        closing them has no effect.
        """
        if not self._is_borrowed:
            self._context.store.database.close()

    # -- namespaces

    @property
    def context(self) -> Context:
        """The store and the principal, for extensions. Its interface may change."""
        return self._context

    @property
    def user(self) -> User:
        """The user that the repository is bound to."""
        return self._context.user

    @cached_property
    def users(self) -> Users:
        """The users. For admins."""
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
    def maintenance(self) -> Maintenance:
        """Garbage collection, integrity checks, statistics and encryption of the database."""
        return Maintenance(self._context)

    # -- graphs

    def wrap(
        self,
        graph: Any,
        session: str,
        *,
        effects: Mapping[Any, Effect | str] | None = None,
        auto_checkpoint: AutoCheckpoint = "turn",
        branch: str | None = None,
        check_effects: bool = True,
        fence: FenceMode = "replay",
        workspace: str | Path | Workspace | None = None,
        store: Any = None,
        thread_id: str | None = None,
        template: CheckpointRef | None = None,
        replay: str = "record",
        force: bool = False,
        unowned_calls: UnownedCalls = "report",
        on_unanswered: OnUnanswered = "answer",
    ) -> RollbackAgent:
        """Wrap a compiled LangGraph graph as an agent on a session, which is created if it does not exist.

        Args:
            graph: Any compiled graph. It is not modified.
            session: The session's name.
            effects: The effects of tools: an Effect, or `read_only`, `state`, `workspace`, `idempotent`,
                `irreversible`. A key is the name of a tool, after that of the tool or subgraph node around it if
                several have the name (`"desk.order"`), or the function of a tool (`order.func`). They override what a
                tool itself declares, which overrides the defaults of `agentgit.open`.
            auto_checkpoint: `turn` (before each user message and after its turn), `tool` (also after each batch of
                tool calls), `tool:10` (only at every tenth call), a number n (after every n-th turn), `5m` (after a
                turn, if the newest checkpoint is 5 minutes old; also `30s`, `2h`) or `off`.
            branch: The branch to continue; None for the current one.
            check_effects: False to allow `effects` to name tools that are not found in the graph.
            fence: What to do about a call that repeats an irreversible or compensable call which a rollback kept:
                `replay` (answer it from the record), `raise` (raise `Fenced`) or `off` (make it again). A tool that is
                declared `once` is never called twice.
            workspace: The directory whose files belong to the session: checkpoints save them, and rollbacks restore
                them. Or a Workspace, created with its own options.
            store: The long-term memory of the graph, a LangGraph `BaseStore`; None for the store that the graph was
                compiled with. What the graph writes to it is recorded, and a rollback undoes it.
            thread_id: A thread of the saver that the graph was compiled with. It is read into the session and
                continued; what was read before is not read again.
            template: The checkpoint from which a new session begins, with its conversation and state, and its files if
                a workspace is given. A Checkpoint, its id, or text like `support-42` or `support-42@main#3`. What its
                tools did is history: the new session has its own world, and never reverses it.
            replay: `record`: no tool of the template runs. `execute`: make the tool calls of the template again in the
                world of the new session, such as a new sandbox or a test system. They run once, in order, when the
                session is created; `agent.report` has the results that differ. The session of the template does not
                change.
            force: With `replay="execute"`, True to answer from the record the calls that must not or cannot run again.
            unowned_calls: What to do about a call of a tool in a thread that no turn owns, such as one that a node has
                started without its context: `report` (it runs, and plans and reports name it) or `refuse` (raise
                `Fenced` if the tool is declared compensable or irreversible).
            on_unanswered: What a new message does about tool calls that the last turn left without a result, when it
                broke off or asks a question: `answer` (tell the model what is known of them), `undo` (roll back to the
                newest checkpoint before them, and continue on the new branch) or `raise` (raise `Conflict`).

        Raises:
            InvalidInput: The graph is not compiled; an effect is declared for a tool that the graph does not have, or
                names an argument that the tool does not have; the graph has no saver to read the thread from; or the
                workspace is a directory that is never allowed, like the home directory.
            NotFound: The branch, thread or template does not exist, or a function of an effect cannot be imported.
            Conflict: The session has other content than the thread, or did not begin from the template.
            WorkspaceChanged: The template's files would replace other files.
            RollbackBlocked: With `replay="execute"`, a call of the template is irreversible, unknown, undeclared or
                `once`, or its tool is not in the graph. Nothing was done, and no session was created.
            RollbackIncomplete: With `replay="execute"`, a tool raised. Repeat the same call of `wrap` to continue.
        """
        # Imported late: importing LangGraph takes a second, and only running an agent needs it.
        wrap_module = importlib.import_module("agentgit.agents.wrap")
        wrapped = wrap_module.PreparedGraph(
            self._context,
            graph,
            effects=effects,
            auto_checkpoint=auto_checkpoint,
            check_effects=check_effects,
            fence=fence,
            workspace=workspace,
            store=store,
            unowned_calls=unowned_calls,
            on_unanswered=on_unanswered,
        )
        agent: RollbackAgent = wrap_module.wrap(
            wrapped, session, branch=branch, thread_id=thread_id, template=template, replay=replay, force=force
        )
        return agent

    def graph(
        self,
        graph: Any,
        *,
        effects: Mapping[Any, Effect | str] | None = None,
        confirm: Confirm = "interrupt",
        auto_checkpoint: AutoCheckpoint = "turn",
        check_effects: bool = True,
        fence: FenceMode = "replay",
        workspace: str | Path | Workspace | None = None,
        store: Any = None,
        unowned_calls: UnownedCalls = "report",
        on_unanswered: OnUnanswered = "answer",
    ) -> RollbackGraph:
        """Return a graph for hosts and clients of LangGraph, whose threads are sessions of this repository.

        It is a LangGraph graph: servers and libraries take it where they take a compiled graph. A thread id belongs to
        one session, which its first run creates. A run continues the current branch. A run or `update_state` with an
        older `checkpoint_id` is a rollback to that point, then the run. History lists all branches, newest first.

        Args:
            graph: Any compiled graph. It is not modified, and its checkpointer is not used.
            effects: The effects of tools, as for `wrap`.
            confirm: What a run at an older checkpoint does before it reverses a compensable effect or makes a reversed
                one again: `interrupt` (ask with the plan; `Command(resume=True)` continues, any other answer cancels),
                `raise` (raise `RollbackBlocked`) or `never` (do it). Reversible effects are reversed without asking. An
                effect that cannot be reversed always raises `RollbackBlocked`; no client can force it.
            auto_checkpoint: The times at which automatic checkpoints are made, as for `wrap`.
            check_effects: False to allow `effects` to name tools that are not found in the graph.
            fence: What to do about a call that repeats one which a rollback kept, as for `wrap`.
            workspace: The directory whose files belong to the sessions, as for `wrap`. The threads share it.
            store: The long-term memory of the graph, as for `wrap`. A host that gives a store of its own replaces it.
            unowned_calls: What to do about a call in a thread that no turn owns, as for `wrap`.
            on_unanswered: What a new message does about calls without a result, as for `wrap`.

        Raises:
            InvalidInput, NotFound: As for `wrap`.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build, open_shop
            >>> shop = open_shop("served.db")
            >>> app = agentgit.open(":memory:").graph(build(shop), effects=EFFECTS)
            >>> config = {"configurable": {"thread_id": "support-42"}}
            >>> before = app.invoke({"messages": [("user", "hello")]}, config)
            >>> then = app.get_state(config).config
            >>> after = app.invoke({"messages": [("user", "order two chairs")]}, config)
            >>> again = app.invoke({"messages": [("user", "order a sofa")]}, then)
            >>> again["messages"][-1].content
            'Ordered 1 sofa for 300 euros (sofa-1).'
        """
        wrap_module = importlib.import_module("agentgit.agents.wrap")
        threads_module = importlib.import_module("agentgit.agents.graph.threads")
        graph_module = importlib.import_module("agentgit.agents.graph.rollback_graph")
        wrapped = wrap_module.PreparedGraph(
            self._context,
            graph,
            effects=effects,
            auto_checkpoint=auto_checkpoint,
            check_effects=check_effects,
            fence=fence,
            workspace=workspace,
            store=store,
            unowned_calls=unowned_calls,
            on_unanswered=on_unanswered,
        )
        served: RollbackGraph = graph_module.make_graph(threads_module.Threads(self._context, wrapped, confirm))
        return served

    def saver(self) -> HostSaver:
        """Return the saver to give a host beside the graphs of `graph`, whose threads are sessions of this user.

        A host that has its own API for threads deletes, copies and prunes sessions with it, and cancels a run with a
        rollback to the point before it. Only the runs of the graphs write.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build, open_shop
            >>> repo = agentgit.open(":memory:")
            >>> app = repo.graph(build(open_shop("hosted.db")), effects=EFFECTS)
            >>> answer = app.invoke({"messages": [("user", "hello")]}, {"configurable": {"thread_id": "support-42"}})
            >>> saver = repo.saver()
            >>> saver.copy_thread("support-42", "support-43")
            >>> saver.delete_thread("support-42")
            >>> [session.session_name for session in repo.sessions()]
            ['support-43']
        """
        saver_module = importlib.import_module("agentgit.agents.graph.host_saver")  # late, as in `wrap`
        saver: HostSaver = saver_module.HostSaver(self._context)
        return saver

    def import_langgraph(
        self,
        saver_or_url: Any,
        threads: Sequence[str] | None = None,
        progress: Callable[[ImportProgress], None] | None = None,
        *,
        session_prefix: str = "",
        as_threads: bool = False,
        on_error: str = "stop",
    ) -> ImportReport:
        """Import each thread of a LangGraph saver as a session. The saver is only read.

        Importing again adds what is new. A question that waits can be answered here, as in the program of the saver.

        Args:
            saver_or_url: A saver, or the path or URL of a database of SqliteSaver, AsyncSqliteSaver or PostgresSaver.
            threads: The ids of the threads; None for all.
            progress: Called with the progress of the import.
            session_prefix: The text before the thread's id in the name of its session.
            as_threads: True to import them as threads of `SQLModelSaver` with the same ids, for a graph that is
                compiled with it. Nothing is recorded for a rollback.
            on_error: `stop` at the first thread that cannot be imported, or `continue` with the others.

        Raises:
            NotFound: There is no such file or thread.
            SchemaMismatch: The source is not a database of a LangGraph saver.
            Conflict: A session or a thread here has other content, or has continued like its source since the last
                import.
            Corrupt: A thread is damaged, or what was stored differs from it; nothing of that thread is visible.
            Unavailable: The source does not respond.
        """
        self._context.read(lambda c: self._context.lookup.require_scope(c, WRITE))
        importer_module = importlib.import_module("agentgit.agents.importing.import_langgraph")  # late, as in `wrap`
        report: ImportReport = importer_module.import_langgraph(
            self._context,
            saver_or_url,
            threads=threads,
            progress=progress,
            session_prefix=session_prefix,
            as_threads=as_threads,
            on_error=on_error,
        )
        return report

    def rerun(
        self,
        sessions: Iterable[SessionOrBranch] | SessionOrBranch,
        graph: Any = None,
        *,
        judge: Judge | None = None,
        executor: Executor | None = None,
        factory: GraphFactory | None = None,
        progress: OnProgress | None = None,
        name: str | None = None,
        tools: Any = "record",
        on_miss: OnMiss = "tell",
        effects: Mapping[str, Effect | str] | None = None,
        config: Mapping[str, Any] | None = None,
        context: Any = None,
        max_calls: int | None = None,
        prices: Prices | None = None,
    ) -> Reruns:
        """Run recorded sessions again in a graph, as `RollbackAgent.rerun` does, without acting on the world.

        A session that cannot be run again, for example because it is damaged, is a row that says so, as is one whose
        judge raises; the others go on. The results are stored, and `reruns` reads them again.

        Args:
            sessions: The sessions: a list of sessions, names or ids, such as `repo.sessions(name="refund")`, or one of
                them. Text like `support-42@retry` names a branch; else the current one is run again. The hits of
                `Session.search` stand for the branches on which they are, each of which runs once.
            graph: The compiled graph to run.
            judge: A function that rates each rerun that ran to its end. It receives a `JudgedRerun` with `report`,
                `messages`, `recorded_messages`, `state` and `recorded_state`, and returns True or False, a number where
                higher is better, or a word.
            executor: Run the sessions at the same time: a `ThreadPoolExecutor`, or with `factory` an executor of
                processes, like `ProcessPoolExecutor(4)` or the `get_executor()` of a Dask client.
            factory: In place of `graph`, a function that builds the graph for each session. It takes the `Session`,
                and returns a compiled graph. A `RecordedModel(session)` in it has the replies of the current branch,
                also if `sessions` names another one. For processes, it and `judge` are functions of a module.
            progress: Called with the number of sessions that have ended, and their number.
            name: The name of the reruns and of their branches; None for one with the time.
            tools: How calls are answered, as for `RollbackAgent.rerun`.
            on_miss: What to do about a call that is not in the record: `tell` the model so, `stop`, or a function that
                receives the call and returns its answer.
            effects: The effects of the tools, as for `wrap`.
            config: The config for all turns, as `invoke` takes it.
            context: The context for all turns, if the graph has a `context_schema`; it is not recorded.
            max_calls: The most calls that each rerun may make; None for twice the recorded ones and 25 more.
            prices: The prices of a million tokens by the name of the model, as for `Session.stats`. With them, the
                results and the stored reports have the costs of the recorded part and of the rerun.

        Raises:
            InvalidInput: An argument is not valid, there are no sessions, or something cannot be sent to another
                process; nothing was run.
            Conflict: There are reruns of that name already.
            Unavailable: The executor takes no work.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build, open_shop
            >>> repo, graph = agentgit.open(":memory:"), build(open_shop("yesterday.db"))
            >>> for session, text in [("a", "order two chairs"), ("b", "order a sofa")]:
            ...     answer = repo.wrap(graph, session=session, effects=EFFECTS).run(text)
            >>> print(repo.rerun(repo.sessions(), graph, name="again", judge=lambda rerun: rerun.report.is_same))
            again: 2 sessions, matched 100%, judge 100%
              b  done  matched 100%  passed
              a  done  matched 100%  passed
        """
        reruns = self._prepare_rerun(
            sessions,
            graph,
            executor=executor,
            progress=progress,
            factory=factory,
            name=name,
            judge=judge,
            tools=tools,
            on_miss=on_miss,
            effects=effects,
            config=config,
            context=context,
            max_calls=max_calls,
            prices=prices,
        )
        results: Reruns = reruns.run()
        return results

    @twin_of(rerun)
    async def arerun(self, *args: Any, **options: Any) -> Reruns:
        reruns = await asyncio.to_thread(self._prepare_rerun, *args, **options)
        results: Reruns = await reruns.arun()
        return results

    def _prepare_rerun(
        self,
        sessions: Any,
        graph: Any = None,
        *,
        executor: Executor | None = None,
        progress: OnProgress | None = None,
        factory: GraphFactory | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Any:
        module = self._rerun_module
        plan = module.RerunPlan(graph=graph, factory=factory, name=name or "", **options)
        return module.SessionReruns(self._context, sessions, plan, executor, progress)

    def reruns(self, name: str) -> Reruns:
        """Return the results of reruns that `rerun` has run, so far, in the order in which they began.

        Sessions of which nothing ran are not among them.

        Args:
            name: The name of the reruns.

        Raises:
            NotFound: There are no reruns of that name.
        """
        results: Reruns = self._rerun_module.read_reruns(self._context, name)
        return results

    @property
    def _rerun_module(self) -> Any:
        return importlib.import_module("agentgit.agents.rerun.sessions")  # late, as in `wrap`

    def trust(self, *modules: str) -> None:
        """Import your modules, so that calls of their tools can be undone and made again without a wrapped graph.

        This registers the decorated functions of a module, its mappings of tool names to effects, and its tools, lists
        of tools and graphs. They apply to every session, and to every handle that comes from this one. Stored values of
        the module's data types (dataclasses, enums, named tuples, pydantic models) are rebuilt. A call is undone
        only by the function whose name it recorded. A module is never imported because stored data names it.

        Args:
            modules: `package.module`; or `package.module:name` for one list of tools or graph in it, or the function
                that creates it.

        Raises:
            NotFound: A module cannot be imported, or declares nothing.
            InvalidInput: A module name is not valid, or an effect does not fit its tool.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> repo.trust("agentgit.demo.shop")
        """
        if modules:
            importlib.import_module("agentgit.agents.user_modules").register_modules(
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
    ) -> Sessions:
        """List the user's own sessions and those that others share, most recently updated first.

        Args:
            limit: The maximum number of results; None for all. The cost of a page does not depend on the number of
                sessions.
            after: The last session of the previous page, or its `cursor`.
            shared: False to list only the user's own sessions.
            name: Only sessions with this text in their name, ignoring case.

        Raises:
            InvalidInput: The limit, the cursor or the name is not valid.

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
        after = after.cursor if isinstance(after, ExternalSession) else after
        cursor = parse_time_cursor(after) if after is not None else None
        return Sessions(
            self._context.read(
                lambda c: self._context.store.visible_sessions.page(
                    c, self.user.id, limit=limit, after=cursor, shared=shared, name=name
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
            ref: The name or id; None for your most recently updated session, or a shared one if you have none.
                Sessions of others are named like `alice/support-42`, or by their name alone if none of your own has it.
            create: True to create the session, with its first branch `main`, if there is none of that name.
            template: The checkpoint from which a new session begins: a Checkpoint, its id, or text like `support-42` or
                `support-42@main#3`.
            checkpoint: A checkpoint or its id, to find its session instead of naming it.

        Raises:
            NotFound: There is no such session, checkpoint or template.
            Ambiguous: Several sessions have that name, or it is the name of one and the id of another.
            InvalidInput: With `create`, the name is not valid; or both `ref` and `checkpoint` are given.
            Conflict: With `template`, there is a session of that name that did not begin from the template.
        """
        if isinstance(ref, Session):
            ref = ref.id if not create else ref.name
        if ref is not None and checkpoint is not None:
            raise InvalidInput("Name the session, or one of its checkpoints, not both.")
        if create or template is not None:
            name: Any = ref.session_name if isinstance(ref, ExternalSession) else ref  # `ensure` checks it
            return Session(self._context, SessionFactory(self._context).ensure(name, template).id)
        lookup = self._context.lookup

        def find(transaction: Reading) -> int:
            external_session = None
            if checkpoint is not None:
                external_session = lookup.session_of(transaction, checkpoint)
                if external_session is None:
                    checkpoint_id = checkpoint.id if isinstance(checkpoint, Checkpoint) else checkpoint
                    raise NotFound(f"There is no checkpoint {checkpoint_id}.", Next("list_checkpoints"))
            return lookup.session(transaction, external_session or ref).id

        return Session(self._context, self._context.read(find))

    def accept(self, token: str) -> Session:
        """Join a session with the token of a link, and return the session.

        Args:
            token: The token that `session.sharing.create_link` returned.

        Raises:
            NotFound: The token is mistyped, or its link is revoked or expired.
        """

        def join(transaction: Writing) -> int:
            self._context.store.users.require_exists(transaction, self._context.user.id)
            session_id = self._context.store.members.accept(transaction, token, self._context.user.id)
            if session_id is None:
                raise NotFound("This link is not valid: it is mistyped, revoked or expired. Ask for a new one.")
            return session_id

        return Session(self._context, self._context.change(join, scope=WRITE))

    def revoke_link(self, link: ShareLink | int) -> ShareLink:
        """Revoke a link of any session, like `session.sharing.revoke_link`.

        Args:
            link: The link or its id.

        Raises:
            NotFound: There is no such link.
            NotAllowed: You are not the owner of its session.
        """
        link_id = link.id if isinstance(link, ShareLink) else link

        def find(transaction: Reading) -> int:
            share_link = self._context.store.members.link(transaction, link_id) if is_id(link_id) else None
            if share_link is None or self._context.lookup.find_visible(transaction, share_link.session_id) is None:
                raise NotFound(f"There is no link {link_id!r}.", Next("list_links"))
            return share_link.session_id

        return Session(self._context, self._context.read(find)).sharing.revoke_link(link_id)

    def import_(
        self,
        path: str | Path | IO[bytes] | Sequence[Checkpoint],
        *,
        session: str | None = None,
        workspace: str | Path | Workspace | None = None,
        progress: OnProgress | None = None,
    ) -> TransferSummary:
        """Import a file that `export` wrote, or plain checkpoints, as a new session; completely or not at all.

        The hashes of the file, and its references between records, are checked first. The effects of its calls are in
        another world, so they are never reversed or repeated from here, and plans say so; nor does what waits in it go
        on without a new message. The fence and `once` apply to them as to other calls.

        Plain checkpoints are `Checkpoint` values, such as those built by hand, or a file with the JSON array of their
        `to_dict`. They become one branch in the order of their times, with new ids; `metadata["data"]["imported"]` has
        the former ones. A checkpoint without a time gets the current one.

        Args:
            path: The file, a binary stream, or a list of checkpoints.
            session: The name of the session; None for its original name, or the next free one like it.
            workspace: The directory or Workspace that the files will belong to. They are stored as snapshots of that
                workspace; the directory does not change until you rewind or roll back. None leaves the files out.
            progress: Called with the number of bytes that are read, and their total; the file is read twice. It is
                called inside a transaction, so it may read from this database but not write to it.

        Raises:
            NotFound: There is no such file.
            InvalidInput: The file is neither an export nor JSON of checkpoints, or of a newer version; a checkpoint is
                not valid, which the message names; the name of the session is not valid; or the workspace is not valid,
                or has a custom environment.
            Corrupt: A line is damaged or forged; the message says which one, and what is wrong.
            Conflict: There is a session of that name; or `progress` wrote to this database, or read from one in memory.
            Unavailable: The file cannot be read, or its files cannot be stored.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> built = agentgit.Checkpoint(checkpoint_name="before payment", session_state={"cart": ["chair"]})
            >>> repo.import_([built], session="support-42").checkpoints
            1
            >>> repo.session("support-42").get_checkpoint("before payment").session_state
            {'cart': ['chair']}
        """
        return Importer(self._context).import_(path, session, workspace, progress)

    # -- operations

    def operation(self, operation: int) -> Operation:
        """Find an operation by its id.

        Raises:
            NotFound: There is no such operation.
        """

        def load(transaction: Reading) -> Operation:
            row = self._context.store.operations.find(transaction, operation) if is_id(operation) else None
            if row is None or self._context.lookup.find_visible(transaction, row.external_session_id) is None:
                raise NotFound(f"There is no operation {operation}.", Next("list_operations"))
            return operation_from_row(row)

        return self._context.read(load)

    def report(self, operation: Operation | int) -> RollbackReport | RerunReport:
        """Return the report of an operation; of an unfinished one, what it has done so far.

        Args:
            operation: The operation, or its id.

        Raises:
            NotFound: There is no such operation.
        """
        target = self.operation(operation.id if isinstance(operation, Operation) else operation)
        if target.kind == RERUN:
            return self.session(target.external_session_id).compare_rerun(target.internal_session_id).report
        return self._context.engine().read_report(target.id)

    def resume(
        self, operation: Operation | int, *, force: bool = False, plan: RollbackPlan | str | None = None
    ) -> RollbackReport:
        """Finish a rollback or switch that failed halfway or whose process died. Completed steps are not repeated.

        Args:
            operation: The operation, or its id.
            force: True to give up steps that still fail; the report lists what remains in the world.
            plan: The plan of a `PlanChanged`, or its `identity`, to do what has become more since the operation began.

        Raises:
            NotFound: There is no such operation.
            PlanChanged: It would reverse or run again calls that were not planned, or restore files that a turn has
                changed since. Nothing was done, and the error has the plan of what would be done now.
            Conflict: It is already running, or a turn or another operation of its session is.
            RollbackBlocked: Something that happened since it was planned cannot be reversed. Nothing was done.
            RollbackIncomplete: A reversal or a tool failed again.
        """
        target = self.operation(operation.id if isinstance(operation, Operation) else operation)
        access = SessionAccess(self._context, target.external_session_id)
        self._context.read(lambda c: access.load_session(c, EDITOR))
        with self._context.recording_moves(target.external_session_id):
            return self._context.engine().resume(target.id, force=force, plan=plan)

    def resolve(self, invocation: ToolInvocation | int, outcome: str, *, result: Any = None) -> ToolInvocation:
        """Record what really happened to a call whose outcome is unknown, and return the updated invocation.

        For a call that is `unknown`, because it was interrupted or raised, the outcome states whether the call
        happened. For one that is `reverse_failed` or `reverse_unknown`, it states whether its reversal happened.

        Args:
            invocation: The invocation or its id.
            outcome: `happened` or `did_not_happen`.
            result: The JSON-like result of a call that happened. Its undo function receives it, and so does the model
                when its turn continues.

        Raises:
            NotFound: There is no such invocation.
            InvalidInput: The outcome is neither of these, the call needs no decision, or it cannot have a result.
        """
        return Resolution(self._context).resolve(invocation, outcome, result=result)

    # -- authentication

    def as_user(self, user: UserRef) -> Repository:
        """Return a repository bound to another user, with the rights of that user. For admins.

        It shares the database and the registered tools of this one, so calls of graphs that were wrapped here can be
        undone through it. Closing it has no effect. It stops working when the user is disabled, or when the admin loses
        access.

        Args:
            user: A User, an id, or a name as text, which may come from a token: digits are a name too, and `local`, the
                user of a program that opens the database itself, is nobody.

        Raises:
            NotAllowed: You are not an admin, or the user is disabled.
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
        return self._bound_to(principal_of_user(self._context, user))

    def authenticate(self, key: str) -> Repository:
        """Return a repository bound to the user of an API key.

        It stops working when the key is revoked or expires, or when the user is disabled. To accept the tokens of an
        identity provider, verify them, and call `as_user` with the name.

        Args:
            key: The secret of the key.

        Raises:
            NotAllowed: The key is not valid. The message is the same for every cause.
        """
        return self._bound_to(principal_of_key(self._context, key))

    def _bound_to(self, principal: Principal) -> Repository:
        return Repository(self._context.for_principal(principal), is_borrowed=True)

    awrap = async_twin(wrap)
    aimport_langgraph = async_twin(import_langgraph)
    asessions = async_twin(sessions)
    asession = async_twin(session)
    areruns = async_twin(reruns)
    aaccept = async_twin(accept)
    arevoke_link = async_twin(revoke_link)
    aas_user = async_twin(as_user)
    aimport_ = async_twin(import_)
    aoperation = async_twin(operation)
    areport = async_twin(report)
    aresume = async_twin(resume)
    aresolve = async_twin(resolve)
    aauthenticate = async_twin(authenticate)
