"""Runs a graph on a branch: the methods of `Runnable` and `Pregel`, with the branch's thread id filled in."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Literal, NamedTuple, Self, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.stream import ProtocolEvent, StreamTransformer
from langgraph.types import StateSnapshot, StateUpdate

from agentgit.agents import inputs
from agentgit.agents.branch_context import Graph
from agentgit.agents.inputs import OnQuestion, pair_configs
from agentgit.agents.isolation import RUN_KEYS, detached, detached_config
from agentgit.agents.memory import with_recorded_store
from agentgit.agents.turn_runner import END, NO_OPTIONS, Options, TurnRunner
from agentgit.async_api import Closing, async_twin
from agentgit.errors import Conflict, InvalidInput
from agentgit.langgraph_internals import CONFIG_KEY_STREAM_MESSAGES_V2
from agentgit.next_steps import Next
from agentgit.store.threads.graph_rows import AS_NODE

Stream = Callable[[Any, RunnableConfig | None, Mapping[str, Any]], Any]
"""A function that runs a turn with an input, a config and options, and returns an iterator of its chunks."""


class StreamedTurn(NamedTuple):
    """A graph whose stream is one turn."""

    graph: Graph
    transformers: Sequence[Callable[[tuple[str, ...]], Any]]


def streamed_turn(
    graph: Graph, stream: Stream, astream: Stream, transformers: Sequence[Callable[[tuple[str, ...]], Any]] | None
) -> StreamedTurn:
    """Return a copy of a graph whose stream is a turn, for one call of `stream_events` or `astream_events`."""
    copied: Any = copy.copy(graph)
    chunks: list[Any] = []

    def open_stream(input: Any, config: RunnableConfig | None = None, **options: Any) -> Iterator[Any]:
        chunks.append(stream(input, config, options))
        return cast("Iterator[Any]", chunks[-1])

    def open_async_stream(
        input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> AsyncGenerator[Any, None]:
        chunks.append(astream(input, config, options))
        return cast("AsyncGenerator[Any, None]", chunks[-1])

    copied.stream, copied.astream = open_stream, open_async_stream
    return StreamedTurn(cast(Graph, copied), [*(transformers or ()), lambda scope: _EndOnFailure(scope, chunks)])


class _EndOnFailure(StreamTransformer):
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


class BranchRunner(TurnRunner):
    """A compiled graph on one branch, as a LangChain Runnable."""

    def with_config(self, config: RunnableConfig | None = None, **kwargs: Any) -> Self:
        """Return an agent on the same branch whose turns begin with a config, as the graph's `with_config`.

        Raises:
            InvalidInput: The config names another thread than the branch's own, or a checkpoint.
        """
        graph = self.graph.with_config(config, **kwargs)
        self._require_own_thread(graph.config or {})
        if names := RUN_KEYS & (graph.config or {}).get("configurable", {}).keys() - {"thread_id"}:
            raise InvalidInput(
                f"A branch runs only from its head; leave {', '.join(sorted(names))} out of the config.",
                Next("rollback"),
                Next("fork"),
            )
        return self._with_graph(graph)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run one turn, as the graph's `invoke`.

        Raises:
            Conflict: Somebody else runs this branch, or has moved it since this agent last saw it.
        """
        with (
            ExitStack() as resources,
            self._turn_context(resources, input, config, kwargs) as (value, run_config),
            self._running(),
        ):
            return self._instrumented_graph.invoke(value, run_config, **self._durable_options(kwargs))

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Run one turn, as the graph's `stream`. A stream that is not read to its end leaves no end checkpoint."""
        return self._iterate_stream(input, config, kwargs)

    def _iterate_stream(
        self, input: Any, config: RunnableConfig | None, options: Options, markers: Mapping[str, Any] = NO_OPTIONS
    ) -> Iterator[Any]:
        """Run one turn and yield its chunks."""
        with ExitStack() as resources, self._turn_context(resources, input, config, options) as (value, run_config):
            run_config["configurable"] |= with_recorded_store(markers, self._recorded_store)
            turn = self._turn
            chunks = self._instrumented_graph.stream(value, run_config, **self._durable_options(options))
            while self._turn is turn:
                with self._running():
                    chunk = next(chunks, END)
                if chunk is END:
                    return
                yield chunk

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run one turn, as the graph's `ainvoke`."""
        async with AsyncExitStack() as stack:
            value, run_config = await self._aturn(stack, input, config, kwargs)
            with self._running():
                return await self._instrumented_graph.ainvoke(
                    value, run_config, **self._durable_options(kwargs, is_async=True)
                )

    def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """Run one turn, as the graph's `astream`."""
        return self._aiterate_stream(input, config, kwargs)

    async def _aiterate_stream(
        self,
        input: Any,
        config: RunnableConfig | None,
        options: Options,
        markers: Mapping[str, Any] = NO_OPTIONS,
        method: Literal["astream", "astream_events"] = "astream",
    ) -> AsyncGenerator[Any, None]:
        """Run one turn and yield its chunks, as `_iterate_stream`."""
        async with AsyncExitStack() as stack:
            value, run_config = await self._aturn(stack, input, config, options)
            run_config["configurable"] |= with_recorded_store(markers, self._recorded_store)
            turn, run = self._turn, getattr(self._instrumented_graph, method)
            stream = aiter(run(value, run_config, **self._durable_options(options, is_async=True)))
            # A run that was taken back inside its stream fails as it closes, because it can save nothing.
            stack.push(lambda _kind, error, _trace: isinstance(error, Conflict) and self._turn is not turn)
            chunks = await stack.enter_async_context(Closing(stream))
            with self._marking_end():
                while self._turn is turn:
                    with self._running():
                        chunk = await anext(chunks, END)
                    if chunk is END:
                        return
                    yield chunk

    def stream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run one turn, as the graph's `stream_events`.

        With `version="v3"`, the turn begins when the stream is first read. Read it to its end, or use it in `with`: a
        stream that is left open holds the branch.
        """
        if kwargs.get("version") != "v3":
            return super().stream_events(input, config, **kwargs)
        turn = self._streamed_turn(kwargs.pop("transformers", None))
        with detached():
            return turn.graph.stream_events(input, detached_config(config), transformers=turn.transformers, **kwargs)

    def astream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run one turn, as the graph's `astream_events`; with `version="v3"` as `stream_events`."""
        if kwargs.get("version") == "v3":
            return self._aopen_stream(input, config, kwargs)
        return self._aiterate_stream(input, config, kwargs, method="astream_events")

    async def _aopen_stream(self, input: Any, config: RunnableConfig | None, options: dict[str, Any]) -> Any:
        turn = self._streamed_turn(options.pop("transformers", None))
        with detached():
            return await turn.graph.astream_events(
                input, detached_config(config), transformers=turn.transformers, **options
            )

    def _streamed_turn(self, transformers: Any) -> StreamedTurn:
        markers = {CONFIG_KEY_STREAM_MESSAGES_V2: True}
        return streamed_turn(
            self._instrumented_graph,
            lambda input, config, options: self._iterate_stream(input, config, options, markers),
            lambda input, config, options: self._aiterate_stream(input, config, options, markers),
            transformers,
        )

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
        return self.bulk_update_state(config, [[StateUpdate(values, as_node, task_id)]])

    def bulk_update_state(
        self, config: RunnableConfig | None, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """Update the state in several steps, as the graph's `bulk_update_state`."""
        nodes = {update[1] for step in supersteps for update in step}
        with (
            ExitStack() as resources,
            self._turn_context(resources, inputs.UPDATE, config) as (_, run_config),
            self._running(),
        ):
            if len(nodes) == 1 and None not in nodes:
                run_config = merge_configs(run_config, {"metadata": {AS_NODE: nodes.pop()}})
            return self._instrumented_graph.bulk_update_state(run_config, supersteps)

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

    async def aget_state(self, config: RunnableConfig | None = None, **kwargs: Any) -> StateSnapshot:
        """Return the branch's newest state, as `get_state`."""
        return await asyncio.to_thread(self.get_state, config, **kwargs)

    async def aget_state_history(
        self, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[StateSnapshot]:
        """List the branch's graph checkpoints, as `get_state_history`."""
        for snapshot in await asyncio.to_thread(lambda: list(self.get_state_history(config, **kwargs))):
            yield snapshot

    aupdate_state = async_twin(update_state, prepare=TurnRunner._await_previous_turn)
    abulk_update_state = async_twin(bulk_update_state, prepare=TurnRunner._await_previous_turn)
