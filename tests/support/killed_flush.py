"""A turn with a fault while it writes what waits: its process is killed, its connections break, or its disk is full.

test_flushes_killed.py starts the process. A flush is one write of the rows that wait in a turn. Its moments have
numbers from 1: before the flush, before each of its statements, COMMIT among them, and after the commit.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import backend
import faults
import points
import sent_statements
import shop
from chains import chain
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState
from scripted import quick_tool

import agentgit
from agentgit import Unavailable

FIRST, SECOND = ({"messages": [("user", text)]} for text in ("first", "second"))
"""The inputs of the turn before the one that is killed, and of that one."""

BACKGROUND, STEP, READER, INTENT, OUTCOME, END = "background", "step", "reader", "intent", "outcome", "end"
"""What a flush is part of: a thread of its own, a step with `sync`, a reader in the turn, an intent, an outcome, or the
end of the turn."""

CHAT, ACTING = "chat", "acting"
"""The turns: one with answers only, and one with a read-only call, a reader and two calls that act."""

FLUSHES = {
    (CHAT, "sync"): (STEP, END),
    (CHAT, "async"): (BACKGROUND, END),
    (CHAT, "exit"): (END,),
    (ACTING, "sync"): (BACKGROUND, STEP, READER, INTENT, OUTCOME, END),
    (ACTING, "async"): (BACKGROUND, READER, INTENT, OUTCOME, END),
    (ACTING, "exit"): (BACKGROUND, STEP, READER, INTENT, OUTCOME, END),  # its effects make it save each step
}
"""The flushes of each turn, by LangGraph's durability."""


COMMIT, AFTER = "commit", "after"
"""The last two moments of a flush, whatever their numbers."""

KILL, DISCONNECT, FILL_DISK, FILL_DISK_BRIEFLY = "kill", "disconnect", "fill", "fill briefly"
"""The faults. The server ends the connections; the disk stays full until the process has ended, or the flush."""


class Plan(NamedTuple):
    """The turn to run, and the moment of its fault.

    Args:
        turn: The kind of turn.
        durability: LangGraph's durability.
        flush: The kind of flush; its first one is meant.
        moment: The number of the moment in it, or the name of one of the last two.
        session: The session.
        fault: The fault.
        disk: The folder on the disk that is filled.
    """

    turn: str
    durability: str
    flush: str
    moment: int | str
    session: str
    fault: str = KILL
    disk: str = ""


def items(session: str) -> list[str]:
    """Return what the second turn of a session orders, and what it pays."""
    return [f"{session} ordered", f"{session} paid"]


def wrapped(repo: Any, turn: str, session: str, pause: Callable[[], None] = lambda: None) -> Any:
    """Wrap the graph of a turn around the shop of this process."""

    def look(item: str) -> str:
        """Look at an item."""
        return f"{item} is there"

    tools = {tool.name: tool for tool in (*shop.here().tools(), quick_tool(look))}

    def greet(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"hello {LONG_TEXT}")]}

    def looking(state: MessagesState) -> dict[str, Any]:
        answer = "" if turn == CHAT or _is_first(state) else tools["look"].invoke({"item": session})
        pause()
        if turn == ACTING:
            agent.get_state()
        return {"messages": [AIMessage(f"looked {answer}")]}

    def acting(name: str, item: str) -> Callable[[MessagesState], dict[str, Any]]:
        def act(state: MessagesState) -> dict[str, Any]:
            if turn == ACTING and not _is_first(state):
                tools[name].invoke({"item": item})
            return {"messages": [AIMessage(f"{name} {LONG_TEXT}")]}

        return act

    ordered, paid = items(session)
    effects = {**shop.imported(verify=False), "look": "read_only"} if turn == ACTING else None
    graph = chain(greet, looking, acting("order", ordered), acting("pay", paid))
    agent = repo.wrap(graph, session, effects=effects, check_effects=False)
    return agent


LONG_TEXT = os.urandom(20_000).hex()
"""A text that needs new pages in a database."""

ANSWERS = ("hello", "looked", "order", "pay")
"""The first words of the answers of a turn."""


def _is_first(state: MessagesState) -> bool:
    return not any(message.content == "second" for message in state["messages"])


def _text(statement: Any) -> str:
    return statement if isinstance(statement, str) else str(statement.as_string())


class _Watch:
    """Follows the flushes of this process, and makes the fault at a moment of one.

    Args:
        plan: The plan.
        fail: The function that makes the fault; it receives the ids of the graph checkpoints that must be stored.
    """

    def __init__(self, plan: Plan, fail: Callable[[list[str]], None]) -> None:
        self.plan, self.fail = plan, fail
        self.passed = 0
        """The number of the moments of the flush so far."""
        self._first = threading.Lock()
        """Acquired by the flush of the plan, which is the first one of its kind."""
        self.is_paused, self.has_ended = threading.Event(), threading.Event()
        self.saved: list[str] = []
        """The ids of the graph checkpoints that the graph has saved."""
        self.flushed: list[str] = []
        """The ids of those that were saved before a flush that has ended."""
        self._here = threading.local()
        """`within` is the point that this thread is in; `counts` is True in the flush of the plan."""

    def pause(self) -> None:
        """Wait for the background, if its flush is the one of the plan."""
        self.is_paused.set()
        if self.plan.flush == BACKGROUND:
            assert self.has_ended.wait(60)

    def count(self, statement: Any) -> None:
        """Pass a moment, if this thread is in the flush of the plan."""
        if getattr(self._here, "counts", False):
            self.passed += 1
            if self.plan.moment in (self.passed, _text(statement).lower()):
                self._here.counts = False  # what the fault reads is no moment
                self.fail(self.flushed)

    def _kind(self, *, is_write: bool, closing: bool) -> str:
        within = getattr(self._here, "within", None)
        if threading.current_thread().name == "agentgit-flush":
            return BACKGROUND
        if is_write:
            return END if closing else INTENT
        return {points.RECORD_CALL: OUTCOME, points.SAVE_STATE: STEP}.get(within, READER)

    def flush(self, plain: Callable[..., Any], unit: Any, *work: Any, closing: bool = False, **how: Any) -> Any:
        """Run a flush."""
        kind = self._kind(is_write=bool(work), closing=closing)
        # A second thread of the background may come while the first one flushes.
        is_planned = kind == self.plan.flush and (bool(work) or unit.is_waiting) and self._first.acquire(blocking=False)
        how |= {"closing": closing} if work else {}
        saved, self._here.counts = list(self.saved), is_planned
        self.count("before")
        try:
            result = plain(unit, *work, **how)
            self.flushed = [*self.flushed, *saved]
            self.count(AFTER)
        finally:
            self._here.counts = False
            if is_planned:
                self.has_ended.set()
                if self.plan.fault == FILL_DISK_BRIEFLY:
                    faults.empty_disk(self.plan.disk)
        return result

    def in_background(self, plain: Callable[..., Any], unit: Any) -> None:
        """Flush in the background only where the plan says so, so that something waits for each other flush."""
        if self.plan.flush == BACKGROUND:
            assert self.is_paused.wait(60)
            plain(unit)

    def save(self, plain: Callable[..., Any], saver: Any, config: Any, checkpoint: Any, *how: Any) -> Any:
        """Save a graph checkpoint."""
        with self._within(points.SAVE_STATE):
            result = plain(saver, config, checkpoint, *how)
        self.saved.append(checkpoint["id"])
        return result

    def record(self, plain: Callable[..., Any], *how: Any, **more: Any) -> Any:
        """Record the outcome of a call."""
        with self._within(points.RECORD_CALL):
            return plain(*how, **more)

    @contextmanager
    def _within(self, point: points.Point) -> Iterator[None]:
        self._here.within = point
        try:
            yield
        finally:
            self._here.within = None


def main(url: str, path: str, plan: Plan, told: str) -> None:
    """Run the second turn of a session, with a fault at a moment of one of its flushes."""
    os.environ["SHOP"] = path

    before = backend.connections(url)

    def fail(flushed: list[str]) -> None:
        Path(told).write_text(json.dumps({"rows": backend.rows_of_turns(url), "flushed": flushed}), "utf-8")
        if plan.fault == KILL:
            faults.die()
        elif plan.fault == DISCONNECT:
            backend.disconnect(url, before)
        else:
            faults.fill_disk(plan.disk)

    watch = _Watch(plan, fail)
    sent_statements.before_each(watch.count)
    with agentgit.open(url) as repo, ExitStack() as stack:
        agent = wrapped(repo, plan.turn, plan.session, watch.pause)
        for point, do in {
            points.FLUSH: watch.flush,
            points.FLUSH_WITH_WORK: watch.flush,
            points.FLUSH_IN_BACKGROUND: watch.in_background,
            points.SAVE_STATE: watch.save,
            points.RECORD_CALL: watch.record,
        }.items():
            stack.enter_context(faults.around(point, do))
        with suppress(Unavailable):
            agent.invoke(SECOND, durability=plan.durability)
