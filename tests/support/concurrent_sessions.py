"""Many processes that run turns in sessions and branches; some share a branch, and some are killed.

Example: `main("sqlite:///a.db", 12, kill=True)` starts eight processes: three on one branch, two on branches of their
own in the same session, three in sessions of their own. Each runs 12 turns; with `kill`, one of each kind is killed.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable

import faults
import points
from echo_graph import echoing, said, texts, whole

import agentgit
from agentgit import Conflict, Repository
from agentgit.errors import TurnAbandoned

SHARED = "shared"
ON_MAIN, ON_BRANCHES, ALONE = ("m0", "m1", "m2"), ("b0", "b1"), ("o0", "o1", "o2")
EVERYBODY = (*ON_MAIN, *ON_BRANCHES, *ALONE)
DYING = ("m2", "b1", "o2")


def place(who: str) -> tuple[str, str]:
    """Return the session and the branch of a process."""
    if who in ALONE:
        return who, "main"
    return SHARED, "main" if who in ON_MAIN else who


def talk(url: str, who: str, turns: int, dies_at: int | None) -> None:
    """Run turns, and retry a turn on the new state of the branch after a Conflict."""
    session, branch = place(who)
    graph = echoing()
    warnings.simplefilter("ignore", TurnAbandoned)  # a survivor goes on with a new message after a killed turn
    with agentgit.open(url) as repo:
        agent = repo.wrap(graph, session, branch=branch)
        for turn in range(turns):
            if turn == dies_at:
                die_in_a_call()
            while True:
                try:
                    agent.invoke(said(who, turn))
                    break
                except Conflict:
                    time.sleep(random.uniform(0, 0.02))  # noqa: S311  # only spreads the retries
                    agent = repo.wrap(graph, session, branch=branch)


def die_in_a_call() -> None:
    """Kill this process when its next call has ended and is not yet recorded."""
    setattr(*points.RECORD_CALL.place, faults.die)  # this process needs no cleanup


def begin(url: str) -> None:
    """Create the shared session and its branches."""
    with agentgit.open(url) as repo:
        agent = repo.wrap(echoing(), SHARED)
        agent.invoke(said("root", 0))
        for name in ON_BRANCHES:
            agent.fork(name=name)


def main(url: str, turns: int, kill: bool) -> int:
    """Start all processes at once, and return how many ended in an unexpected way."""
    begin(url)
    children = {}
    for who in EVERYBODY:
        child = os.fork()
        if child == 0:
            _be(lambda who=who: talk(url, who, turns, turns // 2 if kill and who in DYING else None))
        children[child] = who
    ended = {children[child]: os.waitpid(child, 0)[1] for child in list(children)}
    expected = {who: signal.SIGKILL if kill and who in DYING else 0 for who in EVERYBODY}
    return sum(ended[who] != expected[who] for who in EVERYBODY)


def _be(work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException:  # noqa: BLE001  # the parent must see any failure
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def check(repo: Repository, turns: int, kill: bool) -> None:
    """Check that no turn is lost, no turn is recorded twice, and the database is sound."""
    for who in ON_BRANCHES + ALONE:
        session, branch = place(who)
        begun = whole("root", 1) if session == SHARED else []
        found = texts(repo.wrap(echoing(), session, branch=branch).get_state().values)
        if kill and who in DYING:
            last = [*begun, *whole(who, turns // 2), f"{who} {turns // 2}", ""]
            assert found == last[: len(found)], who  # its last input may be lost
            assert len(found) >= len(last) - 2, who
        else:
            assert found == [*begun, *whole(who, turns)], who
    for place_of in dict.fromkeys(map(place, EVERYBODY)):
        _check_branch(repo, *place_of, turns, kill)
    checked = repo.maintenance.fsck(3)
    assert checked.is_sound, str(checked)


def _check_branch(repo: Repository, session: str, branch: str, turns: int, kill: bool) -> None:
    """Check that each input is once in the conversation, the track and the checkpoints, in order for each process."""
    here = [who for who in EVERYBODY if place(who) == (session, branch)]
    killed = [f"{who} {turns // 2}" for who in here if kill and who in DYING]
    expected = {who: [f"{who} {n}" for n in range(turns // 2 if kill and who in DYING else turns)] for who in here}
    root = ["root 0"] if session == SHARED else []
    history = repo.wrap(echoing(), session, branch=branch).history()
    users = [message for message in history if message["role"] == "user"]
    inputs = [message["content"] for message in users]
    assert all(inputs.count(text) <= 1 for text in killed)
    whole_turns = [text for text in inputs if text not in killed]
    assert Counter(whole_turns) == Counter([*root, *(text for said_by_it in expected.values() for text in said_by_it)])
    for who, said_by_it in expected.items():
        assert [text for text in whole_turns if text.startswith(f"{who} ")] == said_by_it
    track = repo.session(session).tool_track(branch=branch)
    assert [call.args["text"] for call in track if call.status == "done"] == whole_turns
    assert Counter(call.args["text"] for call in track if call.status != "done") == Counter(killed)
    placed = Counter(
        filter(None, (point.metadata["restore_point"] for point in repo.session(session).checkpoints(branch=branch)))
    )
    asked = Counter(message["id"] for message in users)
    assert asked <= placed
    assert (placed - asked).total() <= len(killed)
