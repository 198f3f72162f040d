"""The RollbackAgent: a compiled graph on a branch of a session, with the verbs of agentgit on top."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import BaseMessage
from langchain_core.tools import BaseTool
from sqlalchemy import Connection

from agentgit.agents.async_api import Twins
from agentgit.agents.checkpoint_tools import checkpoint_tools
from agentgit.agents.event_verbs import EventVerbs
from agentgit.agents.explore_verbs import Explores
from agentgit.agents.log_verbs import LogVerbs
from agentgit.agents.merge_verbs import Carries
from agentgit.agents.run_verbs import Runs
from agentgit.agents.undo_verbs import UndoVerbs
from agentgit.auth.roles import EDITOR
from agentgit.checkpoints import Checkpoint
from agentgit.effects import RollbackPlan, RollbackReport, ToolInvocation
from agentgit.effects.effects import UNDECLARED
from agentgit.effects.files import FilesAt
from agentgit.errors import Conflict
from agentgit.render import status
from agentgit.rollback import Request, Rollback, Settle, SwitchRequest, wait
from agentgit.sessions import ExternalSession, InternalSession, Tree
from agentgit.sessions.messages import History, from_stored
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import named
from agentgit.store.records.sessions import Found, expect_whole

if TYPE_CHECKING:
    from agentgit.handles.session import BranchRef


class RollbackAgent(Explores, Carries, LogVerbs, EventVerbs, UndoVerbs, Twins, Runs):
    """A compiled graph on one branch of a session. Made by `Repository.wrap`.

    It runs as the graph does, with the branch's thread filled in; `rollback`, `fork` and `undo` give a new agent on a
    new branch and leave this one as it is.

    Args:
        repository: The repository that records the session.
        graph: The user's graph; it stays as it is.
        rules: The settings that apply to every turn.
        branch_id: The branch.

    Example:
        >>> import agentgit
        >>> from agentgit.demo import EFFECTS, build, open_shop
        >>> repo = agentgit.open(":memory:")
        >>> agent = repo.wrap(build(open_shop("shop.db")), session="s", effects=EFFECTS)
        >>> agent.run("order two chairs")
        'Ordered 2 chairs for 80 euros (chair-1).'
        >>> agent.undo().history()
        []
    """

    def __repr__(self) -> str:
        if self.store.database.is_closed:
            return f"RollbackAgent(branch_id={self.branch_id}, closed)"
        unsaid = [name for name, kind in self.effects.items() if kind == UNDECLARED]
        undeclared = f", undeclared={unsaid}" if unsaid else ""
        return f"RollbackAgent(session={self.session.session_name!r}, branch={self.branch.name!r}{undeclared})"

    def _repr_html_(self) -> str:
        return status.page(self.session, self.branch, self.head, self.tree())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _on(self, branch_id: int) -> RollbackAgent:
        return RollbackAgent(self.repository, self.graph, self.rules, branch_id)

    # -- where it stands

    @property
    def session(self) -> ExternalSession:
        """The session."""
        return self.repository.session(self._session_id)

    @property
    def branch(self) -> InternalSession:
        """The branch that it runs on."""
        return self.repository.branch(self._session_id, self.branch_id)

    @property
    def effects(self) -> dict[str, str]:
        """The effect of each tool on the outside world, by name, as it is recorded; `undeclared` without a declaration.

        These are the tools that the graph shows, and those that `wrap(effects=...)` names.
        """
        return self.rules.effects.kinds()

    @property
    def head(self) -> Checkpoint | None:
        """The newest checkpoint of the branch; None before the first."""
        with self._reading() as connection:
            return self._head(connection, self._row(connection))

    @property
    def state(self) -> dict[str, Any]:
        """The newest values of the graph's state, as live objects."""
        return cast("dict[str, Any]", self.get_state().values)

    @property
    def report(self) -> RollbackReport | None:
        """The report of the last rollback or switch that led to this branch; None if there was none."""
        with self._reading() as connection:
            made = self.store.operations.of_branches(connection, [self.branch_id])
            moved = [row for row in made if row.kind != "fork"]
            return self._engine().reports.read(connection, moved[-1]) if moved else None

    def messages(self) -> list[BaseMessage]:
        """List the conversation as LangChain messages, oldest first: the same objects as in `state`.

        Raises:
            InvalidInput: A message was written with another serializer.
        """
        with self._reading() as connection:
            graphs = self.store.graphs
            at = graphs.newest(connection, self._thread_id)
            hashes = graphs.message_hashes(connection, at) if at is not None else ()
            leaves = graphs.content.blobs.get_many(connection, hashes)
        return cast("list[BaseMessage]", self._saver.codec.decode([leaves[key] for key in hashes]))

    def history(self) -> list[dict[str, Any]]:
        """List the conversation as dicts with `role`, `content`, `id`, `tool_calls`, `tool_call_id`, oldest first."""
        return History(from_stored(message) for message in self._stored())

    def _stored(self) -> list[dict[str, Any]]:
        with self._reading() as connection:
            head = self.store.graphs.head(connection, self._thread_id)
            return self.store.graphs.messages(connection, self._thread_id, head.checkpoint_id) if head else []

    def tool_track(self) -> list[ToolInvocation]:
        """List the tool invocations along the branch from the root of the session, in order."""
        return self.repository.tool_track(self._session_id, self.branch_id)

    def branches(self) -> list[InternalSession]:
        """List the branches of the session in the order they were made."""
        return self.repository.branches(self._session_id)

    def tree(self) -> Tree:
        """Return the tree of the session's branches; `str` draws it."""
        return self.repository.tree(self._session_id)

    def checkpoints(self) -> list[Checkpoint]:
        """List the checkpoints from the root of the session to the head of the branch, oldest first."""
        return self.repository.checkpoints(self._session_id, self.branch_id)

    # -- checkpoints

    def checkpoint(self, name: str | None = None, *, description: str | None = None, data: Any = None) -> Checkpoint:
        """Save this point of the branch.

        If the last turn broke off inside a batch of tool calls, the point is before that batch: a checkpoint never lies
        between a tool call and its result.

        Args:
            name: The name of the checkpoint; names may repeat.
            description: A sentence about it.
            data: Any JSON-like data to keep with it.

        Raises:
            Conflict: The branch is running.
            InvalidInput: The name is empty or too long.
        """
        label = named(self.rules.user_id, name, description, data)
        return self.repository._save(self.branch_id, label, self._files(f"checkpoint {name}" if name else "checkpoint"))

    def release_files(self) -> None:
        """Release the file snapshots that no checkpoint has any more."""
        self._engine().files.release()

    def _files(self, why: str) -> FilesAt | None:
        """Keep the files of the workspace as they are now; None if none is attached."""
        return self.rules.keeper.take(why) if self.rules.keeper is not None else None

    def _row(self, connection: Connection) -> Found:
        return self.store.sessions.branch(connection, self.branch_id)

    def _head(self, connection: Connection, row: Found) -> Checkpoint | None:
        return self.repository.views.checkpoint(self._found(connection, row.head_id)) if row.head_id else None

    def _found(self, connection: Connection, checkpoint_id: int) -> Found:
        return self.repository.lookup.checkpoint(
            connection, self._external(connection), self._row(connection), checkpoint_id
        )

    def _external(self, connection: Connection) -> ExternalSession:
        return self.repository.lookup.session(connection, self._session_id)

    def _target(self, connection: Connection, to: CheckpointRef) -> tuple[Found, str]:
        """Find the checkpoint that is meant, and how a person calls it."""
        return self.repository.lookup.target(connection, self._external(connection), self._row(connection), to)

    # -- rollback

    def _engine(self, settle: Settle = wait) -> Rollback:
        return Rollback(self.store, self.repository.registry, settle, admit=self.repository._admit)

    def plan_rollback(
        self,
        to: CheckpointRef,
        *,
        tools: str = "reverse",
        files: bool = True,
        conversation: bool = True,
        replay: str = "record",
    ) -> RollbackPlan:
        """Return what `rollback(to)` would do, without doing anything.

        Args:
            to: A Checkpoint, its id, a tag, its name, `branch`, `branch#7`, `branch~2`, `HEAD`, `HEAD~1`.
            tools: `reverse`, `keep` (leave the world alone) or `require_clean` (refuse if anything is to be reversed).
            files: False to leave the files of the workspace alone.
            conversation: False to plan for the world only.
            replay: `record`, `redo` or `execute`, see `rollback`.

        Raises:
            NotFound: Nothing is called so.
            Ambiguous: Several things are.
            InvalidInput: It is a checkpoint of another session.
        """
        with self._reading() as connection:
            target, label = self._target(connection, to)
        return self._engine().plan(
            self.branch_id, target, label, tools=tools, files=files, conversation=conversation, replay=replay
        )

    def rollback(
        self,
        to: CheckpointRef,
        *,
        tools: str = "reverse",
        files: bool = True,
        conversation: bool = True,
        replay: str = "record",
        name: str | None = None,
        force: bool = False,
        on_error: str = "stop",
        on_drift: str = "stop",
        request_id: str | None = None,
    ) -> RollbackAgent:
        """Go back: a new branch at an earlier point, with the later effects reversed. This branch stays as it is.

        Args:
            to: The target, as `plan_rollback` takes it.
            tools: As `plan_rollback` takes it.
            files: True to bring the files of the workspace back, if one is attached; what was there before is kept in
                a safety snapshot.
            conversation: False to take back only what the tools did and the files, and stay on this branch.
            replay: How the tool calls before that point come to the new branch. `record`: from the record, no tool
                runs. `redo`: those that were reversed since run again. `execute`: all of them run again, for a world
                that is fresh; give `tools="keep"` with it, because there is nothing to reverse there.
            name: The name of the new branch; None for the next one like `main-2`.
            force: True to keep in the world what cannot be reversed, and to bring back files that others have changed.
            on_error: `stop` at the first undo or tool that fails, or `continue` with the others.
            on_drift: `stop` at the first tool that runs again and returns something else, or `continue`.
            request_id: Your own name for this rollback: the same one twice gives the same branch.

        Raises:
            RollbackBlocked: An effect that cannot be reversed stands in the way; nothing was done.
            WorkspaceChanged: Somebody else has changed the files since the last turn; nothing was done.
            Unavailable: The files are to come back, and the workspace or the snapshot is gone; nothing was done.
            RollbackIncomplete: An undo function or a tool raised; `repo.resume(operation)` goes on from there.
            Conflict: The branch is running.
        """
        return self._rollback(
            to,
            wait,
            tools=tools,
            files=files,
            conversation=conversation,
            replay=replay,
            name=name,
            force=force,
            on_error=on_error,
            on_drift=on_drift,
            request_id=request_id,
        )

    def _rollback(self, to: CheckpointRef, settle: Settle, **how: Any) -> RollbackAgent:
        with self._reading(EDITOR) as connection:
            target, label = self._target(connection, to)
        request = Request(user_id=self.rules.user_id, source_id=self.branch_id, target=target, label=label, **how)
        branch_id = self._engine(settle).run(request)
        return self if branch_id == self.branch_id else self._on(branch_id)

    def fork(self, to: CheckpointRef | None = None, name: str | None = None) -> RollbackAgent:
        """Make a branch without touching the world.

        Args:
            to: The point where it leaves, as `rollback` takes it; None is where this branch stands now.
            name: The name of the new branch; None for the next one like `main-2`.

        Raises:
            NotFound, Ambiguous, InvalidInput: As `plan_rollback`.
            Conflict: There is a branch of that name.
        """
        files = self._files("fork") if to is None and self._turn is None else None
        return self._on(self.repository._leave(self.branch_id, to, name, files).id)

    def plan_switch(self, branch: BranchRef) -> RollbackPlan:
        """Return what `switch(branch, sync="world")` would do, without doing anything.

        Args:
            branch: The name or id of the branch.

        Raises:
            NotFound: The session has no such branch.
        """
        with self._reading() as connection:
            row = self.repository.lookup.branch(connection, self._external(connection), branch)
        return self._engine().plan_switch(row.id)

    def switch(
        self, branch: BranchRef, sync: str | None = None, *, force: bool = False, on_error: str = "stop"
    ) -> RollbackAgent:
        """Continue on another branch, or on this one from where somebody else has moved it.

        Args:
            branch: The name or id of the branch.
            sync: What to do about a world that another branch has changed. None: nothing; the next turn says so if it
                matters. `world`: reverse what is not of that branch, and run again what of it was reversed. `note`:
                leave the world, and tell the model with the next message. `ignore`: leave it, and record that.
            force: True to keep in the world what cannot be reversed or run again, and to bring back files that others
                have changed.
            on_error: `stop` at the first undo or tool that fails, or `continue` with the others.

        Raises:
            NotFound: The session has no such branch.
            InvalidInput: `sync` is none of these.
            RollbackBlocked: Something stands in the way of `sync="world"`; nothing was done.
            WorkspaceChanged: Somebody else has changed the files; nothing was done.
            RollbackIncomplete: An undo function or a tool raised; `repo.resume(operation)` goes on from there.
            Conflict: This agent is running, or the branch's rollback is half done.
        """
        return self._switch(branch, wait, sync=sync, force=force, on_error=on_error)

    def _switch(
        self,
        branch: BranchRef,
        settle: Settle,
        *,
        sync: str | None,
        force: bool = False,
        on_error: str = "stop",
        current: bool = True,
    ) -> RollbackAgent:
        if self._turn is not None:
            raise Conflict("This agent is running. Switch when its turn has ended.")

        def move(connection: Connection) -> Found:
            self._expect(connection)
            row = self.repository.lookup.branch(connection, self._external(connection), branch)
            expect_whole(row)
            if sync is None and current:
                self.store.sessions.set_current(connection, self._session_id, row.id, self.rules.user_id)
            return row

        row = self.store.database.write(move, durable=sync is None)
        if sync is not None:
            asked = SwitchRequest(
                user_id=self.rules.user_id,
                source_id=self.branch_id,
                branch=row,
                sync=sync,
                force=force,
                on_error=on_error,
                current=current,
            )
            self._engine(settle).switch(asked)
        self._stand_on(row.id)
        return self

    def checkpoint_tools(self) -> list[BaseTool]:
        """Return the tools with which an agent manages its own history.

        They are bound to this agent; inside a turn of another agent they act on that one.
        """
        return checkpoint_tools(self)
