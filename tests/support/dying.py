"""What a process does that is killed at a named point; test_killed.py starts it.

The points are hooked in from here; the library knows nothing of them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import shop
from shop import Shop, wish

import agentgit
from agentgit import Repository
from agentgit.agents.turn.call_interceptor import CallInterceptor
from agentgit.agents.turn.recorder import Recorder
from agentgit.rollback.engine import RollbackEngine
from agentgit.rollback.executor import Executor
from agentgit.rollback.finish import Finisher
from agentgit.store.records.journal import Journal
from agentgit.store.records.operations import OperationStore

Hook = Callable[[], None]


def die(*_: Any, **__: Any) -> None:
    """Be killed: nothing is cleaned up, nothing more is written."""
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: type, name: str, when: Callable[..., bool] = lambda *a, **k: True) -> Hook:
    """Die when a method is about to run."""

    def hook() -> None:
        plain = getattr(owner, name)

        def hooked(*args: Any, **kwargs: Any) -> Any:
            if when(*args, **kwargs):
                die()
            return plain(*args, **kwargs)

        setattr(owner, name, hooked)

    return hook


def after(owner: type, name: str) -> Hook:
    """Die when a method has run."""

    def hook() -> None:
        plain = getattr(owner, name)

        def hooked(*args: Any, **kwargs: Any) -> Any:
            plain(*args, **kwargs)
            die()

        setattr(owner, name, hooked)

    return hook


def _to(status: str) -> Callable[..., bool]:
    return lambda journal, connection, call, to, **how: to == status


CALLS: dict[str, Hook] = {
    "before the intent": before(Journal, "intend"),
    "in the tool": before(Shop, "act"),
    "after the tool": after(Shop, "act"),
    "before the record": before(Journal, "end", lambda journal, connection, call, how: how.status == "done"),
}
"""Points of a call, whether it is made for the first time or again."""

TURN: dict[str, Hook] = CALLS | {
    "after the intent": after(CallInterceptor, "authorize"),
    "after the record": after(Recorder, "_end"),
}

REVERSAL: dict[str, Hook] = {
    "before the operation": before(OperationStore, "begin"),
    "before the reversal": before(Journal, "move", _to("reversing")),
    "after its intent": before(Executor, "_undo"),
    "in the undo": before(Shop, "cancel"),
    "after the undo": after(Shop, "cancel"),
    "before its record": before(Journal, "move", _to("reversed")),
    "before the publication": before(Finisher, "end"),
    "after the publication": after(RollbackEngine, "_proceed"),
}

AGAIN: dict[str, Hook] = CALLS | {"after the intent": before(Executor, "_run")}

FRESH = {point: AGAIN[point] for point in ("in the tool", "before the record")}
FRESH |= {point: REVERSAL[point] for point in ("before the operation", "before the publication")}
"""In a fresh world nothing is reversed; the points of a call that ran again are those of `execute`."""

VERBS: dict[str, Callable[[Any], Any]] = {
    "run": lambda agent: agent.invoke(wish([("order", "d"), ("pay", "e")])),
    "rollback": lambda agent: agent.rollback("start", request_id="r"),
    "switch": lambda agent: agent.switch("main", "world"),
    "execute": lambda agent: agent.rollback("end", replay="execute", on_drift="continue", request_id="r"),
    "fresh": lambda agent: begun_afresh(
        Repository(agent.session.context), verify=agent._branch.settings.effects.tools["order"].verify is not None
    ),
}

POINTS = {"run": TURN, "rollback": REVERSAL, "switch": REVERSAL | AGAIN, "execute": REVERSAL | AGAIN, "fresh": FRESH}


def wrapped(repo: Any, *, verify: bool) -> Any:
    """Wrap the graph of the shop of this process, with functions that any process can import."""
    return repo.wrap(shop.here().graph(), "s", effects=shop.imported(verify=verify))


def begun_afresh(repo: Any, *, verify: bool) -> Any:
    """Begin another session in the shop of this process, and make the calls of the first one there."""
    return repo.wrap(
        shop.here().graph(), "fresh", effects=shop.imported(verify=verify), template="s@end", replay="execute"
    )


def main(url: str, path: str, verb: str, point: str, verify: bool) -> None:
    """Do one thing, and die on the way.

    Args:
        url: of the database.
        path: of the shop.
        verb: what to do.
        point: where to die.
        verify: True if the tools can look what became of a call.
    """
    os.environ["SHOP"] = path
    agent = wrapped(agentgit.open(url), verify=verify)
    POINTS[verb][point]()
    VERBS[verb](agent)
