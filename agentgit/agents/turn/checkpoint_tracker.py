"""Tracking of a turn's graph checkpoints, so that a call with an effect can wait until those before it are saved.

LangGraph derives the id of a task from the preceding graph checkpoint, and by default saves that checkpoint in the
background while the task already runs. If the process died in between, the task would run again with a different id,
and the call that it had started would not be recognized. See record 54 in docs/decisions.
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

LONGEST = 60.0
"""How long a call waits for a graph checkpoint, in seconds; one that is not saved by then never will be."""

FIRST_STEPS = 3
"""The most iterations of the event loop that a save needs to start."""


class CheckpointTracker:
    """Tracks which graph checkpoints of a turn are saved."""

    def __init__(self) -> None:
        self._saved: dict[GraphKey, Future[None]] = {}
        self._begun: set[GraphKey] = set()
        self._read: set[tuple[str, str]] = set()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()

    def read(self, thread: str, ns: str, found: GraphKey | None) -> None:
        """Record that a graph reads its checkpoint from the saver, so it also saves there.

        Args:
            thread: The thread of the graph.
            ns: The namespace of the graph; empty for the root graph.
            found: The checkpoint that it continues from; None if there is none.
        """
        with self._lock:
            self._read.add((thread, ns))
        if found is not None:
            self._end(found, None)

    @contextmanager
    def saving(self, place: GraphKey) -> Iterator[None]:
        """Record that the block saves a checkpoint or fails to."""
        with self._lock:
            self._begun.add(place)
            self._saved.setdefault(place, Future())
        try:
            yield
        except BaseException as error:
            self._fail(place, error)
            raise
        self._end(place, None)

    def _fail(self, place: GraphKey, error: BaseException) -> None:
        """Fail this checkpoint and those that LangGraph saves only after it, so that no call waits for them."""
        with self._lock:
            self._failure = error
            waited = [one for one in self._saved if one not in self._begun]
        for one in (place, *waited):
            self._end(one, error)

    def _end(self, place: GraphKey, error: BaseException | None) -> None:
        future = self._future(place)
        with self._lock:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def _future(self, place: GraphKey) -> Future[None]:
        with self._lock:
            if place not in self._saved:
                self._saved[place] = Future()
                if self._failure is not None and place not in self._begun:
                    self._saved[place].set_exception(self._failure)
            return self._saved[place]

    def graphs_of(self, task: str) -> Iterator[int]:
        """Yield the numbers of the graphs that a task has called, as far as they are saved.

        Args:
            task: LangGraph's name of the task.
        """
        with self._lock:
            names = [ns for _, ns in self._read if ns == task or ns.startswith(f"{task}|")]
        for ns in names:
            number = ns[len(task) + 1 :] or "0"
            if number.isdigit():
                yield int(number)

    def needed(self, conf: Mapping[str, Any]) -> list[GraphKey]:
        """List the checkpoints that a task's id is derived from and that are saved here.

        Args:
            conf: LangGraph's configuration of the task.
        """
        thread = str(conf.get(CONFIG_KEY_THREAD_ID))
        places = [GraphKey(thread, ns, id) for ns, id in conf.get(CONFIG_KEY_CHECKPOINT_MAP, {}).items()]
        with self._lock:
            if conf.get(CONFIG_KEY_DURABILITY) == "exit":  # the graph saves nothing until it ends
                return [place for place in places if place in self._begun]
            return [place for place in places if (thread, place.ns) in self._read]

    def wait(self, places: list[GraphKey]) -> None:
        """Wait until these checkpoints are saved.

        Raises:
            Unavailable: A checkpoint was not saved and will not be.
        """
        for place in places:
            try:
                self._future(place).result(LONGEST)
            except Exception as error:
                raise _unsaved(error) from error

    async def await_saved(self, places: list[GraphKey]) -> None:
        """Wait like `wait`, without blocking the event loop."""
        for place in places:
            try:
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._future(place))), LONGEST)
            except Exception as error:
                raise _unsaved(error) from error

    async def wait_pending(self) -> None:
        """Wait until every save that LangGraph is running or about to start has succeeded or failed."""
        for _ in range(FIRST_STEPS):
            await asyncio.sleep(0)
        with self._lock:
            begun = [future for place in self._begun if not (future := self._saved[place]).done()]
        if begun:
            await asyncio.wait([asyncio.wrap_future(future) for future in begun])


def _unsaved(error: Exception) -> Unavailable:
    return Unavailable(
        f"The step of the graph before this call could not be saved ({type(error).__name__}: {error}), so the call was "
        "not made: after a crash it could not be recognized. Fix the database, then continue with agent.invoke(None)."
    )


class SaveBarrier(BaseCallbackHandler):
    """Delays each node of an async turn until the checkpoints before it are saved.

    A tool that is called without `await` blocks the event loop, which the save may need.

    Args:
        saves: The saves of the turn.
        loop: The event loop on which the turn runs.
    """

    run_inline = True

    def __init__(self, saves: CheckpointTracker, loop: asyncio.AbstractEventLoop) -> None:
        self._saves = saves
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
            await self._saves.wait_pending()
