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


def wrapped(repo, world, **effects):
    return repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(**effects))


@pytest.fixture
def left(repo, world):
    """Return agents on a branch whose table was reversed by a rollback, and on the branch that the rollback made."""
    agent = wrapped(repo, world)
    agent.run("add chair")
    before = agent.checkpoint("before")
    agent.run("add table")
    return agent, agent.rollback(before)


def test_a_branch_with_reversed_effects_raises_before_it_runs(left, world):
    """A branch whose effects were reversed raises WorldDiverged before it runs, with a plan to redo them."""
    agent, _ = left
    said = len(world.log)
    with pytest.raises(WorldDiverged, match="sync='world'") as caught:
        agent.run("and now?")
    assert [str(step.invocation) for step in caught.value.plan.redos] == ["add(item='table')"]
    assert len(world.log) == said
    assert len(agent.history()) == 8
    assert agent.branch.status == "open"


def test_switch_with_sync_world_restores_the_world_of_the_branch(left, world):
    """Switch with sync='world' reverses the other branch's effects and runs this branch's reversed calls again."""
    agent, retry = left
    retry.run("add sofa")
    assert world.items == ["chair", "sofa"]
    plan = agent.plan_switch("main")
    assert [(s.action, s.invocation.args["item"]) for s in plan.steps] == [("reverse", "sofa"), ("redo", "table")]
    agent = agent.switch("main", sync="world")
    assert world.items == ["chair", "table"]
    assert agent.branch.is_current
    assert [item.invocation.args["item"] for item in agent.report.redone] == ["table"]
    agent.run("add lamp")
    assert world.items == ["chair", "table", "lamp"]
    with pytest.raises(WorldDiverged):
        retry.run("and here?")


def test_a_redone_call_is_not_added_to_the_track(left, world):
    """A redo adds no call to the track, and later calls continue its positions."""
    agent, _ = left
    track = [(c.position, c.tool_name, c.args) for c in agent.tool_track()]
    agent = agent.switch("main", sync="world")
    assert [(c.position, c.tool_name, c.args) for c in agent.tool_track()] == track
    agent.run("add sofa")
    assert [c.args["item"] for c in agent.tool_track()] == ["chair", "table", "sofa"]
    assert [c.position for c in agent.tool_track()] == [0, 1, 2]


def test_a_redone_call_can_be_reversed_again(left, world):
    """Repeated switches back and forth leave each effect in the world at most once."""
    agent, retry = left
    for _ in range(3):
        agent = agent.switch("main", sync="world")
        assert world.items == ["chair", "table"]
        agent = agent.switch("main-2", sync="world")
        assert world.items == ["chair"]
    again = retry.rollback("before")
    assert world.items == ["chair"]
    assert not again.report.reversed


def test_redo_reverts_a_rollback(left, world):
    """Redo after a rollback restores the world and the branch, and a second redo finds nothing to do."""
    _, retry = left
    back = retry.redo()
    assert back.branch.name == "main"
    assert back.branch.is_current
    assert world.items == ["chair", "table"]
    assert back.report.drifted == []
    back.run("add sofa")
    assert world.items == ["chair", "table", "sofa"]
    with pytest.raises(NotFound, match="nothing to redo"):
        back.redo()


def test_a_forward_rollback_lists_or_redoes_reversed_calls(left, world):
    """A rollback to a later point lists the calls reversed since then; with replay='redo' it runs them again."""
    agent, retry = left
    later = agent.head
    forward = retry.rollback(later)
    assert [item.invocation.args["item"] for item in forward.report.gone] == ["table"]
    assert world.items == ["chair"]
    redone = forward.rollback(later, replay="redo")
    assert world.items == ["chair", "table"]
    assert [item.invocation.args["item"] for item in redone.report.redone] == ["table"]
    assert redone.head.metadata["state_hash"] == later.metadata["state_hash"]


def test_sync_note_informs_the_model_of_the_change(left, world):
    """With sync='note' the world stays, and one message before the next input says what changed."""
    agent, _ = left
    agent = agent.switch("main", sync="note")
    assert world.items == ["chair"]
    agent.run("and now?")
    note, said = [m for m in agent.messages() if isinstance(m, HumanMessage)][-2:]
    assert note.name == "agentgit"
    assert "add(item='table') was reversed" in note.content
    assert said.content == "and now?"
    agent.run("again")
    assert sum(m.name == "agentgit" for m in agent.messages()) == 1


def heard(agent):
    """Return the notes from agentgit in an agent's conversation."""
    return [m.content for m in agent.messages() if m.name == "agentgit"]


def test_a_fork_inherits_a_pending_note(left):
    """A fork from where a note is pending passes it to the model; a fork from an earlier point does not."""
    agent, _ = left
    agent = agent.switch("main", sync="note")
    earlier, fork = agent.fork("main#1"), agent.fork()
    for branch, is_told in ((fork, True), (earlier, False), (agent, True)):
        branch.run("and now?")
        assert bool(heard(branch)) is is_told


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
    """If a redone call returned another result, one message informs the model of it."""
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


def test_sync_ignore_is_recorded_as_a_switch(left, repo, world):
    """With sync='ignore' the branch continues in the current world, and the switch is recorded."""
    agent, _ = left
    agent = agent.switch("main", sync="ignore")
    agent.run("add sofa")
    assert world.items == ["chair", "sofa"]
    newest = repo.session("s").operations()[0]
    assert (newest.kind, newest.status) == ("switch", "done")


@pytest.mark.long
def test_read_only_and_undeclared_tools_cause_no_divergence(repo, world):
    """Branches whose tools only read, or are undeclared, run side by side."""
    agent = wrapped(repo, world)
    agent.run("look; note one")
    other = agent.fork()
    for _ in range(2):
        agent.run("look; note on")
        other.run("look; note on")
    assert len(world.notes) == 5
    assert len(agent.plan_switch("main").kept) == 2  # listed and kept


def test_an_effect_that_its_branch_reversed_causes_no_divergence(repo, world):
    """An effect that another branch made and reversed again has not changed the world."""
    agent = wrapped(repo, world)
    agent.run("add chair")
    fork = agent.fork()
    start = fork.head
    fork.run("add table")
    fork.rollback(start)
    assert world.items == ["chair"]
    agent.run("add sofa")
    assert world.items == ["chair", "sofa"]


def test_an_effect_redone_and_reversed_again_causes_no_divergence(left, world):
    """A branch runs if an effect that was gone when it last ran was redone and reversed in between."""
    agent, retry = left
    lives_without = retry.rollback("main")
    agent = agent.switch("main", sync="world")
    assert world.items == ["chair", "table"]
    agent.rollback("before")
    assert world.items == ["chair"]
    lives_without.run("now?")


def test_a_fork_starts_in_the_world_as_it_is(repo, world):
    """A fork from an earlier point starts in the current world; sync='world' restores the world of its path."""
    agent = wrapped(repo, world)
    agent.run("add chair")
    early = agent.head
    agent.run("add table")
    fork = agent.fork(early)
    fork.run("add sofa")
    assert world.items == ["chair", "table", "sofa"]
    fork = fork.switch(fork.branch, sync="world")
    assert world.items == ["chair", "sofa"]


def test_a_world_change_during_a_turn_stops_the_next_effect(repo, world):
    """A call does not run in a world that another branch has changed since the turn began."""
    agent = wrapped(repo, world)
    agent.run("add chair")
    other = agent.fork()
    steps = agent.stream({"messages": [("user", "add table")]}, stream_mode="values")
    next(steps)
    backend.record_call(repo, other.branch, item="lamp", batch=0)
    with pytest.raises(WorldDiverged):
        list(steps)
    assert world.items == ["chair"]
    assert "intended" not in {c.status for c in agent.tool_track()}


def test_a_rollback_without_conversation_reverses_only_the_tools(repo, world):
    """With conversation=False the effects are reversed, and the branch and its conversation stay."""
    agent = wrapped(repo, world)
    agent.run("add chair")
    before = agent.checkpoint("before")
    agent.run("add table")
    same = agent.rollback(before, conversation=False)
    assert same.branch_id == agent.branch_id
    assert world.items == ["chair"]
    assert len(agent.history()) == 8
    assert [b.name for b in agent.session.branches()] == ["main"]
    assert [item.invocation.args["item"] for item in agent.report.reversed] == ["table"]
    agent.run("add sofa")
    assert world.items == ["chair", "sofa"]


def test_a_rollback_with_tools_keep_leaves_the_world_unchanged(repo, world):
    """With tools='keep' there is a new branch, and the world stays."""
    agent = wrapped(repo, world)
    agent.run("add chair")
    before = agent.checkpoint("before")
    agent.run("add table")
    retry = agent.rollback(before, tools="keep")
    assert world.items == ["chair", "table"]
    assert len(retry.history()) == 4
    assert [item.invocation.args["item"] for item in retry.report.kept] == ["table"]


@pytest.mark.parametrize(
    "wrong",
    [{"tools": "keep"}, {"name": "x"}, {"replay": "execute"}, {"on_drift": "perhaps"}, {"replay": "again"}],
    ids=str,
)
def test_contradictory_rollback_arguments_are_refused(left, world, wrong):
    """Bad input: contradictory or unknown arguments of rollback and switch are refused before anything happens."""
    _, retry = left
    with pytest.raises(InvalidInput):
        retry.rollback("before", conversation=False, **wrong)
    with pytest.raises(InvalidInput, match="'world', 'note' or 'ignore'"):
        retry = retry.switch("main", sync="perhaps")
    assert world.items == ["chair"]


def test_replay_execute_stops_if_an_effect_was_removed_outside(repo, world):
    """Replay='execute' stops if the undo of an effect raises because the effect is gone, and no tool runs."""
    agent = wrapped(repo, world)
    agent.run("add chair")
    point = agent.checkpoint("here")
    world.items.clear()
    with pytest.raises(RollbackIncomplete, match="ValueError"):
        agent.rollback(point, replay="execute")
    assert world.items == []


@pytest.mark.parametrize("on_drift", ["stop", "continue"])
def test_replay_execute_stops_at_drift_or_reports_it(repo, world, on_drift):
    """A different result stops the replay until it is resumed, or is only reported with on_drift='continue'."""
    agent = wrapped(repo, world)
    agent.run("add chair")
    agent.run("add table")
    world.items[:0] = ["their chair", "their table"]
    if on_drift == "continue":
        fresh = agent.rollback("HEAD", replay="execute", on_drift="continue")
    else:
        with pytest.raises(RollbackIncomplete, match="the record has") as caught:
            agent.rollback("HEAD", replay="execute")
        assert world.items == ["their chair", "their table", "chair"]
        left = [(item.invocation.args["item"], item.reason) for item in caught.value.report.remaining]
        assert left == [("table", "not tried, because an earlier one returned something different")]
        with pytest.raises(RollbackIncomplete, match="If that is acceptable, resume operation") as again:
            repo.resume(caught.value.operation)
        assert world.items == ["their chair", "their table", "chair", "table"], "the last one stops it as well"
        assert (again.value.report.status, again.value.report.remaining) == ("partial", [])
        assert repo.resume(caught.value.operation).status == "done"
        fresh = agent.switch("main-2")
    assert world.items == ["their chair", "their table", "chair", "table"]
    assert [item.invocation.result["number"] for item in fresh.report.drifted] == [3, 4]


def test_a_switch_that_fails_halfway_can_be_resumed(left, repo, world):
    """An undo that raises leaves a partial switch; its branch cannot run until resume completes the switch."""
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
    """An irreversible effect blocks sync='world'; with force it is kept and accepted from then on."""
    agent = wrapped(repo, world)
    agent.run("add chair")
    fork = agent.fork()
    fork.run("send hi")
    with pytest.raises(WorldDiverged):
        agent.run("now?")
    with pytest.raises(RollbackBlocked):
        agent = agent.switch("main", sync="world")
    agent = agent.switch("main", sync="world", force=True)
    agent.run("now?")


def test_a_kept_effect_stays_accepted_after_it_is_redone(repo, world):
    """An effect that a rollback kept is still accepted after other branches have reversed and redone it."""
    agent = wrapped(repo, world)
    agent.run("add chair")
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


def test_a_fork_does_not_inherit_later_acceptances_of_its_parent(repo, world):
    """A fork inherits what its parent had accepted when it was made, and nothing accepted afterwards."""
    agent = wrapped(repo, world)
    agent.run("add chair")
    fork, other = agent.fork(), agent.fork()
    other.run("send hi")
    agent = agent.switch("main", sync="world", force=True)
    agent.run("now?")
    with pytest.raises(WorldDiverged):
        fork.run("now?")
    assert agent.fork().run("now?") is not None


def test_a_fork_of_a_half_rolled_back_branch_reports_divergence(repo, world):
    """A fork of a branch whose tools-only rollback stopped halfway diverges by the effects reversed so far."""
    agent = wrapped(repo, world)
    agent.run("add chair")
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


def test_a_resumed_note_switch_does_not_cover_later_changes(repo, world):
    """A switch with sync='note' that died and was resumed does not cover changes made in between."""
    agent = wrapped(repo, world)
    agent.run("add chair")
    fork = agent.fork()

    with faults.interrupted(points.WORK_ON_WORLD), pytest.raises(KeyboardInterrupt):
        fork = fork.switch(fork.branch.name, sync="note")
    agent.run("add table")
    (stopped,) = [one for one in repo.session("s").operations() if one.status != "done"]
    repo.resume(stopped)
    with pytest.raises(WorldDiverged):
        fork.run("now?")


def test_a_blocked_rollback_names_the_nearest_reachable_checkpoint(repo, world):
    """RollbackBlocked names the nearest checkpoint to which a rollback is possible."""
    agent = wrapped(repo, world)
    agent.run("add chair")
    before = agent.checkpoint("before")
    agent.run("send hi")
    agent.run("add table")
    agent.run("add sofa")
    with pytest.raises(RollbackBlocked, match="nearest checkpoint") as caught:
        agent.rollback(before)
    retry = agent.rollback(caught.value.nearest)
    assert world.items == ["chair"]
    assert [c.tool_name for c in retry.tool_track()] == ["add", "send"]


def test_the_nearest_checkpoint_is_never_head(repo, world):
    """If a rollback is possible only to HEAD, no nearest checkpoint is named, whatever checkpoints are there."""
    agent = wrapped(repo, world)
    agent.run("send hi")
    agent.checkpoint("here too")
    with pytest.raises(RollbackBlocked, match="Nothing was done") as caught:
        agent.rollback("main#1")
    assert caught.value.nearest is None
    assert "nearest" not in str(caught.value)
    agent.run("add table")
    with pytest.raises(RollbackBlocked) as caught:
        agent.rollback("main#1")
    assert caught.value.nearest == "main#2"


@pytest.mark.parametrize("replay", ["redo", "execute"])
def test_no_nearest_checkpoint_is_named_if_the_replay_is_blocked(repo, world, database, replay):
    """RollbackBlocked names no nearest checkpoint if the calls to run again are blocked."""
    agent = wrapped(repo, world)
    agent.run("add chair")
    agent.run("add table")
    agent.rollback("main#1")
    with agentgit.open(database.url) as other, pytest.raises(RollbackBlocked, match="Nothing was done") as caught:
        other.session("s").rollback("main#2", branch="main", replay=replay)
    assert caught.value.nearest is None


@pytest.mark.long
def test_a_turn_whose_branch_was_recovered_stops(repo, world):
    """Fencing: a turn whose branch was taken over neither calls tools nor saves; its earlier call stays recorded."""
    agent = wrapped(repo, world)
    steps = agent.stream({"messages": [("user", "add chair")]}, stream_mode="updates")
    while not world.items:
        next(steps)
    with pytest.raises(Conflict, match="is running in a process on this machine"):
        repo.session("s").recover()
    repo.session("s").recover(force=True)
    with pytest.raises(Conflict):
        list(steps)
    assert world.items == ["chair"]
    assert [c.status for c in agent.tool_track()] == ["done"]
    assert repo.session("s").branch().status == "open"


def test_async_switch_redoes_and_reverses_effects(repo, world):
    """The async verbs plan a switch, redo and reverse effects, and undo and redo turns, like the sync verbs."""

    async def scenario():
        agent = wrapped(repo, world)
        await agent.arun("add chair")
        before = await agent.acheckpoint("before")
        await agent.arun("add table")
        retry = await agent.arollback(before)
        assert (await agent.aplan_switch("main")).redos
        agent = await agent.aswitch("main", sync="world")
        assert world.items == ["chair", "table"]
        agent = await agent.aswitch(retry.branch, sync="world")
        assert world.items == ["chair"]
        agent = await agent.aundo()
        assert world.items == []
        agent = await agent.aredo()
        assert (world.items, agent.branch.name) == (["chair"], retry.branch.name)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_async", [False, True])
def test_a_redone_tool_receives_the_thread_id_of_its_branch(repo, is_async):
    """A tool that runs again finds the same thread id in its RunnableConfig as in a turn."""
    seen = []

    def put(item: str, config: RunnableConfig) -> str:
        """Put an item."""
        seen.append(config["configurable"]["thread_id"])
        return item

    async def put_later(item: str, config: RunnableConfig) -> str:
        """Put an item, without blocking."""
        return put(item, config)

    made = StructuredTool.from_function(None if is_async else put, put_later if is_async else None, "add")
    agent = repo.wrap(tool_node_graph(obedient(), [made]), "s", effects={"add": reversible(lambda args, result: None)})
    asyncio.run(agent.arun("add chair"))
    agent.rollback("main#1")
    asyncio.run(agent.aswitch("main", sync="world"))
    assert seen == [agent.branch.langgraph_session_id] * 2
