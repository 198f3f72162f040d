"""Prechecks run before any effect is reversed, and verify settles calls of unknown outcome."""

import backend
import pytest
from langchain_core.tools import tool
from scripted import call, obedient, scripted, tool_node_graph

from agentgit import RollbackBlocked, RollbackIncomplete, effect, reversible


def wrapped(repo, world, **how):
    effects = world.effects(add=reversible(world.remove, **how))
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=effects)
    agent.run("add chair")
    before = agent.checkpoint("before")
    agent.run("add table")
    return agent, before


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (False, "refused it"),
        ("it was shipped", "it was shipped"),
        ("It was shipped.", "It was shipped"),
        (ValueError("no shop"), "raised ValueError: no shop"),
    ],
    ids=str,
)
def test_a_refusing_precheck_blocks_before_any_undo_runs(repo, world, said, told):
    def check(call):
        if isinstance(said, Exception):
            raise said
        return said if call.args["item"] == "table" else True

    agent, before = wrapped(repo, world, precheck=check)
    assert told in str(agent.plan_rollback(before))
    with pytest.raises(RollbackBlocked, match=rf"{told}\. "):
        agent.rollback(before)
    assert world.undone == []
    assert [b.name for b in agent.session.branches()] == ["main"]
    forced = agent.rollback(before, force=True)
    assert world.items == ["chair", "table"]
    assert told in forced.report.kept[0].reason


def test_resume_prechecks_effects_made_since_the_rollback(repo, world):
    frozen = reversible(world.remove, precheck=lambda call: call.args["item"] != "lamp")
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(add=frozen))
    agent.run("add chair")
    other = agent.fork("main#1")
    world.broken.add("chair")
    with pytest.raises(RollbackIncomplete) as caught:
        agent.rollback("main#1")
    world.broken.clear()
    other.run("add lamp")
    with pytest.raises(RollbackBlocked, match="precheck refused it"):
        repo.resume(caught.value.operation)
    assert world.items == ["chair", "lamp"]
    assert repo.resume(caught.value.operation, force=True).status == "done"
    assert world.items == ["lamp"]


def test_a_precheck_may_read_the_repository(repo, world):
    """Prechecks run outside of any transaction, so they may read the same repository."""
    agent, before = wrapped(repo, world, precheck=lambda call: bool(repo.sessions()))
    agent.rollback(before)
    assert world.items == ["chair"]


def _unknown(repo, agent):
    """Turn the newest call into one of unknown outcome, as a recovery does after an interruption, and return it."""
    call = agent.tool_track()[-1]
    backend.change(repo, "tool_invocation", call.id, status="unknown", result=None, ended_at=None)
    return call


@pytest.mark.parametrize("there", [True, {"item": "table", "number": 2}, False, None], ids=str)
def test_verify_decides_whether_an_interrupted_call_happened(repo, world, there):
    agent, before = wrapped(repo, world, verify=lambda call: there)
    call = _unknown(repo, agent)
    if there is None:
        with pytest.raises(RollbackBlocked, match=r"repo\.resolve"):
            agent.rollback(before)
        return
    if there is False:
        world.items.remove("table")
    agent.rollback(before)
    assert world.items == ["chair"]
    now = next(c for c in agent.tool_track() if c.id == call.id)
    assert now.status == ("failed" if there is False else "reversed")
    assert [result for _, _, result in world.undone] == ([] if there is False else [None if there is True else there])


@pytest.mark.parametrize("still_there", [True, False])
def test_verify_decides_whether_an_interrupted_reversal_happened(repo, world, still_there):
    agent, before = wrapped(repo, world, verify=lambda call: call.args["item"] in world.items)
    world.broken.add("table")
    with pytest.raises(RollbackIncomplete) as caught:
        agent.rollback(before)
    world.broken.clear()
    call = agent.tool_track()[-1]
    backend.change(repo, "tool_invocation", call.id, status="reverse_unknown", result=None, ended_at=None)
    if not still_there:
        world.items.remove("table")
    assert repo.resume(caught.value.operation).status == "done"
    assert world.items == ["chair"]
    assert len(world.undone) == int(still_there)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_tool_that_verify_calls_during_a_turn_is_no_call_of_the_turn(repo, is_async):
    charged = []

    @tool
    def look_up(euros: int) -> bool:
        """Look up a charge."""
        return euros in charged

    @tool
    def charge(euros: int) -> str:
        """Charge a card."""
        charged.append(euros)
        raise ConnectionError("no answer")

    async def averify(invocation):
        return await look_up.ainvoke(invocation.args)

    verify = averify if is_async else lambda invocation: look_up.invoke(invocation.args)
    graph = tool_node_graph(scripted(call("charge", euros=5), "ok"), [charge, look_up], handle_tool_errors=True)
    agent = repo.wrap(graph, "s", effects={"charge": effect("irreversible", verify=verify), "look_up": "read_only"})
    agent.run("five")
    assert [(one.tool_name, one.status) for one in agent.tool_track()] == [("charge", "done")]
    assert charged == [5]
