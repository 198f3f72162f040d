"""A turn behind LangGraph's version 3 of streams, which reads the chunks of a graph and does not always close them."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.stream import ProtocolEvent, StreamTransformer

from agentgit.agents.branch_context import Graph

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
