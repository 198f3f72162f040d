"""Read access to one branch with its graph: state, conversation, plans and comparisons."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage

from agentgit.agents.branch_context import Graph, TurnSettings
from agentgit.agents.branch_runner import BranchRunner
from agentgit.agents.merge import Merger
from agentgit.async_api import async_twin
from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.checkpoint import Checkpoints
from agentgit.checkpoints.diff import Diff
from agentgit.effects import RollbackPlan, RollbackReport
from agentgit.effects.invocation import ToolTrack
from agentgit.errors import Conflict
from agentgit.handles.context import BranchRef, Context
from agentgit.handles.rollbacks import Rollbacks
from agentgit.handles.session import Session
from agentgit.rollback.request import FilesOption, RollbackOptions
from agentgit.sessions import InternalSession, Tree
from agentgit.sessions.messages import History, from_stored
from agentgit.sessions.rerun import RerunReport
from agentgit.sessions.session import RERUN
from agentgit.sessions.tree import Exploration
from agentgit.store.queries.explorations import Explorations, RerunMarks
from agentgit.store.queries.graph_points import BranchHead
from agentgit.store.queries.lookup import CheckpointRef


class BranchReader(BranchRunner):
    """A graph on one branch, with the operations that only read. `RollbackAgent` adds those that write."""

    def __init__(self, context: Context, graph: Graph, settings: TurnSettings, branch: int | BranchHead) -> None:
        super().__init__(context, graph, settings, branch)
        self.session = Session(context, self._branch.session_id)
        """The session: every operation that needs no graph, on any branch."""
        self._rollbacks = Rollbacks(context, self.session.id)
        self._merger = Merger(self._branch)

    def _move_to(self, branch_id: int) -> None:
        super()._move_to(branch_id)
        self._merger = Merger(self._branch)

    @property
    def branch(self) -> InternalSession:
        """The branch that the agent runs on."""
        return self.session.branch(self.branch_id)

    @property
    def effects(self) -> dict[str, str]:
        """The recorded effect of each tool on the outside world, by name; `undeclared` if none is declared.

        Includes the tools found in the graph and those named in `wrap(effects=...)`.
        """
        return self._branch.settings.effects.kinds()

    @property
    def head(self) -> Checkpoint | None:
        """The newest checkpoint of the branch; None if it has none."""
        branch = self._branch
        with branch.reading() as transaction:
            row = branch.row(transaction)
            return (
                branch.context.read_models.checkpoint(branch.checkpoint(transaction, row.head_id))
                if row.head_id
                else None
            )

    @property
    def state(self) -> dict[str, Any]:
        """The newest values of the graph's state, as live objects."""
        values: dict[str, Any] = self.get_state().values
        return values

    @property
    def report(self) -> RollbackReport | RerunReport | None:
        """The report of the last rollback, switch or rerun that led to this branch; None if there was none."""
        branch = self._branch
        with branch.reading() as transaction:
            operations = branch.store.operations.of_branch(transaction, self.branch_id)
            moves = [row for row in operations if row.kind != "fork"]
            if moves and moves[-1].kind == RERUN:
                reports = RerunMarks(branch.store).reports(transaction, [self.branch_id])
                return RerunReport.from_dict(reports[self.branch_id])
            return branch.context.engine().reports.read(transaction, moves[-1]) if moves else None

    def messages(self) -> list[BaseMessage]:
        """List the conversation as LangChain messages, oldest first, as they are in `state`.

        Raises:
            InvalidInput: A message was written with another serializer.
        """
        with self._branch.reading() as transaction:
            newest = self._branch.store.graphs.newest(transaction, self._branch.thread_id)
            return self._branch.messages(transaction, newest)

    def history(self) -> History:
        """List the conversation as dicts with `role`, `content`, `id`, `tool_calls`, `tool_call_id`, oldest first."""
        graphs, thread = self._branch.store.graphs, self._branch.thread_id
        with self._branch.reading() as transaction:
            newest = graphs.newest(transaction, thread)
            stored = graphs.messages(transaction, newest) if newest else []
        return History(from_stored(message) for message in stored)

    def tool_track(self) -> ToolTrack:
        """List the tool invocations along the branch from the root of the session, in order.

        If the tool of a call ran again, the track shows the newest run that did not fail. Calls that wait for an answer
        come last.
        """
        return self.session.tool_track(branch=self.branch_id)

    def tree(self) -> Tree:
        """Return the tree of the session's branches; `str` draws it."""
        return self.session.tree()

    def checkpoints(self) -> Checkpoints:
        """List the checkpoints from the root of the session to the head of the branch, oldest first."""
        return self.session.checkpoints(branch=self.branch_id)

    def get_checkpoint(self, ref: CheckpointRef) -> Checkpoint:
        """Return a checkpoint of the session; `HEAD` is the head of this branch.

        Args:
            ref: A Checkpoint, its id, a tag, its name, `branch`, `branch#7`, `branch~2`, `HEAD`, `HEAD~1`.

        Raises:
            NotFound, Ambiguous, InvalidInput: As `Session.get_checkpoint`.
        """
        return self.session.get_checkpoint(ref, branch=self.branch_id)

    def plan_rollback(
        self,
        to: CheckpointRef,
        *,
        tools: str = "reverse",
        files: FilesOption = True,
        conversation: bool = True,
        replay: str = "record",
    ) -> RollbackPlan:
        """Return what `rollback(to)` would do, without doing anything.

        Args:
            to: A Checkpoint, its id, a tag, its name, `branch`, `branch#7`, `branch~2`, `HEAD`, `HEAD~1`.
            tools: `reverse`, `reversible` (reverse only reversible effects), `keep` (leave the world alone) or
                `require_clean` (refuse if any effect would have to be reversed).
            files: False to leave the files of the workspace alone.
            conversation: False to plan only for effects and files.
            replay: `record`, `redo` or `execute`, as `rollback` describes them.

        Raises:
            NotFound: The reference names nothing.
            Ambiguous: The reference names several checkpoints.
            InvalidInput: The checkpoint belongs to another session.
        """
        options = RollbackOptions(tools=tools, files=files, conversation=conversation, replay=replay)
        return self._rollbacks.plan(to, self.branch_id, options)

    def plan_undo(self, steps: int = 1, *, files: FilesOption = True) -> RollbackPlan:
        """Return what `undo(steps, files=files)` would do, without doing anything.

        Raises:
            NotFound, InvalidInput: As `undo`.
        """
        return self.session.plan_undo(steps, branch=self.branch_id, files=files)

    def plan_redo(self) -> RollbackPlan:
        """Return what `redo` would do, without doing anything.

        Raises:
            NotFound: There is nothing to redo.
        """
        return self.session.plan_redo(branch=self.branch_id)

    def plan_switch(self, branch: BranchRef) -> RollbackPlan:
        """Return what `switch(branch, sync="world")` would do, without doing anything.

        Args:
            branch: The name or id of the branch.

        Raises:
            NotFound: The session has no such branch.
        """
        return self.session.plan_switch(branch)

    def diff(self, a: CheckpointRef, b: CheckpointRef = "HEAD") -> Diff:
        """Compare two checkpoints of the session: state, messages, tool calls, tokens, and files.

        Args:
            a: The checkpoint to start from.
            b: The checkpoint to compare it with; `HEAD` is the head of this branch.

        Raises:
            NotFound, Ambiguous, InvalidInput: As `Session.diff`.
        """
        return self.session.diff(self.get_checkpoint(a), self.get_checkpoint(b))

    def _require_idle(self) -> None:
        if self._turn is not None:
            raise Conflict("This agent is running. Try again when its turn has ended.")

    def exploration(self, name: str | None = None) -> Exploration:
        """Return the results of an exploration of this session, even if it was interrupted.

        Args:
            name: The name of the exploration; None is the newest one.

        Raises:
            NotFound: There is no such exploration.
        """
        explorations, session_id = Explorations(self._branch.store), self.session.id
        with self._branch.reading() as transaction:
            return explorations.read(transaction, session_id, name or explorations.newest_name(transaction, session_id))

    amessages = async_twin(messages)
    ahistory = async_twin(history)
    atool_track = async_twin(tool_track)
    atree = async_twin(tree)
    acheckpoints = async_twin(checkpoints)
    aget_checkpoint = async_twin(get_checkpoint)
    aplan_rollback = async_twin(plan_rollback)
    aplan_undo = async_twin(plan_undo)
    aplan_redo = async_twin(plan_redo)
    aplan_switch = async_twin(plan_switch)
    adiff = async_twin(diff)
    aexploration = async_twin(exploration)
