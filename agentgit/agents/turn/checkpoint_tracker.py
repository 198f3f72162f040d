"""Tracking of a turn's graph checkpoints, so that a call with an effect can wait until those before it are saved.

LangGraph derives the id of a task from the preceding graph checkpoint, and by default saves that checkpoint in the
background while the task already runs. If the process died in between, the task would run again with a different id,
and the call that it had started would not be recognized: with `durability="async"`, 5 of 5 kills lost the checkpoint.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from agentgit.errors import Unavailable
from agentgit.langgraph_internals import CONFIG_KEY_CHECKPOINT_MAP, CONFIG_KEY_DURABILITY, CONFIG_KEY_THREAD_ID
from agentgit.store.threads.graph_rows import GraphKey

SAVE_TIMEOUT = 60.0
"""How long a call waits for a graph checkpoint, in seconds; one that is not saved by then never will be."""

START_ITERATIONS = 3
"""The most iterations of the event loop that a save needs to start."""


class CheckpointTracker:
    """Tracks which graph checkpoints of a turn are saved."""

    def __init__(self) -> None:
        self._futures: dict[GraphKey, Future[None]] = {}
        self._started_keys: set[GraphKey] = set()
        self._read_graphs: set[tuple[str, str]] = set()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()

    def record_read(self, thread: str, ns: str, graph_key: GraphKey | None) -> None:
        """Record that a graph reads its checkpoint from the saver, so it also saves there."""
        with self._lock:
            self._read_graphs.add((thread, ns))
        if graph_key is not None:
            self._end(graph_key, None)

    @contextmanager
    def saving(self, graph_key: GraphKey) -> Iterator[None]:
        """Record that the block saves a checkpoint or fails to."""
        with self._lock:
            self._started_keys.add(graph_key)
            self._futures.setdefault(graph_key, Future())
        try:
            yield
        except BaseException as error:
            self._fail(graph_key, error)
            raise
        self._end(graph_key, None)

    def _fail(self, graph_key: GraphKey, error: BaseException) -> None:
        """Fail this checkpoint and those that LangGraph saves only after it, so that no call waits for them."""
        with self._lock:
            self._failure = error
            waiting_keys = [one for one in self._futures if one not in self._started_keys]
        for failed_key in (graph_key, *waiting_keys):
            self._end(failed_key, error)

    def _end(self, graph_key: GraphKey, error: BaseException | None) -> None:
        future = self._future(graph_key)
        with self._lock:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def _future(self, graph_key: GraphKey) -> Future[None]:
        with self._lock:
            if graph_key not in self._futures:
                self._futures[graph_key] = Future()
                if self._failure is not None and graph_key not in self._started_keys:
                    self._futures[graph_key].set_exception(self._failure)
            return self._futures[graph_key]

    def graph_numbers(self, task: str) -> Iterator[int]:
        """Yield the numbers of the graphs that a task has called, as far as they are saved."""
        with self._lock:
            namespaces = [ns for _, ns in self._read_graphs if ns == task or ns.startswith(f"{task}|")]
        for ns in namespaces:
            number = ns[len(task) + 1 :] or "0"
            if number.isdigit():
                yield int(number)

    def required_keys(self, configurable: Mapping[str, Any]) -> list[GraphKey]:
        """List the checkpoints that a task's id is derived from and that are saved here."""
        thread = str(configurable.get(CONFIG_KEY_THREAD_ID))
        graph_keys = [GraphKey(thread, ns, id) for ns, id in configurable.get(CONFIG_KEY_CHECKPOINT_MAP, {}).items()]
        with self._lock:
            if configurable.get(CONFIG_KEY_DURABILITY) == "exit":  # the graph saves nothing until it ends
                return [place for place in graph_keys if place in self._started_keys]
            return [place for place in graph_keys if (thread, place.ns) in self._read_graphs]

    def wait(self, graph_keys: list[GraphKey]) -> None:
        """Wait until these checkpoints are saved."""
        for graph_key in graph_keys:
            try:
                self._future(graph_key).result(SAVE_TIMEOUT)
            except Exception as error:
                raise _unsaved_error(error) from error

    async def await_saved(self, graph_keys: list[GraphKey]) -> None:
        """Wait like `wait`, without blocking the event loop."""
        for graph_key in graph_keys:
            try:
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._future(graph_key))), SAVE_TIMEOUT)
            except Exception as error:
                raise _unsaved_error(error) from error

    async def wait_pending(self) -> None:
        """Wait until every save that LangGraph is running or about to start has succeeded or failed."""
        for _ in range(START_ITERATIONS):
            await asyncio.sleep(0)
        with self._lock:
            pending = [future for graph_key in self._started_keys if not (future := self._futures[graph_key]).done()]
        if pending:
            await asyncio.wait([asyncio.wrap_future(future) for future in pending])


def _unsaved_error(error: Exception) -> Unavailable:
    return Unavailable(
        f"The step of the graph before this call could not be saved ({type(error).__name__}: {error}), so the call was "
        "not made: after a crash it could not be recognized. Fix the database, then "
        "continue the turn with agent.invoke(None)."
    )


class SaveBarrier(BaseCallbackHandler):
    """Delays each node of an async turn until the checkpoints before it are saved.

    A tool that is called without `await` blocks the event loop, which the save may need.
    """

    run_inline = True

    def __init__(self, tracker: CheckpointTracker, loop: asyncio.AbstractEventLoop) -> None:
        self._tracker = tracker
        self._loop = loop

    @property
    def ignore_chain(self) -> bool:
        """True if the node does not run on the event loop of the turn."""
        try:
            return asyncio.get_running_loop() is not self._loop
        except RuntimeError:
            return True

    async def on_chain_start(self, *_: Any, **__: Any) -> None:
        """Wait before a node, or anything called in it, starts."""
        if asyncio.get_running_loop() is self._loop:
            await self._tracker.wait_pending()
