"""Long-term memory: the store of a graph, so that each turn records what its nodes and tools write to it.

A write is a call of a built-in tool, `memory.put` or `memory.delete`, with the value before. Reads, searches and
lists pass through. Between turns, and for the store object that the user's code holds itself, nothing is recorded.
"""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, nullcontext
from typing import Any, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary

from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.utils.uuid import uuid7
from langgraph.store.base import NOT_PROVIDED, BaseStore, GetOp, Op, PutOp, Result
from langgraph.store.memory import InMemoryStore

from agentgit.agents.rerun_guard import require_outside_reruns
from agentgit.agents.tools.arguments import given_arguments
from agentgit.agents.turn.calls import Call, Calls
from agentgit.effects.declarations import Declaration
from agentgit.effects.effects import Effect
from agentgit.effects.kinds import MEMORY
from agentgit.effects.memory import DELETE, MEMORY_TOOLS, PUT, ItemName, MemoryEffect, lock_name
from agentgit.errors import Unavailable
from agentgit.langgraph_internals import CONFIG_KEY_RUNTIME, loop_of_store
from agentgit.rollback.verification import awaiter_for_current_loop
from agentgit.store.sql.named_locks import NamedLocks
from agentgit.values import portable

T = TypeVar("T")


class RecordedStore(BaseStore):
    """A store whose writes are recorded in the running turn of an agent. In all else, it is the user's store."""

    def __init__(
        self,
        store: BaseStore,
        current_calls: Callable[[], Calls | None],
        locks: NamedLocks,
        declared: Mapping[str, Effect | None],
    ) -> None:
        self.agentgit_store = store
        self._current_calls = current_calls
        self._locks = locks
        effect = MemoryEffect(store=name_of(store))
        self._effects = {tool_name: declared.get(tool_name) or effect for tool_name in MEMORY_TOOLS}

    # -- the same as the user's store

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the user's store, for `isinstance`."""
        return type(self.agentgit_store)

    def __getattr__(self, name: str) -> Any:
        if name == "agentgit_store":  # it is not set yet, as in `copy.copy`
            raise AttributeError(name)
        return getattr(self.agentgit_store, name)

    def __eq__(self, other: object) -> bool:
        return bool(plain_store(other) == self.agentgit_store)

    def __hash__(self) -> int:
        return hash(self.agentgit_store)

    @property
    def supports_ttl(self) -> bool:  # type: ignore[override]
        return self.agentgit_store.supports_ttl

    @property
    def ttl_config(self) -> Any:  # type: ignore[override]
        return self.agentgit_store.ttl_config

    def get(self, *args: Any, **options: Any) -> Any:
        return self._detached(self.agentgit_store.get(*args, **options))

    def search(self, *args: Any, **options: Any) -> Any:
        return self._detached(self.agentgit_store.search(*args, **options))

    def list_namespaces(self, *args: Any, **options: Any) -> Any:
        return self.agentgit_store.list_namespaces(*args, **options)

    async def aget(self, *args: Any, **options: Any) -> Any:
        return self._detached(await self.agentgit_store.aget(*args, **options))

    async def asearch(self, *args: Any, **options: Any) -> Any:
        return self._detached(await self.agentgit_store.asearch(*args, **options))

    async def alist_namespaces(self, *args: Any, **options: Any) -> Any:
        return await self.agentgit_store.alist_namespaces(*args, **options)

    # -- writes

    def put(self, namespace: tuple[str, ...], key: str, value: Any, *args: Any, **options: Any) -> None:
        with self._recording([_put_op(namespace, key, value, *args, **options)]):
            self.agentgit_store.put(namespace, key, self._detached(value), *args, **options)

    def delete(self, namespace: tuple[str, ...], key: str) -> None:
        with self._recording([PutOp(namespace, str(key), None)]):
            self.agentgit_store.delete(namespace, key)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute several operations, and record those that write."""
        own_ops = self._detached(list(ops))
        with self._recording(own_ops):
            return self._detached(self.agentgit_store.batch(own_ops))

    async def aput(self, namespace: tuple[str, ...], key: str, value: Any, *args: Any, **options: Any) -> None:
        op, own_value = _put_op(namespace, key, value, *args, **options), self._detached(value)
        await self._arecord([op], lambda: self.agentgit_store.aput(namespace, key, own_value, *args, **options))

    async def adelete(self, namespace: tuple[str, ...], key: str) -> None:
        op = PutOp(namespace, str(key), None)
        await self._arecord([op], lambda: self.agentgit_store.adelete(namespace, key))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute several operations, and record those that write."""
        own_ops = self._detached(list(ops))
        return self._detached(await self._arecord(own_ops, lambda: self.agentgit_store.abatch(own_ops)))

    def _detached(self, value: T) -> T:
        """Copy what goes to or comes from an `InMemoryStore`, so that no caller changes the value before."""
        if not isinstance(self.agentgit_store, InMemoryStore):
            return value
        try:
            return copy.deepcopy(value)
        except Exception:  # noqa: BLE001  # some objects cannot be copied
            return value

    def _calls_of(self, writes: Mapping[ItemName, PutOp]) -> Calls | None:
        """Return the calls of the turn in which writes are made; None outside a turn, or if there are none."""
        calls = self._current_calls() if writes else None
        if writes and calls is None:
            require_outside_reruns(_tool_name(next(iter(writes.values()))))
        return calls

    @contextmanager
    def _recording(self, ops: Sequence[Op]) -> Iterator[None]:
        """Record the writes among operations that the block executes."""
        writes = _last_writes(ops)
        calls = self._calls_of(writes)
        if calls is None:
            yield
            return
        items, effects = self._undoable_items(writes), self._effects
        # A write that raised is looked up under the lock, so this is done when the lock is free.
        with ExitStack() as failing, self._locks.hold(self._lock_names(items)) if items else nullcontext():
            befores = self.agentgit_store.batch([_read_op(item) for item in items]) if items else []
            begun = _begin(calls, writes, effects, dict(zip(items, befores, strict=True)))
            with _running(begun):
                failing.push(_failing(begun))
                yield
            failing.pop_all()
            stored = self.agentgit_store.batch(map(_read_op, inexact)) if (inexact := _inexact(writes)) else []
            _end(begun, dict(zip(inexact, stored, strict=True)))

    async def _arecord(self, ops: Sequence[Op], execute: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Execute operations, and record the writes among them, without blocking the event loop."""
        writes = _last_writes(ops)
        calls = self._calls_of(writes)
        if calls is None:
            return await execute()
        items = self._undoable_items(writes)
        async with AsyncExitStack() as failing, self._holding(items) as executions:
            befores = await self.agentgit_store.abatch([_read_op(item) for item in items]) if items else []
            befores_by_item = dict(zip(items, befores, strict=True))
            begin = functools.partial(_begin, calls, writes, self._effects, befores_by_item)
            begun = await _in_thread(begin, _abort)
            with _running(begun):
                failing.push_async_exit(_afailing(begun))
                executions.append(asyncio.ensure_future(execute()))
                result: T = await asyncio.shield(executions[0])  # most stores go on in any case
            failing.pop_all()
            inexact = _inexact(writes)
            stored = await self.agentgit_store.abatch(map(_read_op, inexact)) if inexact else []
            end = functools.partial(_end, begun, dict(zip(inexact, stored, strict=True)))
            await _in_thread(end, lambda _: None)
        return result

    @asynccontextmanager
    async def _holding(self, items: Sequence[ItemName]) -> AsyncIterator[list[asyncio.Future[Any]]]:
        """Hold the locks of items until the block and the executions that it adds to the list have ended."""
        executions: list[asyncio.Future[Any]] = []
        keys = await self._locks.acquire(self._lock_names(items)) if items else frozenset[int]()
        try:
            yield executions
        finally:
            if executions and not executions[0].done():
                executions[0].add_done_callback(lambda _: self._locks.release(keys))
            elif keys:
                await asyncio.shield(asyncio.to_thread(self._locks.release, keys))

    def _lock_names(self, items: Iterable[ItemName]) -> list[str]:
        return [lock_name(name_of(self.agentgit_store), item) for item in items]

    def _undoable_items(self, writes: Mapping[ItemName, PutOp]) -> list[ItemName]:
        """Return the items whose writes can be undone, so that their values before are recorded."""
        return [item for item, op in writes.items() if self._effects[_tool_name(op)].kind == MEMORY]


class StoreMemory:
    """The memory of a session, as a rollback uses it; see `agentgit.effects.memory.Memory`."""

    def __init__(self, store: BaseStore) -> None:
        self.store = store

    @property
    def name(self) -> str:
        return name_of(self.store)

    def read(self, item: ItemName) -> Any:
        """Return the value of an item, JSON-like; None if there is none. Its time to live stays as it is."""
        found = self._run(lambda: self.store.batch([_read_op(item)]), lambda: self.store.abatch([_read_op(item)]))[0]
        return portable(found.value) if found is not None else None

    def write(self, item: ItemName, value: Any, options: Mapping[str, Any]) -> None:
        """Put or, with None, delete an item; `options` are further arguments of `put`."""
        ttl = options.get("ttl", (self.store.ttl_config or {}).get("default_ttl"))
        op = PutOp(*item, value, options.get("index"), ttl)  # `put` of the user's class may write something else
        self._run(lambda: self.store.batch([op]), lambda: self.store.abatch([op]))

    def _run(self, run: Callable[[], Any], arun: Callable[[], Any]) -> Any:
        """Run an operation, on the event loop of an async store."""
        loop = loop_of_store(self.store)
        if loop is not None and (loop.is_closed() or not loop.is_running()):
            raise Unavailable("The event loop of the store does not run any more. Open the store again.")
        try:
            return run()
        except NotImplementedError:  # it has only async methods
            return awaiter_for_current_loop()(arun())


def plain_store(store: Any) -> Any:
    """Return the user's store behind a store that a turn has seen."""
    return store.agentgit_store if type(store) is RecordedStore else store


_memories: WeakValueDictionary[int, StoreMemory] = WeakValueDictionary()
"""The memory that each store is, by the id of the store, which its memory keeps alive."""


def as_memory(store: Any) -> StoreMemory | None:
    """Return the memory that a store is, the same object each time; None if there is no store that can be wrapped."""
    store = plain_store(store)
    return _memories.setdefault(id(store), StoreMemory(store)) if is_wrappable(store) else None


_names: WeakKeyDictionary[BaseStore, str] = WeakKeyDictionary()
"""The names of stores."""


def name_of(store: BaseStore) -> str:
    """Return the name of a store that belongs to this process; empty for any other, such as a database."""
    # A subclass may keep its items for the next process, as that of `langgraph dev` does.
    return _names.setdefault(store, uuid4().hex) if type(store) is InMemoryStore else ""


def is_wrappable(store: Any) -> bool:
    """Return whether writes to a store can be recorded."""
    return isinstance(store, BaseStore)


def with_recorded_store(settings: Mapping[str, Any], record: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Return LangGraph's own settings for a run, in which the store that a host gives is recorded."""
    runtime = settings.get(CONFIG_KEY_RUNTIME)
    store = getattr(runtime, "store", None)
    if store is None:
        return settings
    recorded = copy.copy(runtime)
    object.__setattr__(recorded, "store", record(store))  # the class may be frozen
    return {**settings, CONFIG_KEY_RUNTIME: recorded}


def store_of_run(configurable: Mapping[str, Any], graph_store: Any) -> Any:
    """Return the store that a run uses: the one that its host gives, or else that of the graph."""
    runtime = configurable.get(CONFIG_KEY_RUNTIME)
    return getattr(runtime, "store", None) if runtime is not None else graph_store


# -- the recorded calls

Writes = Mapping[ItemName, Call]
"""The call that records the write to each item."""


def _put_op(
    namespace: tuple[str, ...], key: str, value: Any, index: Any = None, *, ttl: Any = NOT_PROVIDED, **_: Any
) -> PutOp:
    """Return the operation that `put` makes of its arguments; a store may have more of them."""
    return PutOp(namespace, str(key), value, index, None if ttl is NOT_PROVIDED else ttl)


def _read_op(item: ItemName) -> GetOp:
    return GetOp(*item, refresh_ttl=False)


def _last_writes(ops: Sequence[Op]) -> dict[ItemName, PutOp]:
    """Return the last write to each item, which is the one that stores apply."""
    return {(tuple(op.namespace), str(op.key)): op for op in ops if isinstance(op, PutOp)}


def _tool_name(op: PutOp) -> str:
    return DELETE if op.value is None else PUT


def _begin(
    calls: Calls,
    writes: Mapping[ItemName, PutOp],
    effects: Mapping[str, Effect],
    befores: Mapping[ItemName, Any],
) -> Writes:
    config: Mapping[str, Any] = var_child_runnable_config.get() or {}
    parent_run_id = getattr(config.get("callbacks"), "parent_run_id", None)
    begun: dict[ItemName, Call] = {}
    try:
        for item, op in writes.items():
            effect = effects[_tool_name(op)]
            declaration = Declaration(_tool_name(op), effect)
            call = calls.new(declaration, uuid7(), parent_run_id, config.get("configurable", {}))
            call.open(given_arguments(_args(item, op, effect, befores)))
            begun[item] = call
    except Exception as error:
        _fail(begun, error)
        raise
    return begun


def _args(item: ItemName, op: PutOp, effect: Effect, befores: Mapping[ItemName, Any]) -> dict[str, Any]:
    namespace, key = item
    # In this order, because short forms show only the beginning.
    args: dict[str, Any] = {"key": key} | ({"value": op.value} if op.value is not None else {})
    args["namespace"] = list(namespace)
    args |= {name: given for name, given in (("index", op.index), ("ttl", op.ttl)) if given is not None}
    if not _is_json(op.value):
        args["value_exact"] = False
    if effect.kind == MEMORY:
        found = befores[item]
        args["before"] = found.value if found is not None else None
        if not _is_json(args["before"]):
            args["before_exact"] = False
    return args


def _is_json(value: Any) -> bool:
    """Return whether the record has a value exactly as it is."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or (type(value) in (bool, int, float, str) and portable(value) == value)


@contextmanager
def _running(writes: Writes) -> Iterator[None]:
    with ExitStack() as stack:
        for call in writes.values():
            stack.enter_context(call.observed())
        yield


def _failing(writes: Writes) -> Callable[..., None]:
    """Return what records the error with which a block ended, for an `ExitStack`."""

    def exit_block(_: Any, error: BaseException | None, __: Any) -> None:
        if error is not None:
            _fail(writes, error)

    return exit_block


def _afailing(writes: Writes) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return what records the error with which a block ended, for an `AsyncExitStack`."""

    async def exit_block(_: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, Exception):
            await asyncio.to_thread(_fail, writes, error)
        elif error is not None:
            _abort(writes)

    return exit_block


def _inexact(writes: Mapping[ItemName, PutOp]) -> list[ItemName]:
    """Return the items whose new values the store may hold in another form, as a database holds a date as text."""
    return [item for item, op in writes.items() if not _is_json(op.value)]


def _end(writes: Writes, stored: Mapping[ItemName, Any]) -> None:
    """Record that writes are done, each with the value that the store holds, if that may be in another form."""
    for item, call in writes.items():
        found = stored.get(item)
        call.end(found.value if found is not None else None)


def _fail(writes: Writes, error: BaseException) -> None:
    for call in writes.values():
        call.end_raised(error)


def _abort(writes: Writes) -> None:
    """Handle writes that were cancelled at an unknown point; the end of the turn records them as unknown."""
    _fail(writes, asyncio.CancelledError())


async def _in_thread(function: Callable[[], Any], abandon: Callable[[Any], None]) -> Any:
    """Run a function in a thread, and hand its result to `abandon` if the caller is cancelled meanwhile."""
    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        running.add_done_callback(
            lambda done: abandon(done.result()) if not done.cancelled() and done.exception() is None else None
        )
        raise
