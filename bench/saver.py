"""The time of single calls of the savers: put, get_tuple, list, and the copy of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from sqlalchemy import URL

from agentgit import SQLModelSaver
from bench import postgres
from bench.contenders import OURS, POSTGRES, SQLITE, Address
from bench.graphs import CHAT, build, said, text
from bench.measure import Table, compared, interleaved, rotated, rows, timed
from bench.stage import Stage

LENGTH = 200

WARM_UP = 3

NOTE = (
    f"Milliseconds; messages of {LENGTH} characters. SqliteSaver has synchronous=NORMAL, as ours has. A new saver\n"
    'has read nothing yet. `fork` is saver.store.fork; its peer is update_state(config, None, as_node="__copy__").'
)

_numbers = count(1)


def measure(stage: Stage) -> list[Table]:
    """Time the calls on a file and on a server."""
    found = []
    with stage.folder() as folder:
        found.append(_table("SQLite", SQLITE, {SQLITE: folder / "theirs.db", OURS: folder / "ours.db"}, stage))
    if postgres.about():
        with postgres.scratch() as theirs, postgres.scratch() as ours:
            found.append(_table("PostgreSQL", POSTGRES, {POSTGRES: theirs, OURS: ours}, stage))
    return found


def _table(database: str, base: str, addresses: Mapping[str, Address], stage: Stage) -> Table:
    made: list[list[str]] = []
    with ExitStack() as held:
        savers = {name: held.enter_context(_saver(name, address)) for name, address in addresses.items()}
        for messages in stage.scale.stored:
            for call, times in _calls(savers, addresses, messages, stage.scale.rounds).items():
                made += rows(f"{call}, {messages} messages", compared(times, base))
        for call, times in _lists(savers, stage.scale.listed, max(2, stage.scale.rounds // 10)).items():
            made += rows(call, compared(times, base))
    return Table(f"Calls of a saver: {database}", NOTE, ("time", f"x {base}"), made)


@contextmanager
def _saver(name: str, address: Address) -> Iterator[Any]:
    """Open a saver that has read nothing yet."""
    if name == OURS:
        with SQLModelSaver.from_conn_string(address) as ours:
            ours.setup()
            yield ours
    elif isinstance(address, URL):
        with PostgresSaver.from_conn_string(postgres.plain(address)) as theirs:
            theirs.setup()
            yield theirs
    else:
        with SqliteSaver.from_conn_string(str(address)) as file:
            file.conn.execute("PRAGMA synchronous=NORMAL")
            yield file


def _calls(
    savers: Mapping[str, Any], addresses: Mapping[str, Address], messages: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Time put and both ways of get_tuple, with a new last message in a new thread each time."""
    calls = ("put", "get_tuple", "get_tuple, new saver")
    times: dict[str, dict[str, list[float]]] = {call: {name: [] for name in savers} for call in calls}
    for number in range(WARM_UP + rounds):
        for name in rotated(list(savers), number):
            found = _one(name, savers[name], addresses[name], messages)
            for call, took in zip(calls, found, strict=True):
                times[call][name].append(took)
    return {call: {name: took[WARM_UP:] for name, took in each.items()} for call, each in times.items()}


def _one(name: str, saver: Any, address: Address, messages: int) -> tuple[float, float, float]:
    number = next(_numbers)
    held = _messages(number, messages)
    before = _ready(saver, f"thread-{number}", held[:-1], None)()
    put, at = timed(_ready(saver, f"thread-{number}", held, before))
    get, _ = timed(partial(saver.get_tuple, at))
    with _saver(name, address) as other:
        other.get_tuple(_config("warm"))
        first, got = timed(partial(other.get_tuple, at))
    if got is None or got.checkpoint["channel_values"] != {"messages": held}:
        raise RuntimeError(f"{name} does not give back what was put")
    return put, get, first


def _messages(number: int, size: int) -> list[BaseMessage]:
    kinds = (HumanMessage, AIMessage)
    made = [kinds[n % 2](text(n, LENGTH), id=f"message-{n}") for n in range(size - 1)]
    return [*made, AIMessage(text(size + number, LENGTH), id=f"last-{number}")]


def _ready(saver: Any, thread: str, held: list[BaseMessage], before: RunnableConfig | None) -> Callable[[], Any]:
    """Prepare the arguments of `put`, and return a function that only makes the call, to be timed."""
    found = saver.get_tuple(before) if before else None
    versions = found.checkpoint["channel_versions"] if found else {}
    new = {"messages": saver.get_next_version(cast(Any, versions.get("messages")), None)}
    checkpoint = Checkpoint(
        **{**empty_checkpoint(), "id": str(uuid6()), "channel_values": {"messages": held}, "channel_versions": new}
    )
    return lambda: saver.put(
        before or _config(thread), checkpoint, {"source": "loop", "step": 1 if before else 0, "parents": {}}, new
    )


def _config(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def _lists(savers: Mapping[str, Any], turns: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Time lists of a conversation's graph checkpoints, and the copy of one in its middle."""
    runs: dict[str, dict[str, Callable[[], object]]] = {}
    config = _config("listed")
    for name, saver in savers.items():
        graph: Any = build(LENGTH, saver)
        for number in range(turns):
            graph.invoke({"messages": [("user", said(CHAT, number, LENGTH))]}, config)
        listed = list(saver.list(config))
        one = {"source": "loop", "step": listed[len(listed) // 2].metadata["step"]}
        made = {
            f"list, all {len(listed):,}": partial(_consume, saver, config),
            "list, by source and step": partial(_consume, saver, config, filter=one),
            "fork in the middle": partial(_fork, name, saver, graph, listed[len(listed) // 2].config),
        }
        for call, run in made.items():
            runs.setdefault(call, {})[name] = run
    return {call: interleaved(each, rounds) for call, each in runs.items()}


def _consume(saver: Any, config: RunnableConfig, **options: Any) -> list[Any]:
    return list(saver.list(config, **options))


def _fork(name: str, saver: Any, graph: Any, config: Any) -> object:
    if name != OURS:
        return graph.update_state(config, None, as_node="__copy__")
    at, target = config["configurable"], f"copy-{next(_numbers)}"
    return saver.database.write(lambda c: saver.store.fork(c, at["thread_id"], at["checkpoint_id"], target))
