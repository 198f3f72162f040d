"""Running a graph on a branch: the graph's own verbs, with the branch's thread filled in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager, nullcontext
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot
from sqlalchemy import Connection

from agentgit.agents import inputs
from agentgit.agents.instrumentation import captured
from agentgit.agents.isolation import alone, by_itself, expect_apart
from agentgit.agents.node_caches import BranchCache, hidden_cache
from agentgit.agents.turn.checkpoint_buffer import Settling
from agentgit.agents.turn.turn import Turn, TurnSettings
from agentgit.auth.roles import EDITOR, VIEWER
from agentgit.errors import AgentGitError, InvalidInput
from agentgit.langgraph_internals import CONFIG_KEY_CACHE
from agentgit.rollback import Planner
from agentgit.saver.saver import NOTHING_ELSE, Beside, SQLModelSaver
from agentgit.store.audit.bus import LOOP
from agentgit.store.threads.graph_rows import GraphKey
from agentgit.tracing import NOTHING, Traced, start

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.repository import Repository

Graph = Pregel[Any, Any, Any, Any]

END = object()
"""The value that a stream returns at its end."""

CLOSING_ROUNDS = 40
"""The number of rounds of the event loop that a turn waits until the one before is seen to be left."""

LEAVING_SECONDS = 30.0
"""The time it then waits until that one has given the branch back: on a busy machine a thread may take its time."""


class Runs(Runnable[Any, Any]):
    """A compiled graph on one branch, as a LangChain Runnable.

    Args:
        repository: The repository that records the session.
        graph: The user's graph; it stays as it is.
        rules: The settings that apply to every turn.
        branch_id: The branch.
    """

    def __init__(self, repository: Repository, graph: Graph, rules: TurnSettings, branch_id: int) -> None:
        self.repository = repository
        self.graph = graph
        self.rules = rules
        self.store = repository.store.apart()
        self._saver = SQLModelSaver(
            self.store.database, tenant_id=self.store.tenant_id, graphs=self.store.graphs, sessions=True
        )
        self._saver.on_put = self._on_put
        self._saver.on_read = self._on_read
        self._saver.is_carried = lambda: self._turn is not None
        self._saver.channels = graph.channels
        self.codec = self._saver.codec
        self._runs: Graph = captured(graph, lambda cache: BranchCache(cache, self), checkpointer=self._saver)
        hidden = hidden_cache(graph)
        # LangGraph hands it down to each graph that is run inside, and none of them asks its own cache then.
        self._inside = {CONFIG_KEY_CACHE: BranchCache(hidden, self)} if hidden is not None else {}
        self.planner = Planner(self.store, repository.registry)
        self._turn: Turn | None = None
        self.refused: AgentGitError | None = None
        """Why a rollback that the model asked for did not happen, if it did not."""
        self.moved_at = 0.0
        """The clock time, in this process, at which it last began a turn or came to a branch."""
        self._beginning: asyncio.Future[tuple[Turn, RunnableConfig]] | None = None
        self._is_leaving = False
        """True while a turn on an event loop gives its branch back."""
        self._stand_on(branch_id)

    def _expect(self, connection: Connection, needs: str = EDITOR) -> None:
        """Check that the agent's user still has the needed role in the session; for its owner nothing is read.

        Raises:
            NotFound, NotAllowed: The user does not have the role; nothing was done.
        """
        self.repository.lookup.admit(connection, self._session_id, needs)

    @contextmanager
    def _reading(self, needs: str = VIEWER) -> Iterator[Connection]:
        """Open a read-only connection for a user who may see the session."""
        with self.store.database.reading() as connection:
            self._expect(connection, needs)
            yield connection

    def _expect_now(self, needs: str = VIEWER) -> None:
        """Check the user's role where the transactions that follow are not the agent's own, or may not come at all."""
        if not self.repository.lookup.is_free(self._session_id):
            with self._reading(needs):
                pass

    def _stand_on(self, branch_id: int) -> None:
        with self.store.database.reading() as connection:
            row = self.store.sessions.branch(connection, branch_id)
            head = self.store.graphs.head(connection, row.thread_id)
        self.moved_at = monotonic()
        self.branch_id, self._session_id, self._thread_id = row.id, row.external_session_id, row.thread_id
        self.seen = head.checkpoint_id if head else None
        # After a turn that was broken off LangGraph may still save a step in another thread. That is no other agent's
        # doing, as long as the branch's head is where the turn left it.
        self.late: tuple[int | None, ...] = ()
        self._asking: Turn | None = None  # what a waiting turn asked for belongs to the branch it waits on

    # -- the graph's own verbs

    def _config(self, config: RunnableConfig | None) -> RunnableConfig:
        """Fill in the branch's thread, and leave out what belongs to a graph that this one may be called from."""
        config = alone(config)
        given = config.get("configurable", {})
        if given.get("thread_id", self._thread_id) != self._thread_id:
            raise InvalidInput("This agent runs on its branch's own thread; leave thread_id out of the config.")
        with by_itself():  # LangChain merges what surrounds it into every config
            return merge_configs(config, {"configurable": {"thread_id": self._thread_id, **self._inside}})

    def _traced(self) -> Traced:
        """Begin the span of a turn."""
        return start(
            f"invoke_agent {self.graph.name}",
            gen__ai_operation_name="invoke_agent",
            gen__ai_agent_name=self.graph.name,
            gen__ai_conversation_id=str(self._session_id),
            agentgit_branch_id=self.branch_id,
        )

    def _begin(
        self, value: Any, config: RunnableConfig | None, traced: Traced = NOTHING
    ) -> tuple[Turn, RunnableConfig]:
        """Begin a turn: take the branch, and make the config that records it."""
        with traced.current():
            return self._begun(value, config, traced)

    def _begun(self, value: Any, config: RunnableConfig | None, traced: Traced) -> tuple[Turn, RunnableConfig]:
        expect_apart(config)
        self.store.database.expect_open()  # before the files are looked at
        filled, self.moved_at = self._config(config), monotonic()
        if filled["configurable"].get("checkpoint_id") not in (None, self.seen):
            raise InvalidInput(
                "A branch is not run from its middle; make a new one there with fork(to) or rollback(to)."
            )
        filled["configurable"].pop("checkpoint_id", None)
        turn = Turn(cast("RollbackAgent", self), inputs.read(self._runs, value), traced)
        if self._asking is not None and not turn.given.is_new:
            turn.wanted, turn.afterwards = self._asking.wanted, self._asking.afterwards
        turn.begin()
        self._turn = turn
        with by_itself():
            return turn, merge_configs(filled, {"callbacks": [turn.recorder]})

    def _end(self, turn: Turn, *, completed: bool) -> None:
        try:
            with turn.span.current():
                self.seen = turn.end(completed=completed)
            self.late = () if completed else (turn.head_id,)
        finally:
            self._turn, self._is_leaving = None, False
        # What a tool asked for beside one that waits for an answer is done when the answered turn has ended.
        self._asking = turn if completed and not turn.settled else None
        if completed and turn.settled and turn.afterwards is not None:
            self.refused = None
            try:
                turn.afterwards()
            except AgentGitError as error:  # the turn itself has ended well, and its answer is not thrown away
                self.refused = error

    def _on_put(self, place: GraphKey) -> AbstractContextManager[Beside]:
        return nullcontext(NOTHING_ELSE) if self._turn is None else self._turn.on_put(place)

    def _on_read(self, thread: str, ns: str, found: GraphKey | None) -> None:
        if self._turn is not None:
            self._turn.saves.read(thread, ns, found)

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
        taking = _Taking(self)
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
        if not self.rules.effects.acts or (how != "exit" and not is_async):
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

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
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
        for index, (value, one) in enumerate(_with_configs(inputs, config)):
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
        for index, (value, one) in enumerate(_with_configs(inputs, config)):
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
        self._expect_now()
        filled = self._config(config)
        with by_itself():
            return self._runs.get_state(filled, **kwargs)

    def get_state_history(self, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[StateSnapshot]:
        """List the branch's graph checkpoints, newest first, as the graph's `get_state_history`."""
        self._expect_now()
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


class _Taking:
    """Takes the branch in a thread, and gives it back if nobody wants the turn any more.

    That is not left to the event loop: it may end, or stand still, before the thread has come so far.

    Args:
        runs: The object that runs the branch.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._lock = threading.Lock()
        self._turn: Turn | None = None
        self._is_left = False

    def begin(self, value: Any, config: RunnableConfig | None, traced: Traced) -> tuple[Turn, RunnableConfig]:
        """Begin a turn, in a thread."""
        begun = self._runs._begin(value, config, traced)
        with self._lock:
            self._turn, is_left = begun[0], self._is_left
        if is_left:
            self._runs._end(begun[0], completed=False)
        return begun

    def leave(self) -> None:
        """Want the turn no more; who comes second gives the branch back."""
        with self._lock:
            self._is_left, turn = True, self._turn
        if turn is not None:
            self._runs._end(turn, completed=False)


def _with_configs(inputs: Sequence[Any], config: Any) -> list[tuple[Any, Any]]:
    """Pair inputs with their configs, before any turn runs.

    Raises:
        InvalidInput: There are not as many configs as inputs.
    """
    if not isinstance(config, list | tuple):
        return [(value, config) for value in inputs]
    if len(config) != len(inputs):
        raise InvalidInput(
            f"There are {len(inputs)} inputs and {len(config)} configs, so no turn was run. Give one config for all, "
            "or one for each input."
        )
    return list(zip(inputs, config, strict=True))
