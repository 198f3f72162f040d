"""At the place of a call that ran again, every reader sees its newest run and what became of it.

The world returns the number of its items with each new one, so a run in a fuller world returns another result.
"""

import asyncio
import threading
from contextlib import suppress

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.types import Command, interrupt
from scripted import call, calls, nested_graph, node_graph, obedient, say, scripted, tool_node_graph

import agentgit
from agentgit import Fenced, NotDone, RollbackBlocked, RollbackIncomplete, compensable, reversible
from agentgit.errors import Conflict


@pytest.fixture
def agent(repo, world):
    """Return an agent that has added a chair and a table."""
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    agent.run("add table; look")
    return agent


def undone_and_redone(agent, world, more="lamp"):
    """Undo the last turn, let somebody else add an item, and redo the turn."""
    back = agent.undo()
    world.items.append(more)
    return back.redo()


def seen(track):
    return [(one.args["item"], one.status, one.result["number"]) for one in track if one.tool_name == "add"]


def test_the_track_shows_the_newest_run_of_a_redone_call(repo, agent, world):
    first = agent.tool_track()
    agent.undo()
    assert seen(agent.tool_track()) == [("chair", "done", 1), ("table", "reversed", 2)]
    world.items.append("lamp")
    again = agent.switch("main", sync="world")
    shown = again.tool_track()
    assert seen(shown) == [("chair", "done", 1), ("table", "done", 3)]
    assert [one.kind for one in shown] == ["call", "redo", "call"]
    assert [(one.position, one.tool_call_id, one.internal_session_id) for one in shown] == [
        (one.position, one.tool_call_id, one.internal_session_id) for one in first
    ]
    assert shown[1].replay_of == shown[1].first_id == first[1].id
    assert shown[1].id not in {one.id for one in first}
    assert shown[1].started_at > first[1].started_at
    assert (shown[0], shown[2]) == (first[0], first[2])


def test_each_undo_and_redo_changes_what_the_track_shows(agent, world):
    runs = set()
    for number in (3, 4):
        agent = undone_and_redone(agent, world, f"lamp {number}")
        assert seen(agent.tool_track())[1] == ("table", "done", number)
        runs.add(agent.tool_track()[1].id)
    assert len(runs) == 2
    agent.undo()
    (table,) = [one for one in agent.tool_track() if one.args.get("item") == "table"]
    assert (table.status, table.result["number"], table.kind) == ("reversed", 4, "redo")
    assert table.id in runs


def test_every_read_of_the_calls_shows_the_newest_run(agent, world):
    agent = undone_and_redone(agent, world)
    newest, session = agent.tool_track()[1], agent.session
    assert newest.kind == "redo"
    assert session.tool_track() == agent.tool_track()
    assert session.get_checkpoint("HEAD").tool_invocations[1] == newest.to_dict()
    assert session.diff("main#1", "HEAD").added_calls[1] == newest.to_dict()
    assert session.compare("main-2", "main").right.added_calls[0] == newest.to_dict()
    assert session.plan_rollback("HEAD").replayed[1] == newest
    assert session.plan_switch("main").replayed[1] == newest
    assert [item.invocation for item in agent.report.redone] == [newest]
    assert session.operations()[0].report["redone"][0]["invocation"] == newest.id
    assert session.tool_track().to_frame()["id"].tolist()[1] == newest.id
    (step,) = [one for one in session.trajectories() if len(one["results"]) == 2]
    assert (step["results"][0]["status"], step["results"][0]["result"]) == ("done", newest.result)
    (reversal,) = agent.plan_rollback("main#2").steps
    assert reversal.invocation == newest
    fork = agent.fork(name="fork")
    assert fork.tool_track()[1].id == newest.id
    again = fork.rollback("main#4", tools="keep")
    assert [item.invocation.id for item in again.report.replayed][1:2] == [newest.id]
    (item,) = agent.rollback("main#2").report.reversed
    assert (item.invocation.id, item.invocation.position) == (newest.id, 1)
    assert item.invocation.tool_call_id == newest.tool_call_id


def test_a_branch_shows_the_run_that_another_branch_recorded(agent, world):
    """Branches share one world, so a branch shows an inherited call as the run that was recorded elsewhere."""
    fork = agent.fork(name="fork")
    back = agent.rollback("main#1", name="empty")
    world.items.append("lamp")
    assert seen(fork.tool_track()) == [("chair", "reversed", 1), ("table", "reversed", 2)]
    forward = back.rollback("main#2", name="forward", replay="redo", on_drift="continue")
    assert seen(forward.tool_track()) == [("chair", "done", 2)]
    for one in (agent, fork):
        assert seen(one.tool_track()) == [("chair", "done", 2), ("table", "reversed", 2)]
    fork = fork.switch("fork", sync="world")
    assert seen(agent.tool_track()) == seen(fork.tool_track()) == [("chair", "done", 2), ("table", "done", 3)]
    assert {one.internal_session_id for one in fork.tool_track()} == {fork.branch.id}
    assert seen(forward.tool_track()) == [("chair", "done", 2)]


def test_a_redo_that_failed_leaves_the_call_reversed(repo, agent, world, monkeypatch):
    def refusing(name: str, item: str) -> str:
        raise NotDone("sold out")

    agent.rollback("main#1")
    with monkeypatch.context() as sold_out:
        sold_out.setattr(world, "_put", refusing)
        with pytest.raises(RollbackIncomplete, match="sold out") as stopped:
            agent.switch("main", sync="world")
    assert seen(agent.tool_track()) == [("chair", "reversed", 1), ("table", "reversed", 2)]
    report = repo.resume(stopped.value.operation)
    assert len(report.redone) == 2
    assert seen(agent.tool_track()) == [("chair", "done", 1), ("table", "done", 2)]


def test_of_a_redo_that_stopped_half_way_each_call_shows_what_happened(repo, world):
    outcomes = []

    def pay(amount: int) -> str:
        """Pay."""
        if outcomes and outcomes.pop():
            raise ConnectionError("lost")
        return f"paid {amount}"

    graph = tool_node_graph(scripted(call("pay", amount=1), call("pay", amount=2), "paid"), [tool(pay)])
    agent = repo.wrap(graph, "s", effects={"pay": compensable(lambda args, result: None)})
    agent.run("pay")
    agent.rollback("main#1")
    outcomes[:] = [True, False]
    with pytest.raises(RollbackIncomplete):
        agent.switch("main", sync="world")
    done, lost = agent.tool_track()
    assert (done.status, done.kind, lost.status, lost.kind) == ("done", "redo", "unknown", "redo")
    assert (lost.result, lost.error_message) == (None, "ConnectionError: lost")
    assert repo.resolve(lost, "happened", result="paid 2, late").position == 1
    assert [one.result for one in agent.tool_track()] == ["paid 1", "paid 2, late"]


def test_calls_of_a_rerun_that_was_made_real_are_shown_as_done(repo, agent, world):
    again = agent.rerun()
    assert {one.status for one in again.tool_track()} == {"simulated"}
    world.items.append("lamp")
    real = agent.switch(again.branch.name, sync="world")
    assert seen(real.tool_track()) == [("chair", "done", 2), ("table", "done", 3)]
    assert [one.status for one in real.tool_track() if one.tool_name == "look"] == ["simulated"]
    assert [one["status"] for one in real.get_checkpoint("HEAD").tool_invocations] == ["done", "done", "simulated"]
    assert seen(agent.tool_track()) == [("chair", "reversed", 1), ("table", "reversed", 2)]
    real.rollback("main#1")
    assert seen(real.tool_track()) == [("chair", "reversed", 2), ("table", "reversed", 3)]


def test_an_answer_from_the_record_shows_what_became_of_the_call(repo, world):
    receipts = iter(range(1, 9))

    def pay(to: str) -> dict[str, int]:
        """Pay somebody."""
        return {"receipt": next(receipts)}

    asking = calls(call("pay", to="Ann"))
    graph = tool_node_graph(scripted(asking, "paid", asking, "paid"), [tool(pay)])
    agent = repo.wrap(graph, "s", effects={"pay": compensable(lambda args, result: None)})
    agent.run("pay Ann")
    first = agent.tool_track()[0]
    agent = agent.rollback("main#1", tools="keep")
    agent.run("pay Ann")
    (answered,) = agent.tool_track()
    assert (answered.kind, answered.status, answered.replay_of) == ("replay", "done", first.id)
    agent.at("main").rollback("main#1")
    (answered,) = agent.tool_track()
    assert (answered.kind, answered.status, answered.id) == ("replay", "reversed", first.id)
    again = agent.switch("main-2", sync="world")
    (newest,) = again.tool_track()
    assert (newest.kind, newest.status, newest.result) == ("redo", "done", {"receipt": 2})
    assert agent.at("main").tool_track()[0].id == newest.id
    assert again.fork(name="fork").tool_track()[0].id == newest.id


def test_an_inner_call_keeps_its_place_beside_an_outer_one_that_ran_again(repo):
    placed = []

    @tool
    def inner(item: str) -> str:
        """Note an item."""
        return f"noted {item}"

    @tool
    def outer(item: str) -> str:
        """Place an item."""
        placed.append(item)
        return f"{len(placed)}: {inner.invoke({'item': item})}"

    graph = tool_node_graph(scripted(call("outer", item="a"), "ok"), [outer, inner])
    agent = repo.wrap(graph, "s", effects={"outer": reversible(lambda args, result: None), "inner": "read_only"})
    agent.run("place a")
    again = agent.rollback("main#1").redo()
    assert [(one.tool_name, one.kind, one.status, one.result) for one in again.tool_track()] == [
        ("outer", "redo", "done", "2: noted a"),
        ("inner", "call", "done", "noted a"),
    ]


def charging(repo, world, *, is_in_tool, breaks, error=ConnectionError, outer="read_only"):
    """Return an agent whose turn has charged 5, and then waits for a person or has broken off."""
    charge, failures = world.tool("charge"), [error("down")]

    def act() -> str:
        """Charge, then wait for a person, or break off once."""
        charge.invoke({"amount": 5})
        if not breaks:
            return str(interrupt("go on?"))
        if failures:
            raise failures.pop()
        return "yes"

    def node(state):
        return {"messages": [("ai", tool(act).invoke({}) if is_in_tool else act())]}

    effects = {"charge": world.effects()["charge"], "act": outer}
    agent = repo.wrap(node_graph(node), "s", effects=effects, check_effects=False)
    agent.checkpoint("start")
    with suppress(error):
        agent.invoke(say())
    return agent


@pytest.mark.parametrize("is_in_tool", [False, True])
@pytest.mark.parametrize("breaks", [False, True])
def test_a_step_that_goes_on_does_not_make_a_call_that_was_made_again_for_it(repo, world, is_in_tool, breaks):
    agent = charging(repo, world, is_in_tool=is_in_tool, breaks=breaks)
    agent.checkpoint("waiting")
    with pytest.raises(RollbackBlocked, match="its step of the graph has not ended, and goes on as it is"):
        agent.rollback("waiting", replay="execute")
    assert world.log == [("charge", {"amount": 5})]
    again = agent.rollback("waiting", replay="execute", force=True)
    again.invoke(None if breaks else Command(resume="yes"))
    assert world.log == [("charge", {"amount": 5})]


@pytest.mark.parametrize("is_in_tool", [False, True])
@pytest.mark.parametrize("breaks", [False, True])
def test_a_call_that_a_turn_makes_again_takes_the_place_of_the_one_that_was_reversed(repo, world, is_in_tool, breaks):
    """Whichever way the branch is left and comes back, the world has the call once."""
    agent = charging(repo, world, is_in_tool=is_in_tool, breaks=breaks)
    agent.rollback("start")
    assert world.charges == []
    agent = agent.session.agent("main")
    agent.switch("main", sync="ignore")
    agent.invoke(None if breaks else Command(resume="yes"))
    assert world.charges == [5]
    for _ in range(2):
        back = agent.rollback("start")
        assert world.charges == []
        assert [str(step.invocation) for step in back.plan_redo().redos] == ["charge(amount=5)"]
        agent = back.redo()
        assert world.charges == [5]
    agent.rollback(agent.checkpoint("end"), replay="execute", force=True)
    assert world.charges == [5]
    assert repo.maintenance.fsck(3).is_sound


@pytest.mark.parametrize("order", ["reversed before", "reversed after", "fence"])
def test_an_answer_from_the_record_stands_or_falls_with_the_call_that_was_made(repo, world, order):
    """A step that goes on makes a call again that was reversed since, and every branch knows it as the same call."""
    agent = charging(repo, world, is_in_tool=False, breaks=False)
    agent.checkpoint("waiting")
    if order == "fence":
        again = agent.rollback("start", tools="keep")
        again.invoke(say())
    elif order == "reversed after":
        again = agent.rollback("waiting", replay="execute", force=True)
    if order == "reversed before":
        agent.rollback("start")
        main = agent.session.agent("main").switch("main", sync="ignore")
        again = main.rollback("waiting", replay="execute", force=True)
    else:
        agent.at("main").rollback("start", force=True)
        again = agent.session.agent(again.branch.name).switch(again.branch.name, sync="ignore")
    assert (world.charges, [one.status for one in again.tool_track()]) == ([], ["reversed"])
    again.invoke(Command(resume="yes"))
    assert (world.charges, [(one.kind, one.status) for one in again.tool_track()]) == ([5], [("redo", "done")])
    for name in (again.branch.name, "main", again.branch.name):
        assert not again.session.plan_switch(name).redos
        again = again.session.agent(name).switch(name, sync="world")
        assert world.charges == [5]
    again.rollback("start")
    assert world.charges == ([5] if order == "fence" else []), "the rollback before has kept it"


@pytest.mark.parametrize("decision", ["happened", "did_not_happen"])
@pytest.mark.parametrize("named_by", ["track", "error"])
def test_a_person_decides_once_of_a_call_and_of_its_copy(repo, world, decision, named_by):
    failures = [ConnectionError("down")]

    @tool
    def pay(euros: int) -> int:
        """Pay."""
        world.charges.append(euros)
        if failures:
            raise failures.pop()
        return euros

    graph = node_graph(lambda state: {"messages": [("ai", str(pay.invoke({"euros": 5})))]})
    agent = repo.wrap(graph, "s", effects={"pay": compensable(lambda args, result: None)}, check_effects=False)
    with suppress(ConnectionError):
        agent.invoke(say())
    again = agent.rollback(agent.checkpoint("broken off"), replay="execute", force=True)
    with pytest.raises(Fenced, match="It raised ConnectionError: down") as refused:
        again.invoke(None)
    [shown] = again.tool_track()
    repo.resolve(shown if named_by == "track" else refused.value.invocation, decision)
    expected = {"happened": "done", "did_not_happen": "failed"}[decision]
    assert [one.status for one in (*agent.tool_track(), *again.tool_track())] == [expected] * 2
    again.invoke(None)
    assert world.charges == [5] * (1 if decision == "happened" else 2)


async def test_a_copy_of_a_call_that_still_runs_is_not_decided(repo, world):
    begun, gate = threading.Event(), threading.Event()

    @tool
    def pay(euros: int) -> int:
        """Pay."""
        begun.set()
        gate.wait(60)
        world.charges.append(euros)
        return euros

    graph = node_graph(lambda state: {"messages": [("ai", str(pay.invoke({"euros": 5})))]})
    agent = repo.wrap(graph, "s", effects={"pay": reversible(lambda args, result: None)}, check_effects=False)
    turn = asyncio.create_task(agent.ainvoke(say()))
    await asyncio.to_thread(begun.wait, 60)
    turn.cancel()
    with suppress(asyncio.CancelledError):
        await turn
    again = await agent.arollback(agent.checkpoint("cancelled"), replay="execute", force=True)
    with pytest.raises(Fenced, match="It is running now") as refused:
        await again.ainvoke(None)
    with pytest.raises(Conflict, match="still runs in this process"):
        repo.resolve(refused.value.invocation, "did_not_happen")
    gate.set()
    while agent.tool_track()[0].status == "unknown":
        await asyncio.sleep(0.01)
    await again.ainvoke(None)
    assert world.charges == [5]


def test_a_call_that_only_a_later_run_made_inside_a_tool_blocks_the_redo_of_that_tool(repo, world):
    charge, is_express = world.tool("charge"), []

    @tool
    def order() -> str:
        """Order; express costs."""
        if is_express:
            charge.invoke({"amount": 5})
        return "ordered"

    def node(state):
        return {"messages": [("ai", order.invoke({}) + str(interrupt("go on?")))]}

    effects = {"charge": world.effects()["charge"], "order": reversible(lambda args, result: None)}
    agent = repo.wrap(node_graph(node), "s", effects=effects, check_effects=False)
    agent.checkpoint("start")
    agent.invoke(say())
    agent.rollback("start")
    is_express.append(True)
    main = agent.session.agent("main").switch("main", sync="ignore")
    main.invoke(Command(resume="yes"))
    assert world.charges == [5]
    end = main.checkpoint("end")
    with pytest.raises(RollbackBlocked, match="it called charge"):
        main.rollback(end, replay="execute")
    back = main.rollback("start")
    with pytest.raises(RollbackBlocked, match="it called charge"):
        back.redo()
    assert world.charges == []


@pytest.mark.parametrize("is_inner", [False, True])
def test_a_call_is_not_made_again_because_the_state_was_updated_by_hand(repo, world, is_inner):
    """LangGraph gives the tasks of `create_agent` other ids then."""
    helper = create_agent(obedient(), world.tools())

    @tool
    def desk(task: str) -> str:
        """Ask the helper."""
        return str(helper.invoke({"messages": [("user", task)]})["messages"][-1].text)

    ask = calls(call("desk", task="charge 5; add_if_approved sofa"))
    graph = create_agent(scripted(ask, "done"), [desk]) if is_inner else create_agent(obedient(), world.tools())
    agent = repo.wrap(graph, "s", effects=world.effects(), check_effects=False)
    agent.invoke({"messages": [("user", "charge 5; add_if_approved sofa")]})
    agent.update_state(None, {"messages": []})
    if is_inner:
        with pytest.raises(Fenced, match="desk, which made it, was not run again"):
            agent.invoke(None)
    else:
        agent.invoke(None)
        agent.invoke(Command(resume="yes"))
    assert (world.charges, world.items) == ([5], [] if is_inner else ["sofa"])


def test_calls_of_a_subgraph_with_memory_are_not_made_again_after_an_update_by_hand(repo, world):
    """LangGraph begins the node of the subgraph anew, and makes the calls of the message in it once more."""
    graph = nested_graph(obedient(), world.tools(), own_thread=True)
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.invoke({"messages": [("user", "charge 5; add_if_approved sofa")]})
    agent.update_state(None, {"messages": []})
    with pytest.raises(Fenced, match="agent, which made it, was not run again"):
        agent.invoke(None)
    assert world.log == [("charge", {"amount": 5})]
    agent.rollback("main#1")
    assert world.charges == []


@pytest.mark.parametrize("how", [tool_node_graph, create_agent])
@pytest.mark.parametrize("order", ["update, redo", "redo, update", "update, rerun"])
def test_a_call_that_ran_again_is_not_made_again_because_the_state_was_updated_by_hand(repo, world, how, order):
    agent = repo.wrap(how(obedient(), world.tools()), "s", effects=world.effects())
    agent.invoke({"messages": [("user", "charge 5; add_if_approved sofa")]})
    for verb in order.split(", "):
        if verb == "update":
            agent.update_state(None, {"messages": []})
        elif verb == "redo":
            agent = agent.rollback("main#1").redo()
        else:
            agent = agent.switch(agent.rerun().branch.name, sync="world")
    agent.invoke(None)
    agent.invoke(Command(resume="yes"))
    assert (world.charges, world.items) == ([5], ["sofa"])
    agent.rollback("main#1")
    assert (world.charges, world.items) == ([], [])


@pytest.mark.parametrize("how", [tool_node_graph, create_agent, nested_graph])
def test_a_rerun_that_waits_and_is_made_real_makes_no_call_twice(repo, world, how):
    agent = repo.wrap(how(obedient(), world.tools()), "s", effects=world.effects())
    agent.invoke({"messages": [("user", "charge 5; add_if_approved sofa")]})
    again = agent.rerun()
    real = agent.switch(again.branch.name, sync="world")
    assert [name for name, _ in world.log] == ["charge", "refund", "charge"]
    real.invoke(Command(resume="yes"))
    assert (world.charges, world.items) == ([5], ["sofa"])
    real.rollback("main#1")
    assert (world.charges, world.items) == ([], [])
    assert repo.maintenance.fsck(3).is_sound


def test_what_a_rerun_simulated_and_what_stays_in_the_world_is_not_made_when_the_rerun_goes_on(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(charge="irreversible"))
    agent.invoke({"messages": [("user", "charge 5; add_if_approved sofa")]})
    again = agent.rerun()
    real = agent.switch(again.branch.name, sync="world", force=True)
    real.invoke(Command(resume="yes"))
    assert (world.charges, world.items) == ([5], ["sofa"])
    end = real.checkpoint("end")
    gone = [step.why for step in real.plan_rollback(end).steps if step.action == "gone"]
    assert gone == ["it is not in the world, and its tool does not run again"]
    real.rollback(end, replay="execute", force=True)
    assert (world.charges, world.items) == ([5], ["sofa"])


@pytest.mark.parametrize("how", [tool_node_graph, create_agent])
def test_a_rerun_whose_tool_asked_a_person_is_not_made_real(repo, world, how):
    agent = repo.wrap(how(obedient(), world.tools()), "s", effects=world.effects())
    agent.invoke({"messages": [("user", "charge 5; add_if_approved sofa")]})
    agent.invoke(Command(resume="yes"))
    again = agent.rerun()
    for force in (False, True):
        with pytest.raises(RollbackBlocked, match="asked a person"):
            agent.switch(again.branch.name, sync="world", force=force)
    assert (world.charges, world.items) == ([5], ["sofa"])


def test_a_rollback_on_a_rerun_that_was_made_real_can_be_forced(repo, world):
    """Only what a switch makes real cannot be skipped."""
    broken = []

    def undo(args, result):
        if broken:
            raise ConnectionError("down")
        world.refund(args, result)

    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(charge=compensable(undo)))
    agent.run("add chair")
    real = agent.switch(agent.rerun().branch.name, sync="world")
    real.run("charge 5")
    broken.append(True)
    with pytest.raises(RollbackIncomplete, match="force=True") as stopped:
        real.rollback("main#1")
    repo.resume(stopped.value.operation, force=True)
    assert (world.charges, world.items) == ([5], [])


def test_a_call_that_ran_again_inside_a_tool_blocks_the_redo_of_that_tool(repo, world):
    undo = reversible(lambda args, result: None)
    agent = charging(repo, world, is_in_tool=True, breaks=True, error=NotDone, outer=undo)
    agent.checkpoint("broken off")
    again = agent.rollback("start").rollback("broken off")
    again.invoke(None)
    assert world.charges == [5]
    back = again.rollback("start")
    with pytest.raises(RollbackBlocked, match="it called charge"):
        back.redo()
    assert world.charges == []


@pytest.mark.parametrize("is_in_tool", [False, True])
def test_a_fork_of_a_turn_that_died_makes_no_call_again(repo, world, is_in_tool):
    """A task that died has written nothing, and looks like one that has not begun."""
    agent = charging(repo, world, is_in_tool=is_in_tool, breaks=True, error=SystemExit)
    agent.fork().invoke(None)
    assert world.log == [("charge", {"amount": 5})]


def test_a_redone_call_is_shown_after_export_and_import(agent, repo, world, tmp_path):
    agent = undone_and_redone(agent, world)
    for branch in (None, "main"):
        agent.session.export(tmp_path / "s.jsonl", branch=branch)
        copy = repo.session(repo.import_(tmp_path / "s.jsonl", session=f"copy of {branch}").session)
        assert seen(copy.tool_track(branch="main")) == seen(agent.tool_track())


def test_a_redone_call_is_shown_from_an_encrypted_database(tmp_path, world):
    keyring = agentgit.Keyring({"one": agentgit.Keyring.new_key()})
    with agentgit.open(tmp_path / "sealed.db", keyring=keyring) as repo:
        agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
        agent.run("add chair")
        agent.run("add table")
        agent = undone_and_redone(agent, world)
        assert seen(agent.tool_track()) == [("chair", "done", 1), ("table", "done", 3)]


def test_a_forced_report_lists_each_call_once(repo, world, monkeypatch):
    """The reversal of a call that then did not run again stays a reversal, whatever became of its runs."""
    graph = tool_node_graph(obedient(), world.tools())
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.run("add chair")
    agent.run("add table")
    refuses = []

    def refusing(name: str, item: str) -> str:
        refuses.append(item)
        raise NotDone("sold out")

    with monkeypatch.context() as sold_out:
        sold_out.setattr(world, "_put", refusing)
        with pytest.raises(RollbackIncomplete, match="sold out") as stopped:
            agent.rollback("HEAD", replay="execute", on_drift="continue")
        with pytest.raises(RollbackIncomplete, match="sold out"):
            repo.resume(stopped.value.operation)
        report = repo.resume(stopped.value.operation, force=True)
    assert refuses == ["chair", "chair", "chair", "table"]
    assert [item.invocation.args["item"] for item in report.reversed] == ["table", "chair"]
    assert all(item.reason == "its undo reverses it" for item in report.reversed)
    assert [item.invocation.args["item"] for item in report.gone] == ["chair", "table"]
    assert {item.invocation.status for item in report.kept} <= {"failed"}
