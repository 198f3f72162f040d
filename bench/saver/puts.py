"""The time of single calls of `put` and `get_tuple`, by the number of messages, and of a `put` of 10 KB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from bench.contenders import SQLITE
from bench.graphs import text
from bench.measure import Line, Subject, lines, rotated, timed
from bench.saver.contenders import (
    Memory,
    Opened,
    Ours,
    OursFull,
    OursPostgres,
    Postgres,
    Saver,
    SqliteFull,
    SqliteNormal,
    beside_counterparts,
    present,
)
from bench.stage import Stage

KINDS = (Memory, SqliteFull, SqliteNormal, Ours, OursFull, Postgres, OursPostgres)

LENGTH = 200
"""The number of characters in a message."""

VALUE = 10 * 1024
"""The number of characters in the single value."""

WARM_UP = 3

NOTE = (
    "Milliseconds of one call. Messages have 200 characters; `put` stores a conversation with one new message, or\n"
    "a state with one new value of 10 KB. `get_tuple` reads what was just put, `get_tuple, new saver` does so by\n"
    "a saver that has read nothing of it yet. FULL waits for the disk; NORMAL and SQLModelSaver as it comes do not."
)

Times = dict[str, list[float]]


def measure(stage: Stage) -> Subject:
    """Time the calls."""
    scale = stage.scale.saver
    with stage.briefly(present(*KINDS), name="saver-puts", length=LENGTH) as made:
        contenders = [cast(Opened, contender) for contender in made]
        for contender in contenders:
            _put(contender.saver, "warm", {"messages": _messages(0, 1)})
        found = _lines("put, 10 KB", _values(contenders, scale.puts))
        for messages in scale.stored:
            for call, times in _calls(contenders, messages, scale.puts).items():
                found += _lines(f"{call}, {messages} messages", times)
    return Subject("Savers: time of put and get_tuple", NOTE, found)


def _lines(case: str, times: Times) -> list[Line]:
    return beside_counterparts(lines(case, times, [SQLITE]), times)


def _values(contenders: Sequence[Opened], rounds: int) -> Times:
    """Time `put` of one value of 10 KB, with a new value in a new thread each time."""
    times: Times = {contender.name: [] for contender in contenders}
    for number in range(WARM_UP + rounds):
        value = text(number, VALUE)
        for contender in rotated(contenders, number):
            thread = f"value-{number}"
            before = _put(contender.saver, thread, {})
            took, at = timed(_ready(contender.saver, thread, {"value": value}, before))
            _check(contender.saver, at, {"value": value})
            times[contender.name].append(took)
    return {name: found[WARM_UP:] for name, found in times.items()}


def _calls(contenders: Sequence[Opened], messages: int, rounds: int) -> dict[str, Times]:
    """Time `put` and both ways of `get_tuple` at one length, with a new last message in a new thread each time."""
    calls = ("put", "get_tuple", "get_tuple, new saver")
    times: dict[str, Times] = {call: {contender.name: [] for contender in contenders} for call in calls}
    for number in range(WARM_UP + rounds):
        for contender in rotated(contenders, number):
            for call, took in zip(calls, _one(contender, messages, number), strict=True):
                times[call][contender.name].append(took)
    return {call: {name: found[WARM_UP:] for name, found in each.items()} for call, each in times.items()}


def _one(contender: Opened, messages: int, number: int) -> tuple[float, float, float]:
    thread, saver = f"{messages}-{number}", contender.saver
    held = _messages(number, messages)
    before = _put(saver, thread, {"messages": held[:-1]})
    put, at = timed(_ready(saver, thread, {"messages": held}, before))
    get, _ = timed(partial(saver.get_tuple, at))
    _check(saver, at, {"messages": held})
    with contender.opened() as other:
        other.get_tuple(_config("warm"))
        first, _ = timed(partial(other.get_tuple, at))
        _check(other, at, {"messages": held})
    return put, get, first


def _messages(number: int, count: int) -> list[BaseMessage]:
    """Make a conversation whose last message is new in each round."""
    kinds = (HumanMessage, AIMessage)
    made = [kinds[n % 2](text(n, LENGTH), id=f"message-{n}") for n in range(count - 1)]
    return [*made, AIMessage(text(count + number, LENGTH), id=f"last-{number}")]


def _put(saver: Saver, thread: str, values: dict[str, Any]) -> RunnableConfig:
    return _ready(saver, thread, values, None)()


def _ready(
    saver: Saver, thread: str, values: dict[str, Any], before: RunnableConfig | None
) -> Callable[[], RunnableConfig]:
    """Prepare the arguments of `put`, and return a function that only makes the call, to be timed.

    Args:
        saver: The saver.
        thread: The thread.
        values: The values of the channels, all of which are new.
        before: The config of the parent checkpoint; None for the first checkpoint.
    """
    held = saver.get_tuple(before) if before else None
    versions = held.checkpoint["channel_versions"] if held else {}
    new = {name: saver.get_next_version(cast(Any, versions.get(name)), None) for name in values}
    checkpoint = Checkpoint(
        **{**empty_checkpoint(), "id": str(uuid6()), "channel_values": values, "channel_versions": {**versions, **new}}
    )
    config = before or _config(thread)
    return lambda: saver.put(config, checkpoint, {"source": "loop", "step": 1 if before else 0, "parents": {}}, new)


def _config(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def _check(saver: Saver, at: RunnableConfig, values: dict[str, Any]) -> None:
    found = saver.get_tuple(at)
    if found is None or found.checkpoint["channel_values"] != values:
        raise RuntimeError(f"{type(saver).__name__} does not give back what was put")
