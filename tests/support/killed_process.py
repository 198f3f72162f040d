"""The work of a process that is killed at a named point; test_killed.py starts the process.

The points are those of `points` and of the shop; the library does not refer to them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import faults
import points
import shop
from faults import die
from points import Point
from shop import Shop, wish

import agentgit
from agentgit import Repository

Hook = Callable[[], AbstractContextManager[None]]


class ShopPoint(NamedTuple):
    """A place in the shop."""

    owner: type
    name: str


ACT, CANCEL = ShopPoint(Shop, "act"), ShopPoint(Shop, "cancel")


def before(point: Point | ShopPoint, when: Callable[..., bool] = lambda *a, **k: True) -> Hook:
    """Return a hook that kills this process before a method runs."""

    def do(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            die()
        return plain(*args, **kwargs)

    return lambda: faults.around(point, do)


def after(point: Point | ShopPoint) -> Hook:
    """Return a hook that kills this process after a method has run."""
    return lambda: faults.after(point, die)


def to_status(status: str) -> Callable[..., bool]:
    """Return a condition: a call of the journal gets this status."""
    return lambda journal, transaction, call, to, **how: to == status


CALLS: dict[str, Hook] = {
    "before the intent": before(points.WRITE_INTENT),
    "in the tool": before(ACT),
    "after the tool": after(ACT),
    "before the record": before(points.WRITE_OUTCOME, lambda journal, transaction, call, how: how.status == "done"),
}
"""Points of a first or repeated call."""

TURN: dict[str, Hook] = CALLS | {
    "after the intent": after(points.AUTHORIZE_CALL),
    "after the record": after(points.RECORD_CALL),
}

REVERSAL: dict[str, Hook] = {
    "before the operation": before(points.BEGIN_OPERATION),
    "before the reversal": before(points.MOVE_CALL, to_status("reversing")),
    "after its intent": before(points.UNDO_CALL),
    "in the undo": before(CANCEL),
    "after the undo": after(CANCEL),
    "before its record": before(points.MOVE_CALL, to_status("reversed")),
    "before the publication": before(points.PUBLISH_OPERATION),
    "after the publication": after(points.FINISH_OPERATION),
}

AGAIN: dict[str, Hook] = CALLS | {"after the intent": before(points.REPEAT_CALL)}

FRESH = {point: AGAIN[point] for point in ("in the tool", "before the record")}
FRESH |= {point: REVERSAL[point] for point in ("before the operation", "before the publication")}
"""Points of a run in a fresh world, which reverses nothing; its repeated calls have the points of `execute`."""

VERBS: dict[str, Callable[[Repository, Any, bool], Any]] = {
    "run": lambda repo, agent, verify: agent.invoke(wish([("order", "d"), ("pay", "e")])),
    "rollback": lambda repo, agent, verify: agent.rollback("start", request_id="r"),
    "switch": lambda repo, agent, verify: agent.switch("main", "world"),
    "execute": lambda repo, agent, verify: agent.rollback("end", replay="execute", on_drift="continue", request_id="r"),
    "fresh": lambda repo, agent, verify: begun_afresh(repo, verify=verify),
    "fork": lambda repo, agent, verify: forked(repo, verify=verify),
}

POINTS = {"run": TURN, "rollback": REVERSAL, "switch": REVERSAL | AGAIN, "execute": REVERSAL | AGAIN, "fresh": FRESH}
POINTS["fork"] = REVERSAL | TURN


def wrapped(repo: Any, *, verify: bool) -> Any:
    """Wrap the graph of the shop of this process, with effect functions that any process can import."""
    return repo.wrap(shop.here().graph(), "s", effects=shop.imported(verify=verify))


def forked(repo: Any, *, verify: bool) -> Any:
    """Order again through a served graph, at the checkpoint after the first turn, as a host does."""
    app = repo.graph(shop.here().graph(), effects=shop.imported(verify=verify), confirm="never")
    thread = {"configurable": {"thread_id": "s"}}
    first = [state.config for state in app.get_state_history(thread) if not state.next][-1]
    return app.invoke(wish([("order", "d")]), first)


def begun_afresh(repo: Any, *, verify: bool) -> Any:
    """Begin another session in the shop of this process, and repeat the calls of the first session in it."""
    return repo.wrap(
        shop.here().graph(), "fresh", effects=shop.imported(verify=verify), template="s@end", replay="execute"
    )


def main(url: str, path: str, verb: str, point: str, verify: bool) -> None:
    """Run one operation, and kill this process at a point of it."""
    os.environ["SHOP"] = path
    repo = agentgit.open(url)
    agent = wrapped(repo, verify=verify)
    with POINTS[verb][point]():
        VERBS[verb](repo, agent, verify)
