"""The graph checkpoints of one turn, as they are saved: a call with an effect waits for those that its task comes from.

LangGraph makes the id of a task from the graph checkpoint before it, and by default saves that checkpoint in the
background while the task already runs. A process that dies then would come back with another task, and the call that
was begun would not be known again. See record 54 in docs/decisions.
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
"""The seconds that a call waits for a graph checkpoint; one that was not saved by then never will be."""

FIRST_STEPS = 3
"""The most rounds of the event loop that a save needs until it has begun."""


class Saves:
    """The record of which graph checkpoints of a turn are saved."""

    def __init__(self) -> None:
        self._saved: dict[GraphKey, Future[None]] = {}
        self._begun: set[GraphKey] = set()
        self._read: set[tuple[str, str]] = set()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()

    def read(self, thread: str, ns: str, found: GraphKey | None) -> None:
        """Take note that a graph looks for its checkpoint in the saver: so it also saves there.

        Args:
            thread: The thread of the graph.
            ns: The namespace of the graph; empty for the outermost.
            found: The checkpoint that it goes on from; None if there is none.
        """
        with self._lock:
            self._read.add((thread, ns))
        if found is not None:
            self._end(found, None)

    @contextmanager
    def saving(self, place: GraphKey) -> Iterator[None]:
        """Take note that a checkpoint is saved in this block, or fails to be."""
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
        """Let nobody wait for this checkpoint, nor for those that LangGraph saves only after it."""
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
        """Visit the numbers of the graphs that a task has called, as far as these are saved.

        Args:
            task: Its name in LangGraph.
        """
        with self._lock:
            names = [ns for _, ns in self._read if ns == task or ns.startswith(f"{task}|")]
        for ns in names:
            number = ns[len(task) + 1 :] or "0"
            if number.isdigit():
                yield int(number)

    def needed(self, conf: Mapping[str, Any]) -> list[GraphKey]:
        """List the checkpoints from which a task has its id, and that are saved here.

        Args:
            conf: LangGraph's configuration of the task.
        """
        thread = str(conf.get(CONFIG_KEY_THREAD_ID))
        places = [GraphKey(thread, ns, id) for ns, id in conf.get(CONFIG_KEY_CHECKPOINT_MAP, {}).items()]
        with self._lock:
            if conf.get(CONFIG_KEY_DURABILITY) == "exit":  # a graph that saves nothing before its end
                return [place for place in places if place in self._begun]
            return [place for place in places if (thread, place.ns) in self._read]

    def wait(self, places: list[GraphKey]) -> None:
        """Wait until these are saved.

        Raises:
            Unavailable: One is not, and will not be.
        """
        for place in places:
            try:
                self._future(place).result(LONGEST)
            except Exception as error:
                raise _unsaved(error) from error

    async def come(self, places: list[GraphKey]) -> None:
        """Wait as `wait`, without blocking the event loop."""
        for place in places:
            try:
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._future(place))), LONGEST)
            except Exception as error:
                raise _unsaved(error) from error

    async def settle(self) -> None:
        """Wait until what LangGraph is about to save, or saves at this moment, is saved or has failed."""
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


class Settling(BaseCallbackHandler):
    """Lets a node of an async turn begin when what is before it is saved.

    A tool that is called without `await` blocks the event loop, on which that save may have to run.

    Args:
        saves: The saves of the turn.
        loop: The event loop on which the turn runs.
    """

    run_inline = True

    def __init__(self, saves: Saves, loop: asyncio.AbstractEventLoop) -> None:
        self._saves = saves
        self._loop = loop

    @property
    def ignore_chain(self) -> bool:
        """True where the event loop of the turn cannot go on by itself."""
        try:
            return asyncio.get_running_loop() is not self._loop
        except RuntimeError:
            return True

    async def on_chain_start(self, *_: Any, **__: Any) -> None:
        """Wait before a node, or whatever is called in it."""
        if asyncio.get_running_loop() is self._loop:
            await self._saves.settle()
