"""A branch detects that another branch has changed its world, and a switch can restore it."""

import asyncio

import backend
import faults
import points
import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool
from scripted import obedient, tool_node_graph

import agentgit
from agentgit import Conflict, InvalidInput, NotFound, RollbackBlocked, RollbackIncomplete, WorldDiverged, reversible
from agentgit.effects import idempotency_key


def wrapped(repo, world):
    """Wrap a graph whose model obeys, and order a chair."""
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    return agent


@pytest.fixture
def left(repo, world):
    """Return agents on a branch whose table was reversed by a rollback, and on the branch that the rollback made."""
    agent = wrapped(repo, world)
    before = agent.checkpoint("before")
    agent.run("add table")
    return agent, agent.rollback(before)


def items(steps):
    """Return the item of each call in a plan or a report."""
    return [one.invocation.args["item"] for one in steps]


def test_a_branch_with_reversed_effects_raises_before_it_runs(left, world):
    agent, _ = left
    said = len(world.log)
    with pytest.raises(WorldDiverged, match="sync='world'") as caught:
        agent.run("and now?")
    assert items(caught.value.plan.redos) == ["table"]
    assert (len(world.log), len(agent.history()), agent.branch.status) == (said, 8, "open")


def test_switch_with_sync_world_restores_the_world_of_the_branch(left, world):
    """It adds no call to the track, and later calls continue its positions."""
    agent, retry = left
    retry.run("add sofa")
    assert world.items == ["chair", "sofa"]
    track = [(c.position, c.tool_name, c.args) for c in agent.tool_track()]
    plan = agent.plan_switch("main")
    assert [(s.action, s.invocation.args["item"]) for s in plan.steps] == [("reverse", "sofa"), ("redo", "table")]
    agent = agent.switch("main", sync="world")
    assert world.items == ["chair", "table"]
    assert agent.branch.is_current
    assert items(agent.report.redone) == ["table"]
    assert [(c.position, c.tool_name, c.args) for c in agent.tool_track()] == track
    agent.run("add lamp")
    assert world.items == ["chair", "table", "lamp"]
    assert [(c.position, c.args["item"]) for c in agent.tool_track()] == [(0, "chair"), (1, "table"), (2, "lamp")]
    with pytest.raises(WorldDiverged):
        retry.run("and here?")


def test_redo_reverts_a_rollback(left, world):
    _, retry = left
    back = retry.redo()
    assert (back.branch.name, back.branch.is_current) == ("main", True)
    assert world.items == ["chair", "table"]
    assert back.report.drifted == []
    back.run("add sofa")
    assert world.items == ["chair", "table", "sofa"]
    with pytest.raises(NotFound, match="nothing to redo"):
        back.redo()


def test_a_forward_rollback_lists_or_redoes_reversed_calls(left, world):
    agent, retry = left
    later = agent.head
    assert "gone  add(item='table')  reversible  it is not in the world" in str(retry.plan_rollback(later))
    forward = retry.rollback(later)
    assert items(forward.report.gone) == ["table"]
    assert world.items == ["chair"]
    redone = retry.rollback(later, replay="redo")
    assert world.items == ["chair", "table"]
    assert items(redone.report.redone) == ["table"]
    assert redone.head.metadata["state_hash"] == later.metadata["state_hash"]
    assert redone.redo().branch.name == retry.branch.name
    assert world.items == ["chair"]


def test_sync_note_informs_the_model_of_the_change(left, world):
    """One message before the next input; a fork from where it is pending gets it, one from an earlier point not."""
    agent, _ = left
    agent = agent.switch("main", sync="note")
    assert world.items == ["chair"]
    earlier, fork = agent.fork("main#1"), agent.fork()
    agent.run("and now?")
    note, said = [m for m in agent.messages() if isinstance(m, HumanMessage)][-2:]
    assert note.name == "agentgit"
    assert "add(item='table') was reversed" in note.content
    assert said.content == "and now?"
    for branch, notes in ((agent, 1), (fork, 1), (earlier, 0)):
        branch.run("again")
        assert len(heard(branch)) == notes


def heard(agent):
    return [m.content for m in agent.messages() if m.name == "agentgit"]


def test_an_outdated_note_is_not_sent(left, world):
    """A pending note is dropped when sync='world' restores the effect or sync='ignore' accepts the change."""
    agent, retry = left
    agent = agent.switch("main", sync="note")
    agent = agent.switch("main", sync="world")
    assert world.items == ["chair", "table"]
    agent.run("look")
    retry = retry.switch("main-2", sync="world")
    agent = agent.switch("main", sync="note")
    agent = agent.switch("main", sync="ignore")
    agent.run("look")
    assert heard(agent) == []


@pytest.mark.parametrize("back", ["redo", "switch", "rollback"])
def test_the_model_is_informed_once_of_the_result_of_a_redone_call(left, world, back):
    agent, retry = left
    world.items.append("a lamp from elsewhere")
    if back == "redo":
        again = retry.redo()
    elif back == "switch":
        again = agent.switch("main", sync="world")
        agent = agent.switch("main", sync="world")  # changes nothing, and keeps the pending note
    else:
        again = retry.rollback("main#5", replay="redo", on_drift="continue")
    again.run("look")
    (said,) = heard(again)
    assert "add(item='table') ran again: it returned {'item': 'table', 'number': 3}" in said
    again.run("look")
    assert len(heard(again)) == 1


@pytest.mark.long
def test_read_only_and_undeclared_tools_cause_no_divergence(repo, world):
    agent = wrapped(repo, world)
    agent.run("look; note one")
    other = agent.fork()
    for _ in range(2):
        agent.run("look; note on")
        other.run("look; note on")
    assert len(world.notes) == 5
    assert len(agent.plan_switch("main").kept) == 2  # listed and kept


def test_an_effect_that_was_reversed_again_causes_no_divergence(left, repo, world):
    """Whether another branch made it, or made it again, since a branch last ran."""
    agent, retry = left
    lives_without = retry.rollback("main")
    agent = agent.switch("main", sync="world")
    assert world.items == ["chair", "table"]
    agent.rollback("before")
    assert world.items == ["chair"]
    lives_without.run("now?")
    fork = lives_without.fork()
    start = fork.head
    fork.run("add lamp")
    fork.rollback(start)
    assert world.items == ["chair"]
    lives_without.run("add sofa")
    assert world.items == ["chair", "sofa"]


def test_a_fork_starts_in_the_world_as_it_is(left, world):
    """A switch with sync='world' restores the world of its path."""
    agent, _ = left
    agent = agent.switch("main", sync="world")
    fork = agent.fork("before")
    fork.run("add sofa")
    assert world.items == ["chair", "table", "sofa"]
    fork.switch(fork.branch, sync="world")
    assert world.items == ["chair", "sofa"]


def test_a_world_change_during_a_turn_stops_the_next_effect(repo, world):
    agent = wrapped(repo, world)
    other = agent.fork()
    steps = agent.stream({"messages": [("user", "add table")]}, stream_mode="values")
    next(steps)
    backend.record_call(repo, other.branch, item="lamp", batch=0)
    with pytest.raises(WorldDiverged):
        list(steps)
    assert world.items == ["chair"]
    assert "intended" not in {c.status for c in agent.tool_track()}


def test_a_rollback_without_conversation_reverses_only_the_tools(repo, world):
    agent = wrapped(repo, world)
    before = agent.checkpoint("before")
    agent.run("add table")
    same = agent.rollback(before, conversation=False)
    assert (same.branch_id, len(agent.history())) == (agent.branch_id, 8)
    assert world.items == ["chair"]
    assert [b.name for b in agent.session.branches()] == ["main"]
    assert items(agent.report.reversed) == ["table"]
    agent.run("add sofa")
    assert world.items == ["chair", "sofa"]


@pytest.mark.parametrize(
    "wrong",
    [{"tools": "keep"}, {"name": "x"}, {"replay": "execute"}, {"on_drift": "perhaps"}, {"replay": "again"}],
    ids=str,
)
def test_contradictory_rollback_arguments_are_refused(left, world, wrong):
    _, retry = left
    with pytest.raises(InvalidInput):
        retry.rollback("before", conversation=False, **wrong)
    with pytest.raises(InvalidInput, match="'world', 'note' or 'ignore'"):
        retry = retry.switch("main", sync="perhaps")
    assert world.items == ["chair"]


def test_replay_execute_stops_at_each_drift_until_it_is_resumed(repo, world):
    agent = wrapped(repo, world)
    agent.run("add table")
    world.items[:0] = ["their chair", "their table"]
    with pytest.raises(RollbackIncomplete, match="the record has") as caught:
        agent.rollback("HEAD", replay="execute")
    assert world.items == ["their chair", "their table", "chair"]
    left = [(item.invocation.args["item"], item.reason) for item in caught.value.report.remaining]
    assert left == [("table", "not tried, because an earlier one returned something different")]
    with pytest.raises(RollbackIncomplete, match="If that is acceptable, it can be resumed") as again:
        repo.resume(caught.value.operation)
    assert world.items == ["their chair", "their table", "chair", "table"], "the last one stops it as well"
    assert (again.value.report.status, again.value.report.remaining) == ("partial", [])
    assert repo.resume(caught.value.operation).status == "done"
    assert world.items == ["their chair", "their table", "chair", "table"]
    assert [item.invocation.result["number"] for item in agent.switch("main-2").report.drifted] == [3, 4]


def test_a_switch_that_fails_halfway_can_be_resumed(left, repo, world):
    agent, retry = left
    retry.run("add sofa")
    world.broken.add("sofa")
    with pytest.raises(RollbackIncomplete) as caught:
        agent = agent.switch("main", sync="world")
    assert world.items == ["chair", "sofa"]
    with pytest.raises(Conflict, match="resume"):
        agent.run("now?")
    world.broken.clear()
    assert repo.resume(caught.value.operation).status == "done"
    assert world.items == ["chair", "table"]
    agent.switch("main").run("add lamp")
    assert world.items == ["chair", "table", "lamp"]


def test_a_switch_past_an_irreversible_effect_needs_force(repo, world):
    """The effect is accepted from then on, by the branch and its later forks, not by its earlier ones."""
    agent = wrapped(repo, world)
    fork, other = agent.fork(), agent.fork()
    other.run("send hi")
    with pytest.raises(WorldDiverged):
        agent.run("now?")
    with pytest.raises(RollbackBlocked):
        agent.switch("main", sync="world")
    agent = agent.switch("main", sync="world", force=True)
    agent.run("now?")
    with pytest.raises(WorldDiverged):
        fork.run("now?")
    agent.fork().run("now?")


def test_a_kept_effect_stays_accepted_after_it_is_redone(repo, world):
    """An effect that a rollback kept is still accepted after other branches have reversed and redone it."""
    agent = wrapped(repo, world)
    before = agent.checkpoint("before")
    agent.run("add table")
    kept = agent.rollback(before, tools="keep")
    kept.run("add sofa")
    beside = agent.fork(before)
    beside = beside.switch(beside.branch.name, sync="world")
    assert world.items == ["chair"]
    agent = agent.switch("main", sync="world")
    assert world.items == ["chair", "table"]
    assert [step.invocation.args["item"] for step in kept.plan_switch(kept.branch.name).reversals] == []
    kept = kept.switch(kept.branch.name, sync="world")
    assert sorted(world.items) == ["chair", "sofa", "table"]


def test_a_fork_of_a_half_rolled_back_branch_reports_divergence(repo, world):
    agent = wrapped(repo, world)
    before = agent.checkpoint("before")
    agent.run("add table")
    agent.run("add sofa")
    other, head = agent.fork(), agent.head
    world.broken.add("table")
    with pytest.raises(RollbackIncomplete):
        agent.rollback(before, conversation=False)
    assert world.items == ["chair", "table"]
    with pytest.raises(WorldDiverged) as caught:
        other.fork(head.id).run("now?")
    assert [str(step.invocation) for step in caught.value.plan.redos] == ["add(item='sofa')"]


def test_a_fork_does_not_accept_what_an_unfinished_switch_will_keep(repo, world):
    """A forced switch that stopped halfway has reported no kept effect yet, so a fork made then is told of it."""
    agent = wrapped(repo, world)
    head, other = agent.head, agent.fork()
    other.run("send hi")
    other.run("add table")
    world.broken.add("table")
    with pytest.raises(RollbackIncomplete):
        other.switch("main", sync="world", force=True)
    switch = repo.session("s").operations()[0]
    with pytest.raises(WorldDiverged, match="send"):
        agent.fork(head.id).run("add sofa")
    world.broken.clear()
    repo.resume(switch)
    agent.fork(head.id).run("add sofa")
    assert world.items == ["chair", "sofa"]


def test_a_resumed_note_switch_does_not_cover_later_changes(repo, world):
    agent = wrapped(repo, world)
    fork = agent.fork()

    with faults.interrupted(points.WORK_ON_WORLD), pytest.raises(KeyboardInterrupt):
        fork = fork.switch(fork.branch.name, sync="note")
    agent.run("add table")
    (stopped,) = [one for one in repo.session("s").operations() if one.status != "done"]
    repo.resume(stopped)
    with pytest.raises(WorldDiverged):
        fork.run("now?")


def test_a_blocked_rollback_names_the_nearest_reachable_checkpoint(repo, world):
    """If a rollback is possible only to HEAD, none is named, whatever checkpoints are there."""
    agent = wrapped(repo, world)
    before = agent.checkpoint("before")
    agent.run("send hi")
    agent.checkpoint("here too")
    with pytest.raises(RollbackBlocked, match="Nothing was done") as caught:
        agent.rollback(before)
    assert caught.value.nearest is None
    assert "nearest" not in str(caught.value)
    agent.run("add table")
    agent.run("add sofa")
    with pytest.raises(RollbackBlocked, match="nearest checkpoint") as caught:
        agent.rollback(before)
    retry = agent.rollback(caught.value.nearest)
    assert world.items == ["chair"]
    assert [c.tool_name for c in retry.tool_track()] == ["add", "send"]


@pytest.mark.parametrize("replay", ["redo", "execute"])
def test_no_nearest_checkpoint_is_named_if_the_replay_is_blocked(repo, world, database, replay):
    agent = wrapped(repo, world)
    agent.run("add table")
    agent.rollback("main#1")
    with agentgit.open(database.url) as other, pytest.raises(RollbackBlocked, match="Nothing was done") as caught:
        other.session("s").rollback("main#2", branch="main", replay=replay)
    assert caught.value.nearest is None


@pytest.mark.long
def test_a_turn_whose_branch_was_recovered_stops(repo, world):
    """It neither calls tools nor saves; its earlier call stays recorded."""
    agent = wrapped(repo, world)
    steps = agent.stream({"messages": [("user", "add table")]}, stream_mode="updates")
    while "table" not in world.items:
        next(steps)
    with pytest.raises(Conflict, match="is running in a process on this machine"):
        repo.session("s").recover()
    repo.session("s").recover(force=True)
    with pytest.raises(Conflict):
        list(steps)
    assert world.items == ["chair", "table"]
    assert [c.status for c in agent.tool_track()] == ["done", "done"]
    assert repo.session("s").branch().status == "open"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_redone_tool_receives_the_thread_id_of_its_branch_and_a_new_key(repo, is_async):
    threads, keys = [], []

    def put(item: str, config: RunnableConfig) -> str:
        """Put an item."""
        threads.append(config["configurable"]["thread_id"])
        keys.append(idempotency_key())
        return item

    async def put_later(item: str, config: RunnableConfig) -> str:
        """Put an item, without blocking."""
        return put(item, config)

    made = StructuredTool.from_function(None if is_async else put, put_later if is_async else None, "add")
    agent = repo.wrap(tool_node_graph(obedient(), [made]), "s", effects={"add": reversible(lambda args, result: None)})
    asyncio.run(agent.arun("add chair"))
    agent.rollback("main#1")
    assert asyncio.run(agent.aplan_switch("main")).redos
    asyncio.run(agent.aswitch("main", sync="world"))
    assert threads == [agent.branch.langgraph_session_id] * 2
    assert len(set(keys)) == 2
