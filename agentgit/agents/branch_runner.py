"""Running a graph on a branch: the graph's own verbs, with the branch's thread filled in."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager, nullcontext
from time import monotonic
from typing import Any, Self

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.types import StateSnapshot

from agentgit.agents import inputs
from agentgit.agents.branch_context import BranchContext, Graph, TurnSettings
from agentgit.agents.inputs import pairs
from agentgit.agents.instrumentation import captured
from agentgit.agents.isolation import alone, by_itself, require_apart
from agentgit.agents.node_caches import BranchCache, hidden_cache
from agentgit.agents.turn.checkpoint_buffer import Settling
from agentgit.agents.turn.turn import BeginningTurn, Turn
from agentgit.async_api import LOOP, async_twin
from agentgit.errors import AgentGitError, BranchMoved, InvalidInput
from agentgit.handles.context import Context
from agentgit.langgraph_internals import CONFIG_KEY_CACHE
from agentgit.tracing import NOTHING, Traced, start

END = object()
"""The value that a stream returns at its end."""

CLOSING_ROUNDS = 40
"""The number of rounds of the event loop that a turn waits until the one before is seen to be left."""

LEAVING_SECONDS = 30.0
"""The time it then waits until that one has given the branch back: on a busy machine a thread may take its time."""


class BranchRunner(Runnable[Any, Any]):
    """A compiled graph on one branch, as a LangChain Runnable.

    Args:
        context: The store and the principal.
        graph: The user's graph; it stays as it is.
        settings: The settings that apply to every turn.
        branch_id: The branch.
    """

    def __init__(self, context: Context, graph: Graph, settings: TurnSettings, branch_id: int) -> None:
        self.graph = graph
        self._branch = branch = BranchContext(context, graph, settings, branch_id)
        self._runs: Graph = captured(graph, lambda cache: BranchCache(cache, self._running), checkpointer=branch.saver)
        hidden = hidden_cache(graph)
        # LangGraph hands it down to each graph that is run inside, and none of them asks its own cache then.
        self._inside = {CONFIG_KEY_CACHE: BranchCache(hidden, self._running)} if hidden is not None else {}
        self._entered = context.entered.get(branch.session_id)
        self._turn: Turn | None = None
        self.refused: AgentGitError | None = None
        """Why a rollback that the model asked for did not happen, if it did not."""
        self.moved_at = monotonic()
        """The clock time, in this process, at which it was made or last began a turn."""
        self._beginning: asyncio.Future[tuple[Turn, RunnableConfig]] | None = None
        self._is_leaving = False
        """True while a turn on an event loop gives its branch back."""
        self._asking: Turn | None = None
        """A turn that waits for an answer, with what its tools asked for."""

    @property
    def branch_id(self) -> int:
        """The id of the branch that it runs on."""
        return self._branch.branch_id

    def _on(self, branch_id: int) -> Self:
        """Return a runner of the same graph on another branch of the session."""
        made = type(self)(self._branch.context, self.graph, self._branch.settings, branch_id)
        if branch_id == self.branch_id:
            made._asking = self._asking  # what a waiting turn asked for belongs to the branch it waits on
        return made

    def _running(self) -> Turn | None:
        return self._turn

    # -- the graph's own verbs

    def _config(self, config: RunnableConfig | None) -> RunnableConfig:
        """Fill in the branch's thread, and leave out what belongs to a graph that this one may be called from."""
        config = alone(config)
        given = config.get("configurable", {})
        if given.get("thread_id", self._branch.thread_id) != self._branch.thread_id:
            raise InvalidInput("This agent runs on its branch's own thread; leave thread_id out of the config.")
        with by_itself():  # LangChain merges what surrounds it into every config
            return merge_configs(config, {"configurable": {"thread_id": self._branch.thread_id, **self._inside}})

    def _traced(self) -> Traced:
        """Begin the span of a turn."""
        return start(
            f"invoke_agent {self.graph.name}",
            gen__ai_operation_name="invoke_agent",
            gen__ai_agent_name=self.graph.name,
            gen__ai_conversation_id=str(self._branch.session_id),
            agentgit_branch_id=self.branch_id,
        )

    def _begin(
        self, value: Any, config: RunnableConfig | None, traced: Traced = NOTHING
    ) -> tuple[Turn, RunnableConfig]:
        """Begin a turn: take the branch, and make the config that records it."""
        with traced.current():
            return self._begun(value, config, traced)

    def _begun(self, value: Any, config: RunnableConfig | None, traced: Traced) -> tuple[Turn, RunnableConfig]:
        require_apart(config)
        self._branch.store.database.require_open()  # before the files are looked at
        self._warn_if_moved()
        filled, self.moved_at = self._config(config), monotonic()
        if filled["configurable"].get("checkpoint_id") not in (None, self._branch.seen):
            raise InvalidInput(
                "A branch runs only from its head; to run from an earlier checkpoint, call fork(to) or rollback(to)."
            )
        filled["configurable"].pop("checkpoint_id", None)
        turn = Turn(self._branch, inputs.read(self._runs, value), traced)
        if self._asking is not None and not turn.given.is_new:
            turn.wanted, turn.afterwards = self._asking.wanted, self._asking.afterwards
        turn.begin()
        self._turn = self._branch.saver.turn = turn
        with by_itself():
            return turn, merge_configs(filled, {"callbacks": [turn.recorder]})

    def _warn_if_moved(self) -> None:
        """Warn once if a rollback or switch of this process has moved the session to another branch since."""
        branch, now = self._branch, self._branch.context.entered.get(self._branch.session_id)
        if now in (None, self._entered, branch.branch_id):
            return
        self._entered = now
        with branch.reading() as connection:
            current, own = (branch.store.sessions.branch(connection, one).name for one in (now, branch.branch_id))
            name = branch.session(connection).reference
        warnings.warn(
            f"Session {name} now continues on branch {current!r}, but this agent runs on {own!r}. "
            f"agent.at({current!r}) returns an agent for it.",
            BranchMoved,
            stacklevel=_frames_of_ours(),
        )

    def _end(self, turn: Turn, *, completed: bool) -> None:
        try:
            with turn.span.current():
                self._branch.seen = turn.end(completed=completed)
            self._branch.late = () if completed else (turn.head_id,)
        finally:
            self._turn = None
            if self._branch.saver.turn is turn:
                self._branch.saver.turn = None
            self._is_leaving = False
        # What a tool asked for beside one that waits for an answer is done when the answered turn has ended.
        self._asking = turn if completed and not turn.settled else None
        if completed and turn.settled and turn.afterwards is not None:
            self.refused = None
            try:
                turn.afterwards()
            except AgentGitError as error:  # the turn itself has ended well, and its answer is not thrown away
                self.refused = error

    @contextmanager
    def _taken(self, value: Any, config: RunnableConfig | None) -> Iterator[tuple[Any, RunnableConfig]]:
        """Hold the branch for one turn; give what the graph is run with."""
        with self._traced() as traced:
            turn, filled = self._begin(value, config, traced)
            completed = False
            try:
                yield turn.given.value, filled
                completed = True
            finally:
                self._end(turn, completed=completed)

    @asynccontextmanager
    async def _ataken(self, value: Any, config: RunnableConfig | None) -> AsyncIterator[tuple[Any, RunnableConfig]]:
        """Hold the branch for one turn, without blocking the event loop, and give it back also when cancelled."""
        with self._traced() as traced:
            async with self._aheld(value, config, traced) as held:
                yield held

    @asynccontextmanager
    async def _aheld(
        self, value: Any, config: RunnableConfig | None, traced: Traced
    ) -> AsyncIterator[tuple[Any, RunnableConfig]]:
        await self._closing()
        LOOP.set(asyncio.get_running_loop())  # where async callbacks are called, of whatever this turn does
        taking = BeginningTurn(self._begin, self._end)
        self._beginning = asyncio.ensure_future(asyncio.to_thread(taking.begin, value, config, traced))
        try:
            turn, filled = await asyncio.shield(self._beginning)
        except asyncio.CancelledError:
            taking.leave()
            raise
        with by_itself():
            filled = merge_configs(filled, {"callbacks": [Settling(turn.saves, asyncio.get_running_loop())]})
        completed = False
        try:
            yield turn.given.value, filled
            completed = True
        finally:
            self._is_leaving = True
            if completed:
                await asyncio.shield(asyncio.to_thread(self._end, turn, completed=True))
            else:
                self._end(turn, completed=False)  # at once: a task that was cancelled may get no other await

    async def _closing(self) -> None:
        """Wait a moment for a turn of this agent that was cancelled, or whose stream was left early.

        Python closes an abandoned stream when the loop comes to it, and the thread of a cancelled task runs on.
        """
        rounds, until = 0, monotonic() + LEAVING_SECONDS
        while self._turn is not None or self._is_beginning():
            is_known = self._is_leaving or self._is_beginning()
            if monotonic() > until or (rounds >= CLOSING_ROUNDS and not is_known):
                return
            rounds += 1
            await asyncio.sleep(0.005)

    def _is_beginning(self) -> bool:
        """Return whether a thread takes the branch for a turn of this loop that was cancelled."""
        begun = self._beginning
        return begun is not None and not begun.done() and begun.get_loop() is asyncio.get_running_loop()

    @contextmanager
    def _left(self) -> Iterator[None]:
        """Notice as early as possible that a stream is left; until the graph has stopped it may be long."""
        try:
            yield
        finally:
            self._is_leaving = True

    def _durable(self, options: dict[str, Any], *, is_async: bool = False) -> dict[str, Any]:
        """Return the options of a run in which each step is saved before the next one can have an effect.

        On an event loop LangGraph must wait for that itself: a tool that is called without `await` would stop the loop.

        Args:
            options: The options as the user gave them.
            is_async: True if the turn runs on an event loop.
        """
        how = options.get("durability") or ("exit" if options.get("checkpoint_during") is False else "async")
        if not self._branch.settings.effects.acts or (how != "exit" and not is_async):
            return options
        return {**{name: value for name, value in options.items() if name != "checkpoint_during"}, "durability": "sync"}

    def _current(self) -> AbstractContextManager[None]:
        """Let what the graph itself traces be a part of the turn."""
        return self._turn.span.current() if self._turn is not None else nullcontext()

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run one turn, as the graph's `invoke`.

        Raises:
            Conflict: Somebody else runs this branch, or has moved it since this agent last saw it.
        """
        with self._taken(input, config) as (value, filled), by_itself(), self._current():
            return self._runs.invoke(value, filled, **self._durable(kwargs))

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Run one turn, as the graph's `stream`; a turn whose stream is left early has no end checkpoint."""
        with self._taken(input, config) as (value, filled):
            chunks = self._runs.stream(value, filled, **self._durable(kwargs))
            while True:
                with by_itself(), self._current():
                    chunk = next(chunks, END)
                if chunk is END:
                    return
                yield chunk

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run one turn, as the graph's `ainvoke`."""
        async with self._ataken(input, config) as (value, filled):
            with by_itself(), self._current():
                return await self._runs.ainvoke(value, filled, **self._durable(kwargs, is_async=True))

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        """Run one turn, as the graph's `astream`."""
        async with (
            self._ataken(input, config) as (value, filled),
            aclosing(self._each(self._runs.astream(value, filled, **self._durable(kwargs, is_async=True)))) as chunks,
        ):
            with self._left():
                async for chunk in chunks:
                    yield chunk

    async def astream_events(  # type: ignore[override]  # LangChain types it as a coroutine in some versions
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Run one turn, as the graph's `astream_events`."""
        async with (
            self._ataken(input, config) as (value, filled),
            aclosing(
                self._each(self._runs.astream_events(value, filled, **self._durable(kwargs, is_async=True)))
            ) as events,
        ):
            with self._left():
                async for event in events:
                    yield event

    async def _each(self, chunks: Any) -> AsyncGenerator[Any, None]:
        """Pass chunks on; each is made outside of the graph that this agent may be called from."""
        chunks = aiter(chunks)
        try:
            while True:
                with by_itself(), self._current():
                    chunk = await anext(chunks, END)
                if chunk is END:
                    return
                yield chunk
        finally:
            await chunks.aclose()

    def batch(
        self, inputs: list[Any], config: Any = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> list[Any]:
        """Run one turn after the other: they are one conversation."""
        answers = self.batch_as_completed(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return [answer for _, answer in answers]

    def batch_as_completed(
        self, inputs: Sequence[Any], config: Any = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> Iterator[tuple[int, Any]]:
        """Run one turn after the other, as `batch`; yield each answer with its index as soon as its turn has ended.

        Raises:
            InvalidInput: There are not as many configs as inputs; nothing was run.
        """
        for index, (value, one) in enumerate(pairs(inputs, config)):
            try:
                answer = self.invoke(value, one, **kwargs)
            except Exception as error:
                if not return_exceptions:
                    raise
                answer = error
            yield index, answer

    async def abatch(
        self, inputs: list[Any], config: Any = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> list[Any]:
        """Run one turn after the other, as `batch`."""
        answers = self.abatch_as_completed(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return [answer async for _, answer in answers]

    async def abatch_as_completed(
        self, inputs: Sequence[Any], config: Any = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> AsyncIterator[tuple[int, Any]]:
        """Run one turn after the other, as `batch_as_completed`."""
        for index, (value, one) in enumerate(pairs(inputs, config)):
            try:
                answer = await self.ainvoke(value, one, **kwargs)
            except Exception as error:
                if not return_exceptions:
                    raise
                answer = error
            yield index, answer

    def get_graph(self, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Return the graph's drawing, as the graph's `get_graph`."""
        return self.graph.get_graph(config, **kwargs)

    def get_state(self, config: RunnableConfig | None = None, **kwargs: Any) -> StateSnapshot:
        """Return the branch's newest state, as the graph's `get_state`."""
        self._branch.authorize_now()
        filled = self._config(config)
        with by_itself():
            return self._runs.get_state(filled, **kwargs)

    def get_state_history(self, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[StateSnapshot]:
        """List the branch's graph checkpoints, newest first, as the graph's `get_state_history`."""
        self._branch.authorize_now()
        return self._runs.get_state_history(self._config(config), **kwargs)

    def update_state(
        self, config: RunnableConfig | None, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        """Change the state by hand, as the graph's `update_state`; a turn of its own, without a user message."""
        with self._taken(None, config) as (_, filled), by_itself():
            return self._runs.update_state(filled, values, as_node, task_id)

    def bulk_update_state(self, config: RunnableConfig | None, supersteps: Any) -> RunnableConfig:
        """Change the state by hand in several steps, as the graph's `bulk_update_state`."""
        with self._taken(None, config) as (_, filled), by_itself():
            return self._runs.bulk_update_state(filled, supersteps)

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

    aupdate_state = async_twin(update_state, first=_closing)
    abulk_update_state = async_twin(bulk_update_state, first=_closing)


def _frames_of_ours() -> int:
    """Count the frames up to the code that called this package, for a warning that names that code."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("agentgit.", "contextlib")):
        frame, level = frame.f_back, level + 1
    return level
