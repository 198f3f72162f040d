"""Runs a graph on a branch: the methods of `Runnable` and `Pregel`, with the branch's thread id filled in."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from time import monotonic
from typing import Any, Self

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.types import StateSnapshot

from agentgit.agents import inputs
from agentgit.agents.branch_context import BranchContext, Graph, TurnSettings
from agentgit.agents.inputs import pair_configs
from agentgit.agents.instrumentation import instrumented_copy
from agentgit.agents.isolation import detached, detached_config, require_not_nested
from agentgit.agents.node_caches import BranchCache, uncopied_graph_cache
from agentgit.agents.turn.checkpoint_tracker import SaveBarrier
from agentgit.agents.turn.turn import ThreadedTurn, Turn
from agentgit.async_api import LOOP, async_twin
from agentgit.errors import AgentGitError, BranchMoved, InvalidInput
from agentgit.handles.context import Context
from agentgit.langgraph_internals import CONFIG_KEY_CACHE
from agentgit.tracing import NO_SPAN, TracedSpan, start

Options = Mapping[str, Any]
"""The keyword arguments of a method of the graph."""

NO_OPTIONS: Options = {}

END = object()
"""The sentinel for the end of a stream."""

CLOSING_POLLS = 40
"""How often a new turn polls, every 5 ms, for a previous turn that shows no sign of ending."""

ENDING_TIMEOUT = 30.0
"""How long, in seconds, a new turn waits for a previous turn that is known to be starting or ending.

On a busy machine the thread of that turn may take this long."""


class BranchRunner(Runnable[Any, Any]):
    """A compiled graph on one branch, as a LangChain Runnable.

    Args:
        context: The store and the principal.
        graph: The user's graph; it is not modified.
        settings: The settings that apply to every turn.
        branch_id: The branch.
    """

    def __init__(self, context: Context, graph: Graph, settings: TurnSettings, branch_id: int) -> None:
        self.graph = graph
        self._branch = branch = BranchContext(context, graph, settings, branch_id)
        self._instrumented_graph: Graph = instrumented_copy(
            graph, lambda cache: BranchCache(cache, self._current_turn), checkpointer=branch.saver
        )
        nested_cache = uncopied_graph_cache(graph)
        # LangGraph passes this cache on to every nested graph, which then ignores its own.
        self._nested_config = (
            {CONFIG_KEY_CACHE: BranchCache(nested_cache, self._current_turn)} if nested_cache is not None else {}
        )
        self._known_current_branch = branch.served.moved_to
        self._turn: Turn | None = None
        self.rollback_error: AgentGitError | None = None
        """The error of the last rollback that the model requested; None if it succeeded or none was requested."""
        self.moved_at = monotonic()
        """The value of `time.monotonic()` when this object was created or last began a turn."""
        self._begin_future: asyncio.Future[tuple[Turn, RunnableConfig]] | None = None
        self._is_ending = False
        """True while a turn on an event loop releases its branch."""
        self._interrupted_turn: Turn | None = None
        """A turn that waits for an answer, with the checkpoints and the rollback that its tools requested."""

    @property
    def branch_id(self) -> int:
        """The id of the branch that this object runs on."""
        return self._branch.branch_id

    def _on_branch(self, branch_id: int) -> Self:
        """Return a runner of the same graph on another branch of the session."""
        runner = type(self)(self._branch.context, self.graph, self._branch.settings, branch_id)
        if branch_id == self.branch_id:
            runner._interrupted_turn = self._interrupted_turn  # the requests of a waiting turn belong to its branch
        return runner

    def _current_turn(self) -> Turn | None:
        return self._turn

    # -- the methods of the graph

    def _fill_config(self, config: RunnableConfig | None) -> RunnableConfig:
        """Fill in the branch's thread id, and remove the keys of an outer graph that calls this one."""
        config = detached_config(config)
        configurable = config.get("configurable", {})
        if configurable.get("thread_id", self._branch.thread_id) != self._branch.thread_id:
            raise InvalidInput("This agent runs on its branch's own thread; leave thread_id out of the config.")
        with detached():  # else LangChain merges the surrounding config into it
            return merge_configs(config, {"configurable": {"thread_id": self._branch.thread_id, **self._nested_config}})

    def _start_span(self) -> TracedSpan:
        """Start the tracing span of a turn."""
        return start(
            f"invoke_agent {self.graph.name}",
            gen__ai_operation_name="invoke_agent",
            gen__ai_agent_name=self.graph.name,
            gen__ai_conversation_id=str(self._branch.session_id),
            agentgit_branch_id=self.branch_id,
        )

    def _begin(
        self, value: Any, config: RunnableConfig | None, span: TracedSpan = NO_SPAN, options: Options = NO_OPTIONS
    ) -> tuple[Turn, RunnableConfig]:
        """Begin a turn: acquire the branch, and build the config that records the turn."""
        with span.current():
            return self._start_turn(value, config, span, options)

    def _start_turn(
        self, value: Any, config: RunnableConfig | None, span: TracedSpan, options: Options
    ) -> tuple[Turn, RunnableConfig]:
        require_not_nested(config)
        self._branch.store.database.require_open()  # before the files are read
        self._warn_if_moved()
        run_config, self.moved_at = self._fill_config(config), monotonic()
        if run_config["configurable"].get("checkpoint_id") not in (None, self._branch.seen_checkpoint_id):
            raise InvalidInput(
                "A branch runs only from its head; to run from an earlier checkpoint, call fork(to) or rollback(to)."
            )
        run_config["configurable"].pop("checkpoint_id", None)
        durability = self._durability(options)
        saves_each_step = durability == "sync" or (durability == "exit" and self._branch.settings.effects.has_effects)
        turn = Turn(
            self._branch,
            inputs.parse(self._instrumented_graph, value),
            span,
            saves_each_step=saves_each_step,
        )
        if self._interrupted_turn is not None and not turn.turn_input.is_new:
            turn.requested_checkpoints, turn.after_turn = (
                self._interrupted_turn.requested_checkpoints,
                self._interrupted_turn.after_turn,
            )
        turn.begin()
        self._turn = self._branch.saver.turn = turn
        with detached():
            return turn, merge_configs(run_config, {"callbacks": [turn.recorder]})

    def _warn_if_moved(self) -> None:
        """Warn once if a rollback or switch in this process has since moved the session to another branch."""
        branch, current_id = self._branch, self._branch.served.moved_to
        if current_id in (None, self._known_current_branch, branch.branch_id):
            return
        self._known_current_branch = current_id
        with branch.reading() as connection:
            current_name, own_name = (
                branch.store.sessions.branch(connection, one).name for one in (current_id, branch.branch_id)
            )
            session_name = branch.session(connection).reference
        warnings.warn(
            f"Session {session_name} now continues on branch {current_name!r}, but this agent runs on {own_name!r}. "
            f"agent.at({current_name!r}) returns an agent for it.",
            BranchMoved,
            stacklevel=_stack_level_of_caller(),
        )

    def _end(self, turn: Turn, *, completed: bool) -> None:
        try:
            with turn.span.current():
                self._branch.seen_checkpoint_id = turn.end(completed=completed)
            self._branch.interrupted_heads = () if completed else (turn.head_id,)
        finally:
            self._turn = None
            if self._branch.saver.turn is turn:
                self._branch.saver.turn = None
            self._is_ending = False
        # If a tool waits for an answer, the requests of the others are done when the answered turn has ended.
        self._interrupted_turn = turn if completed and not turn.is_settled else None
        if completed and turn.is_settled and turn.after_turn is not None:
            self.rollback_error = None
            try:
                turn.after_turn()
            except AgentGitError as error:  # the turn itself succeeded, and its answer must not be lost
                self.rollback_error = error

    @contextmanager
    def _turn_context(
        self, value: Any, config: RunnableConfig | None, options: Options = NO_OPTIONS
    ) -> Iterator[tuple[Any, RunnableConfig]]:
        """Hold the branch for one turn, and yield the input and the config to run the graph with."""
        with self._start_span() as span:
            turn, run_config = self._begin(value, config, span, options)
            is_completed = False
            try:
                yield turn.turn_input.value, run_config
                is_completed = True
            finally:
                self._end(turn, completed=is_completed)

    @asynccontextmanager
    async def _aturn_context(
        self, value: Any, config: RunnableConfig | None, options: Options
    ) -> AsyncIterator[tuple[Any, RunnableConfig]]:
        """Hold the branch for one turn without blocking the event loop, and release it even if cancelled."""
        with self._start_span() as span:
            async with self._aturn_in_thread(value, config, span, options) as value_and_config:
                yield value_and_config

    @asynccontextmanager
    async def _aturn_in_thread(
        self, value: Any, config: RunnableConfig | None, span: TracedSpan, options: Options
    ) -> AsyncIterator[tuple[Any, RunnableConfig]]:
        await self._await_previous_turn()
        LOOP.set(asyncio.get_running_loop())  # the async callbacks of this turn run on this loop
        threaded_turn = ThreadedTurn(partial(self._begin, options=options), self._end)
        self._begin_future = asyncio.ensure_future(asyncio.to_thread(threaded_turn.begin, value, config, span))
        try:
            turn, run_config = await asyncio.shield(self._begin_future)
        except asyncio.CancelledError:
            threaded_turn.abandon()
            raise
        with detached():
            run_config = merge_configs(
                run_config, {"callbacks": [SaveBarrier(turn.checkpoint_tracker, asyncio.get_running_loop())]}
            )
        is_completed = False
        try:
            yield turn.turn_input.value, run_config
            is_completed = True
        finally:
            self._is_ending = True
            if is_completed:
                await asyncio.shield(asyncio.to_thread(self._end, turn, completed=True))
            else:
                self._end(turn, completed=False)  # without await: a cancelled task may not be resumed after one

    async def _await_previous_turn(self) -> None:
        """Wait briefly for a turn of this agent that was cancelled, or whose stream was not read to its end.

        Python closes an abandoned stream only in a later round of the loop, and the thread of a cancelled task keeps
        running.
        """
        polls, deadline = 0, monotonic() + ENDING_TIMEOUT
        while self._turn is not None or self._is_beginning():
            is_progressing = self._is_ending or self._is_beginning()
            if monotonic() > deadline or (polls >= CLOSING_POLLS and not is_progressing):
                return
            polls += 1
            await asyncio.sleep(0.005)

    def _is_beginning(self) -> bool:
        """Return whether a thread is still acquiring the branch for a turn of this loop, perhaps a cancelled one."""
        begin_future = self._begin_future
        return (
            begin_future is not None
            and not begin_future.done()
            and begin_future.get_loop() is asyncio.get_running_loop()
        )

    @contextmanager
    def _marking_end(self) -> Iterator[None]:
        """Mark the turn as ending as soon as its stream is closed, because the graph may take long to stop."""
        try:
            yield
        finally:
            self._is_ending = True

    @staticmethod
    def _durability(options: Options) -> str:
        """Return LangGraph's durability for the options of a run."""
        return options.get("durability") or ("exit" if options.get("checkpoint_during") is False else "async")

    def _durable_options(self, options: dict[str, Any], *, is_async: bool = False) -> dict[str, Any]:
        """Return the options of a run, changed so that each step is saved before the next one can have an effect.

        On an event loop LangGraph itself must wait for the save (`durability="sync"`), because a tool that is called
        without `await` would block the loop.

        Args:
            options: The options as the user gave them.
            is_async: True if the turn runs on an event loop.
        """
        durability = self._durability(options)
        if not self._branch.settings.effects.has_effects or (durability != "exit" and not is_async):
            return options
        return {**{name: value for name, value in options.items() if name != "checkpoint_during"}, "durability": "sync"}

    def _current_span(self) -> AbstractContextManager[None]:
        """Make the turn's span current, so that the graph's own spans are its children."""
        return self._turn.span.current() if self._turn is not None else nullcontext()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Run a part of the graph in the turn, and outside of a graph that calls this agent."""
        turn = self._turn
        with detached(), self._current_span(), turn.unit_of_work.current() if turn is not None else nullcontext():
            yield

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run one turn, as the graph's `invoke`.

        Raises:
            Conflict: Somebody else runs this branch, or has moved it since this agent last saw it.
        """
        with self._turn_context(input, config, kwargs) as (value, run_config), self._running():
            return self._instrumented_graph.invoke(value, run_config, **self._durable_options(kwargs))

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Run one turn, as the graph's `stream`. A stream that is not read to its end leaves no end checkpoint."""
        with self._turn_context(input, config, kwargs) as (value, run_config):
            chunks = self._instrumented_graph.stream(value, run_config, **self._durable_options(kwargs))
            while True:
                with self._running():
                    chunk = next(chunks, END)
                if chunk is END:
                    return
                yield chunk

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run one turn, as the graph's `ainvoke`."""
        async with self._aturn_context(input, config, kwargs) as (value, run_config):
            with self._running():
                return await self._instrumented_graph.ainvoke(
                    value, run_config, **self._durable_options(kwargs, is_async=True)
                )

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        """Run one turn, as the graph's `astream`."""
        async with (
            self._aturn_context(input, config, kwargs) as (value, run_config),
            aclosing(
                self._iterate_detached(
                    self._instrumented_graph.astream(value, run_config, **self._durable_options(kwargs, is_async=True))
                )
            ) as chunks,
        ):
            with self._marking_end():
                async for chunk in chunks:
                    yield chunk

    async def astream_events(  # type: ignore[override]  # LangChain types it as a coroutine in some versions
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Run one turn, as the graph's `astream_events`."""
        async with (
            self._aturn_context(input, config, kwargs) as (value, run_config),
            aclosing(
                self._iterate_detached(
                    self._instrumented_graph.astream_events(
                        value, run_config, **self._durable_options(kwargs, is_async=True)
                    )
                )
            ) as events,
        ):
            with self._marking_end():
                async for event in events:
                    yield event

    async def _iterate_detached(self, chunks: Any) -> AsyncGenerator[Any, None]:
        """Yield the chunks; each is produced outside the context of a graph that calls this agent."""
        chunks = aiter(chunks)
        try:
            while True:
                with self._running():
                    chunk = await anext(chunks, END)
                if chunk is END:
                    return
                yield chunk
        finally:
            await chunks.aclose()

    def batch(
        self, inputs: list[Any], config: Any = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> list[Any]:
        """Run one turn for each input, one after the other, because they are one conversation."""
        answers = self.batch_as_completed(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return [answer for _, answer in answers]

    def batch_as_completed(
        self, inputs: Sequence[Any], config: Any = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> Iterator[tuple[int, Any]]:
        """Run one turn for each input, as `batch`; yield each answer with its index as soon as its turn ends.

        Raises:
            InvalidInput: The numbers of configs and inputs differ; nothing was run.
        """
        for index, (value, turn_config) in enumerate(pair_configs(inputs, config)):
            try:
                answer = self.invoke(value, turn_config, **kwargs)
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
        for index, (value, turn_config) in enumerate(pair_configs(inputs, config)):
            try:
                answer = await self.ainvoke(value, turn_config, **kwargs)
            except Exception as error:
                if not return_exceptions:
                    raise
                answer = error
            yield index, answer

    def get_graph(self, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Return a drawable form of the graph, as the graph's `get_graph`."""
        return self.graph.get_graph(config, **kwargs)

    def get_state(self, config: RunnableConfig | None = None, **kwargs: Any) -> StateSnapshot:
        """Return the branch's newest state, as the graph's `get_state`."""
        self._branch.authorize_now()
        run_config = self._fill_config(config)
        with detached():
            return self._instrumented_graph.get_state(run_config, **kwargs)

    def get_state_history(self, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[StateSnapshot]:
        """List the branch's graph checkpoints, newest first, as the graph's `get_state_history`."""
        self._branch.authorize_now()
        return self._instrumented_graph.get_state_history(self._fill_config(config), **kwargs)

    def update_state(
        self, config: RunnableConfig | None, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        """Update the state, as the graph's `update_state`. This is a separate turn without a user message."""
        with self._turn_context(None, config) as (_, run_config), self._running():
            return self._instrumented_graph.update_state(run_config, values, as_node, task_id)

    def bulk_update_state(self, config: RunnableConfig | None, supersteps: Any) -> RunnableConfig:
        """Update the state in several steps, as the graph's `bulk_update_state`."""
        with self._turn_context(None, config) as (_, run_config), self._running():
            return self._instrumented_graph.bulk_update_state(run_config, supersteps)

    def run(self, text: str) -> str:
        """Send a message and return the text of the answer; for graphs whose state has `messages`.

        Args:
            text: The user's message.

        Raises:
            InvalidInput: The graph's state has no messages.
        """
        return inputs.answer_of(self.invoke({inputs.MESSAGES: [("user", text)]}))

    async def arun(self, text: str) -> str:
        """Send a message and return the text of the answer, as `run`."""
        return inputs.answer_of(await self.ainvoke({inputs.MESSAGES: [("user", text)]}))

    async def aget_state(self, config: RunnableConfig | None = None, **kwargs: Any) -> StateSnapshot:
        """Return the branch's newest state, as `get_state`."""
        return await asyncio.to_thread(self.get_state, config, **kwargs)

    async def aget_state_history(
        self, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[StateSnapshot]:
        """List the branch's graph checkpoints, as `get_state_history`."""
        for snapshot in await asyncio.to_thread(lambda: list(self.get_state_history(config, **kwargs))):
            yield snapshot

    aupdate_state = async_twin(update_state, prepare=_await_previous_turn)
    abulk_update_state = async_twin(bulk_update_state, prepare=_await_previous_turn)


def _stack_level_of_caller() -> int:
    """Count the stack frames up to the caller of this package, for a warning that points at the caller."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("agentgit.", "contextlib")):
        frame, level = frame.f_back, level + 1
    return level
