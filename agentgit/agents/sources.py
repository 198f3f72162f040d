"""Where threads come from: a LangGraph saver, sync or async, read through its own public methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, get_checkpoint_id

from agentgit.agents.addresses import config_of
from agentgit.errors import AgentGitError, Corrupt, InvalidInput, Unavailable
from agentgit.store.graph import Place

T = TypeVar("T")

PATIENCE = 60
"""Seconds that one answer of an async saver may take."""

_LATER = ("locked", "busy", "unable to open", "connection", "timeout", "terminat", "event loop")
"""What the texts of failures say that are the database's, and not the data's."""


class Entry(NamedTuple):
    """A graph checkpoint in the database that is read: its namespace, its id, its parent's id."""

    ns: str
    id: str
    parent: str | None


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn whatever a damaged or absent source raises into a failure that says where.

    Args:
        what: what is read.

    Raises:
        Unavailable: the database does not answer.
        Corrupt: what is there cannot be read.
    """
    try:
        yield
    except AgentGitError as error:
        if isinstance(error, InvalidInput):
            raise InvalidInput(f"{what} cannot be read. {error}") from error
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, (OSError, TimeoutError)) or any(word in said.lower() for word in _LATER):
            raise Unavailable(f"{what} cannot be read now ({said}). Try again; what was imported stays.") from error
        raise Corrupt(f"{what} is damaged and was not imported ({said}).", row=what) from error


class Source:
    """The threads of a saver.

    Args:
        saver: any LangGraph checkpointer; it is only read.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self.saver = saver

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what was opened to read; the saver stays open."""

    def threads(self) -> list[str]:
        """List the threads."""
        with reading("The list of threads"):
            return list(dict.fromkeys(str(one.config["configurable"]["thread_id"]) for one in self._list(None)))

    def index(self, thread: str) -> list[Entry]:
        """List the graph checkpoints of a thread, in any order."""
        with reading(f"Thread {thread!r}"):
            return [_entry(one) for one in self._list({"configurable": {"thread_id": thread}})]

    def newest(self, thread: str) -> CheckpointTuple | None:
        """Read the newest graph checkpoint of a thread; None if there is no such thread."""
        with reading(f"Thread {thread!r}"):
            return self._get({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})

    def read(self, thread: str, entry: Entry) -> CheckpointTuple:
        """Read one graph checkpoint.

        Raises:
            Corrupt: it is not there any more, or not what LangGraph writes.
        """
        what = f"Graph checkpoint {entry.id!r} of thread {thread!r}"
        with reading(what):
            found = self._get(config_of(Place(thread, entry.ns, entry.id)))
            if found is None or not _is_whole(found, entry):
                raise Corrupt(f"{what} is damaged, and the thread was not imported.", row=what)
            return found

    def _list(self, config: RunnableConfig | None) -> Iterator[CheckpointTuple]:
        return self.saver.list(config)

    def _get(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.saver.get_tuple(config)


class AsyncSource(Source):
    """The threads of a saver that has only async methods, or that belongs to an event loop.

    If its loop runs in another thread, it is asked there. Else it is asked from a loop in a thread of our own, because
    the caller's loop stands still meanwhile.

    Args:
        saver: an async checkpointer; it is only read.

    Raises:
        InvalidInput: it has a pool of connections, which answers only in the loop that stands still.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(saver)
        loop = getattr(saver, "loop", None)
        self._loop: asyncio.AbstractEventLoop | None = (
            loop if loop and loop.is_running() and not _is_here(loop) else None
        )
        if self._loop is None and "Pool" in type(getattr(saver, "conn", None)).__name__:
            raise InvalidInput(
                f"{type(saver).__name__} has a pool of connections that answers only while its event loop runs. Call "
                "this with: await asyncio.to_thread(…); or give the URL of its database."
            )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agentgit-import")
        self._runner = asyncio.Runner() if self._loop is None else None

    def close(self) -> None:
        """Stop the thread."""
        if self._runner is not None:
            self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    def _ask(self, answer: Awaitable[T]) -> T:
        async def wait() -> T:
            return await asyncio.wait_for(answer, PATIENCE)

        asked: Coroutine[Any, Any, T] = wait()
        if self._loop is not None:
            return asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        assert self._runner is not None  # noqa: S101  # one of the two is set, see __init__
        return self._thread.submit(self._runner.run, asked).result()

    def _list(self, config: RunnableConfig | None) -> Iterator[CheckpointTuple]:
        found = self.saver.alist(config)
        while (one := self._ask(_next(found))) is not None:
            yield one

    def _get(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._ask(self.saver.aget_tuple(config))


def source_of(saver: BaseCheckpointSaver[Any]) -> Source:
    """Choose how a saver is read."""
    is_async = isinstance(getattr(saver, "loop", None), asyncio.AbstractEventLoop)
    return AsyncSource(saver) if is_async or _lacks_sync(saver) else Source(saver)


def _lacks_sync(saver: BaseCheckpointSaver[Any]) -> bool:
    return type(saver).get_tuple is BaseCheckpointSaver.get_tuple or type(saver).list is BaseCheckpointSaver.list


def _is_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


async def _next(found: AsyncIterator[CheckpointTuple]) -> CheckpointTuple | None:
    return await anext(found, None)


def _entry(one: CheckpointTuple) -> Entry:
    configurable = one.config["configurable"]
    parent = get_checkpoint_id(one.parent_config) if one.parent_config else None
    return Entry(configurable.get("checkpoint_ns") or "", configurable["checkpoint_id"], parent)


def _is_whole(found: CheckpointTuple, entry: Entry) -> bool:
    """Tell whether a graph checkpoint has the parts that LangGraph writes."""
    checkpoint: Any = found.checkpoint
    return (
        isinstance(checkpoint, dict)
        and checkpoint.get("id") == entry.id
        and isinstance(checkpoint.get("v"), int)
        and isinstance(checkpoint.get("ts"), str)
        and all(isinstance(checkpoint.get(p), dict) for p in ("channel_values", "channel_versions", "versions_seen"))
        and isinstance(found.metadata, dict)
        and all(isinstance(name, str) for name in checkpoint["channel_values"])
        and _is_id(entry.id)
        and (entry.parent is None or _is_id(entry.parent))
        and all(_is_id(task) and isinstance(channel, str) for task, channel, _ in found.pending_writes or ())
    )


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 64 and value.isascii() and value.isprintable()
