"""A graph on one branch of a session: it fills in the branch's thread id, and runs one turn after the other."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Self, Unpack

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_config_list
from langgraph.stream import ProtocolEvent, StreamTransformer

from agentgit.agents import inputs
from agentgit.agents.branch_context import BranchContext, Graph, TurnSettings
from agentgit.agents.branch_runner import BranchRunner, Run
from agentgit.agents.inputs import OnQuestion
from agentgit.agents.isolation import RUN_KEYS, detached, detached_config
from agentgit.agents.session_graph import SessionGraph
from agentgit.async_api import async_twin
from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.checkpoint import Checkpoints
from agentgit.checkpoints.diff import Diff
from agentgit.effects import RollbackPlan, RollbackReport
from agentgit.effects.invocation import ToolTrack
from agentgit.errors import AgentGitError, InvalidInput
from agentgit.handles.branching import Branching
from agentgit.handles.context import BranchRef, Context
from agentgit.handles.rollbacks import Rollbacks
from agentgit.handles.session import Session
from agentgit.next_steps import Next
from agentgit.rollback.request import FilesOption, RollbackKeywords, RollbackOptions
from agentgit.sessions import InternalSession, Tree
from agentgit.sessions.messages import History, from_stored
from agentgit.sessions.rerun import RerunReport
from agentgit.sessions.session import RERUN
from agentgit.sessions.tree import Exploration
from agentgit.store.queries.explorations import Explorations, RerunMarks
from agentgit.store.queries.graph_points import BranchHead
from agentgit.store.queries.lookup import CheckpointRef


class BranchGraph(SessionGraph):
    """A compiled graph on one branch of a session."""

    def __init__(self, context: Context, graph: Graph, settings: TurnSettings, branch: int | BranchHead) -> None:
        self._take_from(graph)
        self._runner = BranchRunner(context, graph, settings, branch)
        self.checkpointer = self._runner.branch.reader()
        self.session = Session(context, self._branch.session_id)
        """The session: every operation that needs no graph, on any branch."""
        self._branching, self._rollbacks = Branching(context, self.session.id), Rollbacks(context, self.session.id)

    @property
    def _branch(self) -> BranchContext:
        return self._runner.branch

    @property
    def branch_id(self) -> int:
        """The id of the branch that this object runs on."""
        return self._branch.branch_id

    @property
    def rollback_error(self) -> AgentGitError | None:
        """The error of the last rollback that the model requested; None if it succeeded or none was requested."""
        return self._runner.rollback_error

    # -- runs

    def _open_run(self, input: Any, config: RunnableConfig | None) -> Run:
        return Run(self._runner, input, config)

    def _aiterate(
        self, input: Any, config: RunnableConfig | None, options: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        return self._runner.aiterate(Run(self._runner, input, config), options)

    def run(self, text: str, *, on_question: OnQuestion = "raise") -> str:
        """Send a message and return the text of the answer; for graphs whose state has `messages`.

        Args:
            text: The user's message.
            on_question: `drop` to send the message in place of an answer for which the graph waits.

        Raises:
            AnswerRequired: The graph waits for an answer. Either it did so before, and nothing was run, or the turn now
                asks: it stands and waits. The error has the `questions`, and the `interrupts` with their ids.
            InvalidInput: The graph's state has no messages.
        """
        return inputs.answer_of(self.invoke(inputs.user_message(text, on_question)), self._branch.open_questions)

    async def arun(self, text: str, *, on_question: OnQuestion = "raise") -> str:
        """Send a message and return the text of the answer, as `run`."""
        output = await self.ainvoke(inputs.user_message(text, on_question))
        return await asyncio.to_thread(inputs.answer_of, output, self._branch.open_questions)

    def stream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run one turn, as the graph's `stream_events`.

        With `version="v3"`, the turn begins when the stream is first read. Read it to its end, or use it in `with`: a
        stream that is left open holds the branch.
        """
        if kwargs.get("version") != "v3":
            return super().stream_events(input, config, **kwargs)
        once, own = self._with_closing(kwargs)
        with detached():
            return super(BranchGraph, once).stream_events(input, detached_config(config), **own)

    def astream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run one turn, as the graph's `astream_events`; with `version="v3"` as `stream_events`."""
        if kwargs.get("version") == "v3":
            return self._aopen_events(input, config, kwargs)
        # LangChain would read the turn in a task of its own, and its reader could not go back inside the loop.
        return self._runner.aiterate(Run(self._runner, input, config), kwargs, "astream_events")

    async def _aopen_events(self, input: Any, config: RunnableConfig | None, options: dict[str, Any]) -> Any:
        once, own = self._with_closing(options)
        with detached():
            return await super(BranchGraph, once).astream_events(input, detached_config(config), **own)

    def _with_closing(self, options: dict[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Return a copy for one stream of events, and its options, so that the stream is closed if it fails."""
        copied, chunks = copy.copy(self), list[Any]()

        def opening(method: Callable[..., Any]) -> Callable[..., Any]:
            def open_stream(*args: Any, **own: Any) -> Any:
                chunks.append(method(*args, **own))
                return chunks[-1]

            return open_stream

        copied.__dict__.update(stream=opening(self.stream), astream=opening(self.astream))
        transformers = [*(options.get("transformers") or ()), lambda scope: _ClosingOnFailure(scope, chunks)]
        return copied, {**options, "transformers": transformers}

    def batch(
        self, inputs: list[Any], config: Any = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> list[Any]:
        """Run one turn for each input, one after the other, because they are one conversation."""
        answers = self.batch_as_completed(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return [answer for _, answer in answers]

    def batch_as_completed(
        self, inputs: Sequence[Any], config: Any = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> Iterator[tuple[int, Any]]:
        """Run one turn for each input, as `batch`; yield each answer with its index as soon as its turn ends."""
        for index, (value, own) in enumerate(zip(inputs, get_config_list(config, len(inputs)), strict=True)):
            try:
                answer = self.invoke(value, own, **kwargs)
            except Exception as error:
                if not return_exceptions:
                    raise
                answer = error
            yield index, answer

    async def abatch(
        self, inputs: list[Any], config: Any = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> list[Any]:
        """Run one turn for each input, one after the other, as `batch`."""
        answers = self.abatch_as_completed(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return [answer async for _, answer in answers]

    async def abatch_as_completed(
        self, inputs: Sequence[Any], config: Any = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> AsyncIterator[tuple[int, Any]]:
        """Run one turn for each input, as `batch_as_completed`."""
        for index, (value, own) in enumerate(zip(inputs, get_config_list(config, len(inputs)), strict=True)):
            try:
                answer = await self.ainvoke(value, own, **kwargs)
            except Exception as error:
                if not return_exceptions:
                    raise
                answer = error
            yield index, answer

    # -- reading and copies

    def _open_reading(self, config: RunnableConfig | None) -> tuple[Graph, RunnableConfig]:
        self._branch.authorize_now()
        return self._runner.instrumented_graph, self._runner.fill_config(config)

    def copy(self, update: dict[str, Any] | None = None) -> Self:
        """Return an agent on the same branch with other attributes, as the graph's `copy`. It keeps the session.

        Raises:
            InvalidInput: Its config names another thread than the branch's own, or a checkpoint.
        """
        copied = super().copy(update)
        config = copied.config or {}
        self._runner.require_own_thread(config)
        if names := RUN_KEYS & config.get("configurable", {}).keys() - {"thread_id"}:
            raise InvalidInput(
                f"A branch runs only from its head; leave {', '.join(sorted(names))} out of the config.",
                Next("rollback"),
                Next("fork"),
            )
        copied.graph = copied._plain()
        copied._runner = self._runner.with_graph(copied.graph)
        return copied

    # -- what the branch holds

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

    def plan_rollback(self, to: CheckpointRef, **options: Unpack[RollbackKeywords]) -> RollbackPlan:
        """Return what `rollback(to, **options)` would do, without doing anything.

        Raises:
            NotFound: The reference names nothing.
            Ambiguous: The reference names several checkpoints.
            InvalidInput: The checkpoint belongs to another session.
        """
        return self._rollbacks.plan(to, self.branch_id, RollbackOptions(**options))

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


class _ClosingOnFailure(StreamTransformer):
    """Ends the turn if a transformer raises. LangGraph then stops reading the chunks, and does not close them."""

    supports_sync = True

    def __init__(self, scope: tuple[str, ...], chunks: Sequence[Any]) -> None:
        super().__init__(scope)
        self._chunks = () if scope else chunks

    def init(self) -> dict[str, Any]:
        """Return no projections."""
        return {}

    def process(self, event: ProtocolEvent) -> bool:
        """Let every event pass."""
        return True

    def fail(self, err: BaseException) -> None:
        """End the turn."""
        for one in self._chunks:
            one.close()

    async def afail(self, err: BaseException) -> None:
        """End the turn on an event loop."""
        for one in self._chunks:
            await one.aclose()
