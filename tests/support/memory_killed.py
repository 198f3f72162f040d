"""Processes that write to one memory, and are killed at a named point; test_memory_killed.py starts them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import points
from faults import die
from killed_process import Hook, ShopPoint, after, before, to_status
from langgraph.store.sqlite import SqliteStore
from memory_graphs import noting, said, sqlite_store

import agentgit

PUT = ShopPoint(SqliteStore, "put")

WRITE: dict[str, Hook] = {
    "before the intent": before(points.WRITE_INTENT),
    "after the intent": before(PUT),
    "after the write": after(PUT),
    "before the record": before(points.WRITE_OUTCOME, lambda journal, transaction, call, how: how.status == "done"),
    "after the record": after(points.RECORD_CALL),
}

UNDO: dict[str, Hook] = {
    "before the operation": before(points.BEGIN_OPERATION),
    "before the reversal": before(points.MOVE_CALL, to_status("reversing")),
    "after its intent": before(points.UNDO_CALL),
    "after the undo": after(points.UNDO_CALL),
    "before its record": before(points.MOVE_CALL, to_status("reversed")),
    "before the publication": before(points.PUBLISH_OPERATION),
}

AGAIN: dict[str, Hook] = UNDO | {
    "after the intent": before(points.REPEAT_CALL),
    "after the write": after(points.REPEAT_CALL),
    "before its outcome": before(points.WRITE_OUTCOME, lambda journal, transaction, call, how: how.status == "done"),
}

POINTS = {"run": WRITE, "rollback": UNDO, "switch": AGAIN}

VERBS: dict[str, Callable[[Any], Any]] = {
    "run": lambda agent: agent.invoke(said("+food=soup")),
    "rollback": lambda agent: agent.rollback("before"),
    "switch": lambda agent: agent.switch("main-2", "world"),
}


def main(url: str, memory: str, verb: str, point: str) -> None:
    """Run one operation, and kill this process at a point of it."""
    with sqlite_store(Path(memory)) as store:
        agent = agentgit.open(url).wrap(noting(store), "a")
        with POINTS[verb][point]():
            VERBS[verb](agent)
    die()


def write_often(url: str, memory: str, session: str, count: int) -> None:
    """Write one item several times, in turns of an own session."""
    with sqlite_store(Path(memory)) as store:
        agent = agentgit.open(url).wrap(noting(store), session)
        for number in range(count):
            agent.invoke(said(f"+food={session}-{number}"))
