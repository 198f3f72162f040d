"""The RollbackAgent: a compiled graph on a branch of a session, with the verbs of agentgit on top."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import BaseMessage, messages_from_dict
from langchain_core.tools import BaseTool
from sqlalchemy import Connection

from agentgit.agents.checkpoint_tools import checkpoint_tools
from agentgit.agents.runs import Runs
from agentgit.agents.turn import named
from agentgit.agents.twins import Twins
from agentgit.checkpoints import Checkpoint
from agentgit.errors import Conflict, NotFound
from agentgit.rollback import Request, Rollback, Settle, wait
from agentgit.sessions import ExternalSession, InternalSession, Tree
from agentgit.sessions.history import from_stored
from agentgit.sessions.session import RUNNING
from agentgit.store.checkpoints import Label
from agentgit.store.lookup import Place
from agentgit.store.sessions import Found, expect_whole
from agentgit.tools import RollbackPlan, RollbackReport, ToolInvocation

if TYPE_CHECKING:
    from agentgit.repository import BranchRef


class RollbackAgent(Twins, Runs):
    """A compiled graph on one branch of a session. Made by `Repository.wrap`.

    It runs as the graph does, with the branch's thread filled in; `rollback`, `fork` and `undo` give a new agent on a
    new branch and leave this one as it is.

    Args:
        repository: where it is recorded.
        graph: the user's graph; it stays as it is.
        rules: what holds for every turn.
        branch_id: the branch.

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
        return f"RollbackAgent(session={self.session.session_name!r}, branch={self.branch.name!r})"

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
    def head(self) -> Checkpoint | None:
        """The newest checkpoint of the branch; None before the first."""
        with self.store.database.reading() as connection:
            return self._head(connection, self._row(connection))

    @property
    def state(self) -> dict[str, Any]:
        """The newest values of the graph's state, as live objects."""
        return cast("dict[str, Any]", self.get_state().values)

    @property
    def report(self) -> RollbackReport | None:
        """What the rollback that made this branch did; None if no rollback made it."""
        with self.store.database.reading() as connection:
            made = self.store.operations.of_branches(connection, [self.branch_id])
            if not made or made[0].kind != "rollback":
                return None
            return self._engine().report(connection, made[0])

    def messages(self) -> list[BaseMessage]:
        """List the conversation as LangChain messages, oldest first."""
        return messages_from_dict(self._stored())

    def history(self) -> list[dict[str, Any]]:
        """List the conversation as dicts with `role`, `content`, `id`, `tool_calls`, `tool_call_id`, oldest first."""
        return [from_stored(message) for message in self._stored()]

    def _stored(self) -> list[dict[str, Any]]:
        with self.store.database.reading() as connection:
            head = self.store.graphs.head(connection, self._thread_id)
            return self.store.graphs.messages(connection, self._thread_id, head.checkpoint_id) if head else []

    def tool_track(self) -> list[ToolInvocation]:
        """List the tool invocations along the branch from the root of the session, in order."""
        return self.repository.tool_track(self._session_id, self.branch_id)

    def branches(self) -> list[InternalSession]:
        """List the branches of the session in the order they were made."""
        return self.repository.branches(self._session_id)

    def tree(self) -> Tree:
        """Give the tree of the session's branches; `str` draws it."""
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
            name: what to call it; names may repeat.
            description: a sentence about it.
            data: any JSON-like data to keep with it.

        Raises:
            Conflict: the branch is running.
            InvalidInput: the name is empty or too long.
        """
        label = named(self.rules.user_id, name, description, data)

        def save(connection: Connection) -> Found:
            row = self.store.recover(connection, self._row(connection))
            if row.status == RUNNING:
                raise Conflict(f"Branch {row.name} is running. Make the checkpoint when its turn has ended.")
            expect_whole(row)
            moment = self.store.moment(connection, row)
            return self._found(connection, self.store.checkpoints.add(connection, row.id, moment.snapshot, label))

        return self.repository.views.checkpoint(self.store.database.write(save, durable=True))

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

    def _target(self, connection: Connection, to: Place) -> tuple[Found, str]:
        """Find the checkpoint that is meant, and how a person calls it."""
        row = self._row(connection)
        target = self.repository.lookup.checkpoint(connection, self._external(connection), row, to)
        place = f"{target.branch_name}#{target.number}"
        return target, f"{target.name} ({place})" if target.name else place

    # -- rollback

    def _engine(self) -> Rollback:
        return Rollback(self.store, self.repository.undos)

    def plan_rollback(self, to: Place, *, tools: str = "reverse") -> RollbackPlan:
        """Tell what `rollback(to)` would do, without doing anything.

        Args:
            to: a Checkpoint, its id, its name, `branch`, `branch#7`, `branch~2`, `HEAD`, `HEAD~1`.
            tools: `reverse`, `keep` (leave the world alone) or `require_clean` (refuse if anything is to be reversed).

        Raises:
            NotFound: nothing is called so.
            Ambiguous: several things are.
            InvalidInput: it is a checkpoint of another session.
        """
        with self.store.database.reading() as connection:
            target, label = self._target(connection, to)
        return self._engine().plan(self.branch_id, target, label, tools)

    def rollback(
        self,
        to: Place,
        *,
        tools: str = "reverse",
        name: str | None = None,
        force: bool = False,
        on_error: str = "stop",
        request_id: str | None = None,
    ) -> RollbackAgent:
        """Go back: a new branch at an earlier point, with the later effects reversed. This branch stays as it is.

        Args:
            to: as `plan_rollback` takes it.
            tools: as `plan_rollback` takes it.
            name: of the new branch; None for the next one like `main-2`.
            force: True to keep in the world what cannot be reversed.
            on_error: `stop` at the first reversal that fails, or `continue` with the others.
            request_id: your own name for this rollback: the same one twice gives the same branch.

        Raises:
            RollbackBlocked: an effect that cannot be reversed stands in the way; nothing was done.
            RollbackIncomplete: an undo function raised; `repo.resume(operation)` goes on from there.
            Conflict: the branch is running.
        """
        return self._rollback(to, wait, tools=tools, name=name, force=force, on_error=on_error, request_id=request_id)

    def _rollback(self, to: Place, settle: Settle, **how: Any) -> RollbackAgent:
        with self.store.database.reading() as connection:
            target, label = self._target(connection, to)
        request = Request(user_id=self.rules.user_id, source_id=self.branch_id, target=target, label=label, **how)
        return self._on(Rollback(self.store, self.repository.undos, settle).run(request))

    def undo(self) -> RollbackAgent:
        """Roll back to the newest checkpoint that differs from where the branch stands now.

        Raises:
            NotFound: there is none.
            RollbackBlocked, RollbackIncomplete, Conflict: as `rollback`.
        """
        return self.rollback(self._previous())

    def _previous(self) -> int:
        with self.store.database.reading() as connection:
            row = self._row(connection)
            now = self.store.moment(connection, row)
            here = (now.snapshot.state_hash, now.snapshot.position) if now.settled else None
            for point in reversed(self.repository.lookup.path(connection, row)):
                if (point.state_hash, point.position) != here:
                    return int(point.id)
        raise NotFound("There is no earlier checkpoint on this branch to go back to. agent.checkpoint() makes one.")

    def fork(self, to: Place | None = None, name: str | None = None) -> RollbackAgent:
        """Make a branch without touching the world.

        Args:
            to: where it leaves, as `rollback` takes it; None is where this branch stands now.
            name: of the new branch; None for the next one like `main-2`.

        Raises:
            NotFound, Ambiguous, InvalidInput: as `plan_rollback`.
            Conflict: there is a branch of that name.
        """

        def make(connection: Connection) -> int:
            target = self._target(connection, to)[0] if to is not None else self._here(connection)
            return self._engine().fork(connection, target, name, self.branch_id, self.rules.user_id)

        return self._on(self.store.database.write(make, durable=True))

    def _here(self, connection: Connection) -> Found:
        """Give the checkpoint where the branch stands, making one if there is none; while it runs, its head."""
        row = self.store.recover(connection, self._row(connection))
        expect_whole(row)
        head = self._found(connection, row.head_id) if row.head_id else None
        now = self.store.moment(connection, row).snapshot
        standing = (now.graph_checkpoint_id, now.position)
        if head is not None and (row.status == RUNNING or (head.graph_checkpoint_id, head.position) == standing):
            return head
        label = Label(kind="after", user_id=self.rules.user_id)
        return self._found(connection, self.store.checkpoints.add(connection, row.id, now, label))

    def switch(self, branch: BranchRef) -> RollbackAgent:
        """Continue on another branch, or on this one from where somebody else has moved it.

        Args:
            branch: its name or id.

        Raises:
            NotFound: the session has no such branch.
            Conflict: this agent is running, or the branch's rollback is half done.
        """
        if self._turn is not None:
            raise Conflict("This agent is running. Switch when its turn has ended.")

        def move(connection: Connection) -> int:
            row = self.repository.lookup.branch(connection, self._external(connection), branch)
            expect_whole(row)
            self.store.sessions.set_current(connection, self._session_id, row.id)
            return int(row.id)

        self._stand_on(self.store.database.write(move, durable=True))
        return self

    def checkpoint_tools(self) -> list[BaseTool]:
        """Give the tools with which an agent manages its own history.

        They are bound to this agent; inside a turn of another agent they act on that one.
        """
        return checkpoint_tools(self)
