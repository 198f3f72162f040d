"""`replay="execute"` reverses existing effects and then runs the calls of a path again, also in a new session.

The world is a shop that outlives its processes and numbers its orders, so a repeated order has a new number.
"""

import json

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.types import Command
from scripted import GRAPHS, call, calls, obedient, say, scripted, tool_node_graph
from shop import Shop, wish

import agentgit
from agentgit import Conflict, InvalidInput, RollbackBlocked, RollbackIncomplete, compensable, effect, reversible


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path / "shop.db")


def wrapped(repo, shop, session="s", **how):
    return repo.wrap(shop.graph(), session, effects=shop.effects(), **how)


@pytest.fixture
def agent(repo, shop):
    made = wrapped(repo, shop)
    made.invoke(wish([("order", "a")], [("pay", "b")]))
    made.checkpoint("here")
    made.invoke(wish([("order", "c")]))
    return made


@pytest.fixture
def fresh(agent):
    return agent.rollback("here", replay="execute", on_drift="continue")


def ids(calls):
    return [one.id for one in calls]


def numbers(agent):
    """Return the numbers of the orders that the messages of tools tell."""
    return [json.loads(m["content"])["order"] for m in agent.history() if m["role"] == "tool"]


@pytest.mark.long
def test_replay_execute_reverses_effects_before_calls_run_again(repo, shop, agent):
    before = agent.history(), ids(agent.tool_track())
    plan = agent.plan_rollback("here", replay="execute")
    said = [(step.action, step.invocation.args["item"]) for step in plan.steps]
    assert said == [("reverse", "c"), ("reverse", "b"), ("reverse", "a"), ("redo", "a"), ("redo", "b")]
    fresh = agent.rollback("here", replay="execute", on_drift="continue")
    assert shop.standing == {"a": 1, "b": 1}
    assert (shop.orders("a"), shop.orders("b")) == ([4], [5])
    assert [item.invocation.args["item"] for item in fresh.report.reversed] == ["c", "b", "a"]
    assert [item.invocation.args["item"] for item in fresh.report.redone] == ["a", "b"]
    assert [item.invocation.result["order"] for item in fresh.report.drifted] == [4, 5]
    assert (agent.history(), ids(agent.tool_track())) == before
    assert [one.status for one in agent.tool_track()] == ["reversed"] * 3
    assert repo.maintenance.fsck().is_sound


def test_replay_execute_stops_at_drift_by_default(repo, shop, agent):
    with pytest.raises(RollbackIncomplete, match="the record has") as caught:
        agent.rollback("here", replay="execute")
    assert shop.standing == {"a": 1}
    assert agent.branch.status == "open"
    assert repo.resume(caught.value.operation, force=True).status == "done"
    assert shop.standing == {"a": 1, "b": 1}


def test_the_new_branch_its_diff_and_its_exports_show_the_new_results(repo, agent, fresh, tmp_path):
    old, new = agent.tool_track()[:2], fresh.tool_track()
    assert [one.result["order"] for one in old + new] == [1, 2, 4, 5]
    assert [one.replay_of for one in new] == ids(old)
    assert [one.tool_call_id for one in new] == [one.tool_call_id for one in old]
    assert not {one.idempotency_key for one in new} & {one.idempotency_key for one in old}
    assert numbers(fresh) == [4, 5]
    for told in ([m.model_dump() for m in fresh.messages()], fresh.head.conversation_history):
        assert [json.loads(m["content"])["order"] for m in told if m.get("tool_call_id")] == [4, 5]
    answers = [m for m in fresh.state["messages"] if isinstance(m, ToolMessage)]
    assert [json.loads(m.content)["order"] for m in answers] == [4, 5]
    assert [m["id"] for m in fresh.history()] == [m["id"] for m in agent.history()][: len(fresh.history())]

    found = repo.session("s").diff("here", fresh.head)
    assert found.common_calls == 0
    assert [one["result"]["order"] for one in found.removed_calls + found.added_calls] == [1, 2, 4, 5]
    assert [m["role"] for m in found.added_messages] == ["tool", "tool"]
    assert repo.session("s").get_checkpoint("here").metadata["state_hash"] != fresh.head.metadata["state_hash"]

    repo.session("s").export(tmp_path / "all.jsonl")
    repo.session("s").export(tmp_path / "one.jsonl", branch=fresh.branch.name)
    with agentgit.open(tmp_path / "other.db") as other:
        for name in ("all", "one"):
            other.import_(tmp_path / f"{name}.jsonl", session=name)
            assert [one.result["order"] for one in other.session(name).tool_track()] == [4, 5]
            assert other.session(name).get_checkpoint("HEAD").conversation_history == fresh.history()
        assert other.maintenance.fsck().is_sound


@pytest.mark.parametrize("kind", [kind for kind in GRAPHS if kind != "functional"])
def test_graphs_continue_with_the_new_results(repo, kind, world):
    agent = repo.wrap(GRAPHS[kind](obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    agent.run("add table")
    agent.checkpoint("here")
    world.items.insert(0, "a thing of somebody else")
    fresh = agent.rollback("here", replay="execute", on_drift="continue")
    assert world.items == ["a thing of somebody else", "chair", "table"]
    assert [json.loads(m["content"])["number"] for m in fresh.history() if m["role"] == "tool"] == [2, 3]
    fresh.run("add lamp")
    numbers = [json.loads(m["content"])["number"] for m in fresh.history() if m["role"] == "tool"]
    assert numbers == [2, 3, 4]
    assert len(fresh.tool_track()) == 3
    assert repo.maintenance.fsck().is_sound


@pytest.mark.long
def test_switch_and_redo_move_between_the_old_and_the_new_branch(repo, shop, agent, fresh):
    with pytest.raises(agentgit.WorldDiverged):
        agent.invoke(wish([("order", "x")]))
    agent = agent.switch("main", sync="world")
    assert shop.standing == {"a": 1, "b": 1, "c": 1}
    fresh = wrapped(repo, shop, branch=fresh.branch.name)
    fresh = fresh.switch(fresh.branch.name, sync="world")
    assert shop.standing == {"a": 1, "b": 1}
    assert [(one.status, one.kind) for one in fresh.tool_track()] == [("done", "redo")] * 2
    back = fresh.redo()
    assert back.branch.name == "main"
    assert shop.standing == {"a": 1, "b": 1, "c": 1}
    assert repo.maintenance.fsck().is_sound


def test_a_replayed_branch_can_be_replayed_again_and_rolled_back(repo, shop, fresh):
    """Each undo receives the newest result, and no effect is reversed twice."""
    fresh.checkpoint("there")
    again = fresh.fork().rollback("there", replay="execute", on_drift="continue")
    assert shop.standing == {"a": 1, "b": 1}
    assert [one.result["order"] for one in again.tool_track()] == [6, 7]
    assert [one.replay_of for one in again.tool_track()] == ids(fresh.tool_track())
    part = again.fork()
    part.invoke(wish([("order", "d")]))
    assert [one.result["order"] for one in part.tool_track()] == [6, 7, 8]
    assert [one.position for one in part.tool_track()] == [0, 1, 2]
    start = part.rollback("main#1")
    assert shop.standing == {}
    assert shop.asked("cancelled") == {"a": 3, "b": 3, "c": 1, "d": 1}
    assert [item.invocation.result["order"] for item in start.report.reversed] == [8, 7, 6]
    assert repo.maintenance.fsck().is_sound


def test_a_replay_without_drift_reproduces_the_state(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("look; add chair")
    here = agent.checkpoint("here")
    fresh = agent.rollback("here", replay="execute")
    assert fresh.report.drifted == []
    assert fresh.head.metadata["state_hash"] == here.metadata["state_hash"]
    assert world.items == ["chair"]
    assert [one.tool_name for one in fresh.tool_track()] == ["look", "add"]


# -- blocked replays


def test_tools_of_a_functional_graph_run_again_in_a_replay(repo, world):
    """Its functions take them from a dict, so LangGraph does not show them."""
    agent = repo.wrap(GRAPHS["functional"](obedient(), world.tools()), "s", effects=world.effects())
    for text in ("add chair", "add table"):
        agent.run(text)
    agent.checkpoint("here")
    fresh = agent.rollback("here", replay="execute")
    assert (world.items, len(world.happened("add"))) == (["chair", "table"], 4)
    fresh.run("add lamp")
    assert world.items == ["chair", "table", "lamp"]


def blocked(repo, graph, effects, *, said=("do it",)):
    agent = repo.wrap(graph, "s", effects=effects)
    for text in said:
        agent.run(text)
    agent.checkpoint("here")
    with pytest.raises(RollbackBlocked, match="Nothing was done") as caught:
        agent.rollback("here", replay="execute")
    return agent, caught.value.plan


@pytest.mark.parametrize("kind", ["irreversible", "once", "once, compensable", "undeclared"])
def test_a_call_that_must_not_run_twice_blocks_a_replay(repo, kind):
    done = []

    @tool
    def pay(euros: int) -> dict:
        """Pay."""
        done.append(euros)
        return {"receipt": len(done)}

    declared = {
        "irreversible": "irreversible",
        "once": reversible(lambda args, result: done.pop(), once=True),
        "once, compensable": compensable(lambda args, result: done.pop(), once=True),
    }
    effects = {"pay": declared[kind]} if kind in declared else {}
    agent, plan = blocked(repo, tool_node_graph(scripted(call("pay", euros=5), "paid"), [pay]), effects)
    assert [(step.action, step.otherwise) for step in plan.steps] == [("block", "answer")]
    assert done == [5]
    fresh = agent.rollback("here", replay="execute", force=True)
    assert done == [5]
    assert [item.invocation.args for item in fresh.report.answered] == [{"euros": 5}]
    assert [(one.kind, one.status, one.result) for one in fresh.tool_track()] == [("replay", "done", {"receipt": 1})]
    assert fresh.tool_track()[0].replay_of == agent.tool_track()[0].id
    assert [m["content"] for m in fresh.history()] == [m["content"] for m in agent.history()]
    assert "answered" in str(fresh.report)
    assert repo.maintenance.fsck().is_sound


def test_an_unknown_call_blocks_a_replay_until_its_outcome_is_recorded(repo):
    done = []

    @tool
    def pay(euros: int) -> str:
        """Pay."""
        done.append(euros)
        raise KeyboardInterrupt

    graph = tool_node_graph(scripted(call("pay", euros=5), "paid", "hello"), [pay])
    agent = repo.wrap(graph, "s", effects={"pay": compensable(lambda args, result: done.pop())})
    with pytest.raises(KeyboardInterrupt):
        agent.run("pay")
    agent.fork()
    plan = agent.plan_rollback("HEAD", replay="execute")
    assert [step.action for step in plan.steps] == ["block"]
    with pytest.raises(RollbackBlocked):
        agent.rollback("HEAD", replay="execute")
    assert done == [5]
    repo.resolve(agent.tool_track()[0], "happened", result="paid")
    assert [step.action for step in agent.plan_rollback("HEAD", replay="execute").steps] == ["reverse"]
    assert agent.rollback("HEAD", replay="execute").tool_track() == []
    assert done == []


def test_a_forced_replay_keeps_an_unknown_call_unknown(repo):
    done = []

    @tool
    def pay(euros: int) -> str:
        """Pay."""
        done.append(euros)
        raise ConnectionError("no answer")

    graph = tool_node_graph(scripted(call("pay", euros=5), "paid"), [pay], handle_tool_errors=True)
    agent, plan = blocked(repo, graph, {"pay": compensable(lambda args, result: done.pop())})
    assert [(step.action, step.otherwise) for step in plan.steps] == [("block", "answer")]
    fresh = agent.rollback("here", replay="execute", force=True)
    assert [(one.kind, one.status) for one in fresh.tool_track()] == [("replay", "unknown")]
    assert done == [5]


@pytest.mark.parametrize("why", ["the shop is closed", "declare the recorded one again"])
def test_a_call_that_cannot_be_reversed_blocks_a_replay(repo, database, shop, agent, why):
    """Its precheck refuses, or its undo is not declared; force uses the record."""
    closed_shop = reversible(shop.cancel, precheck=lambda call: why)
    orders = closed_shop if "closed" in why else reversible(lambda args, result: None)
    with agentgit.open(database.url) as other:
        later = other if "declare" in why else repo  # another program lacks the recorded function
        closed = later.wrap(shop.graph(), "s", effects=shop.effects() | {"order": orders})
        with pytest.raises(RollbackBlocked, match=why):
            closed.rollback("here", replay="execute")
        assert shop.standing == {"a": 1, "b": 1, "c": 1}
        fresh = closed.rollback("here", replay="execute", force=True, on_drift="continue")
        assert shop.standing == {"a": 1, "b": 1, "c": 1}
        assert (shop.orders("a"), shop.orders("b")) == ([1], [4])
        assert [one.result["order"] for one in fresh.tool_track()] == [1, 4]
        assert [item.invocation.args["item"] for item in fresh.report.kept] == ["c"]
        assert [item.invocation.args["item"] for item in fresh.report.answered] == ["a"]
    assert repo.maintenance.fsck().is_sound


def test_a_call_whose_undo_raised_does_not_run_again(repo, shop, agent):
    shop.stuck["a"] = "before"
    with pytest.raises(RollbackIncomplete, match="is stuck") as caught:
        agent.rollback("here", replay="execute", on_error="continue", on_drift="continue")
    assert "would happen twice" in caught.value.report.remaining[0].reason
    assert shop.standing == {"a": 1, "b": 1}
    assert shop.orders("a") == [1]
    report = repo.resume(caught.value.operation, force=True)
    assert shop.standing == {"a": 1, "b": 1}
    assert [item.invocation.args["item"] for item in report.answered] == ["a"]
    fresh = wrapped(repo, shop)
    assert [one.result["order"] for one in fresh.tool_track()] == [1, 4]
    fresh.rollback("main#1", force=True)
    assert repo.maintenance.fsck().is_sound


def test_a_replayed_tool_that_raises_is_retried_on_resume(repo, shop, agent):
    shop.faults["a"] = "before"
    with pytest.raises(RollbackIncomplete, match="Broken") as caught:
        agent.rollback("here", replay="execute", on_drift="continue")
    assert not shop.standing
    assert repo.session("s").branch().name == "main"
    repo.resume(caught.value.operation)
    assert shop.standing == {"a": 1, "b": 1}
    fresh = wrapped(repo, shop)
    assert [(one.args["item"], one.status) for one in fresh.tool_track()] == [("a", "done"), ("b", "done")]
    assert repo.maintenance.fsck().is_sound


def test_a_failed_call_is_not_run_again_and_an_idempotent_one_is_not_reversed(repo, world):
    graph = tool_node_graph(obedient(), world.tools(), handle_tool_errors=True)
    agent = repo.wrap(graph, "s", effects=world.effects(fail="read_only", note="idempotent"))
    agent.run("add chair; fail why; look; note x")
    agent.checkpoint("here")
    fresh = agent.rollback("here", replay="execute", on_drift="continue")
    assert [item.invocation.tool_name for item in fresh.report.reversed] == ["add"]
    assert [item.invocation.tool_name for item in fresh.report.redone] == ["add", "look", "note"]
    assert [one.status for one in fresh.tool_track()] == ["done", "failed", "done", "done"]
    assert fresh.tool_track()[1].error_message == agent.tool_track()[1].error_message
    assert (len(world.happened("fail")), world.items, world.notes) == (1, ["chair"], ["x", "x"])


def test_a_tool_that_calls_recorded_tools_blocks_a_replay(repo, world):
    add = world.tool("add")

    @tool
    def order(item: str) -> str:
        """Order, by another tool."""
        add.invoke({"item": item})
        return item

    effects = {"add": world.effects()["add"], "order": reversible(lambda args, result: None)}
    graph = tool_node_graph(scripted(call("order", item="a"), "ok"), [order, add])
    agent, plan = blocked(repo, graph, effects)
    assert [step.action for step in plan.steps] == ["block", "block"]
    fresh = agent.rollback("here", replay="execute", force=True)
    assert world.items == ["a"]
    assert [one.tool_name for one in fresh.tool_track()] == ["order", "add"]
    fresh.rollback("main#1")
    assert world.items == []
    assert repo.maintenance.fsck().is_sound


def test_a_batch_that_waits_for_a_person_blocks_a_replay(repo, world):
    replies = (calls(call("add", item="a"), call("add_if_approved", item="b")), "done")
    agent = repo.wrap(tool_node_graph(scripted(*replies), world.tools()), "s", effects=world.effects())
    agent.invoke(say("add them"))
    agent.checkpoint("asking")
    with pytest.raises(RollbackBlocked, match="has not ended"):
        agent.rollback("asking", replay="execute")
    fresh = agent.rollback("asking", replay="execute", force=True)
    fresh.invoke(Command(resume="yes"))
    assert world.items == ["a", "b"]
    assert repo.maintenance.fsck().is_sound


def test_replay_execute_refuses_tools_keep_and_honors_require_clean(repo, shop, agent):
    for ask in (agent.plan_rollback, agent.rollback, agent.session.plan_rollback):
        for tools in ("keep", "reversible"):  # what they keep would be made a second time
            with pytest.raises(InvalidInput, match="happen twice"):
                ask("here", replay="execute", tools=tools)
    with pytest.raises(RollbackBlocked, match="a clean world is required"):
        agent.rollback("here", replay="execute", tools="require_clean")
    start = agent.rollback("main#1")
    fresh = start.rollback("here", replay="execute", tools="require_clean", on_drift="continue")
    assert shop.standing == {"a": 1, "b": 1}
    assert fresh.report.reversed == []


def test_a_call_answered_by_the_fence_runs_again_like_its_original(repo, shop):
    """A kept payment that the fence answered on this branch is refunded and then made again once."""
    agent = wrapped(repo, shop)
    agent.invoke(wish([("pay", "x")]))
    retry = agent.rollback("main#1", tools="keep")
    retry.invoke(wish([("pay", "x")]))
    assert retry.tool_track()[0].kind == "replay"
    retry.checkpoint("here")
    fresh = retry.rollback("here", replay="execute", on_drift="continue")
    assert shop.standing == {"x": 1}
    assert shop.asked("cancelled") == {"x": 1}
    assert [(one.kind, one.result["order"]) for one in fresh.tool_track()] == [("call", 2)]
    assert numbers(fresh) == [2]
    assert repo.maintenance.fsck().is_sound


def test_a_repeated_request_id_returns_the_same_branch(repo, shop, agent):
    how = {"replay": "execute", "on_drift": "continue", "request_id": "click-1"}
    first = agent.rollback("here", **how)
    assert agent.rollback("here", **how).branch.name == first.branch.name
    assert shop.asked("order") == {"a": 2, "c": 1}
    with pytest.raises(InvalidInput, match="click-1"):
        agent.rollback("here", request_id="click-1")


def test_a_replay_updates_the_artifact_of_a_tool_message(repo, world):
    @tool(response_format="content_and_artifact")
    def put(item: str) -> tuple[str, dict]:
        """Put an item, with an artifact."""
        world.items.append(item)
        return f"number {len(world.items)}", {"number": len(world.items)}

    undo = reversible(lambda args, result: world.items.remove(args["item"]))
    graph = tool_node_graph(scripted(call("put", item="a"), "ok", "hm"), [put])
    agent = repo.wrap(graph, "s", effects={"put": undo})
    agent.run("put it")
    agent.checkpoint("here")
    world.items.insert(0, "somebody else's")
    fresh = agent.rollback("here", replay="execute", on_drift="continue")
    (answer,) = [m for m in fresh.messages() if isinstance(m, ToolMessage)]
    assert (answer.content, answer.artifact) == ("number 2", {"number": 2})
    assert fresh.tool_track()[0].result == ["number 2", {"number": 2}]
    fresh.run("and?")
    assert "ran again" in "".join(str(m["content"]) for m in fresh.history())


# -- replays in a new session


def test_replay_from_a_template_leaves_the_old_session_untouched(repo, shop, agent, tmp_path):
    other = Shop(tmp_path / "test-system.db")
    other.act("order", "of somebody else")
    before = shop.standing, agent.history(), [one.to_dict() for one in agent.tool_track()]
    fresh = wrapped(repo, other, "fresh", template="s@here", replay="execute")
    assert other.standing == {"of somebody else": 1, "a": 1, "b": 1}
    assert (shop.standing, agent.history(), [one.to_dict() for one in agent.tool_track()]) == before
    assert fresh.report.reversed == []
    assert [one.result["order"] for one in fresh.tool_track()] == [2, 3]
    assert numbers(fresh) == [2, 3]
    again = wrapped(repo, other, "fresh", template="s@here", replay="execute")
    assert again.branch.name == fresh.branch.name
    assert other.standing["a"] == 1
    again.invoke(wish([("order", "d")]))
    assert [step.invocation.args["item"] for step in again.plan_rollback(f"{fresh.branch.name}#1").steps] == ["d"]
    again.rollback("main#1")
    assert other.standing == {"of somebody else": 1}
    assert shop.standing == before[0]
    assert repo.maintenance.fsck().is_sound


@pytest.mark.long
def test_a_blocked_replay_from_a_template_creates_no_session(repo, shop):
    agent = wrapped(repo, shop)
    agent.invoke(wish([("order", "a")], [("mail", "m")], [("note", "n")]))
    with pytest.raises(RollbackBlocked, match="no session was created") as caught:
        wrapped(repo, shop, "fresh", template="s", replay="execute")
    assert {step.invocation.tool_name for step in caught.value.plan.blockers} == {"mail", "note"}
    assert [one.session_name for one in repo.sessions()] == ["s"]
    fresh = wrapped(repo, shop, "fresh", template="s", replay="execute", force=True)
    assert (shop.asked("mail"), shop.asked("note"), shop.asked("order")) == ({"m": 1}, {"n": 1}, {"a": 2})
    assert [one.kind for one in fresh.tool_track()] == ["call", "replay", "replay"]
    assert [item.invocation.tool_name for item in fresh.report.answered] == ["mail", "note"]
    assert repo.maintenance.fsck().is_sound


def test_a_stopped_replay_from_a_template_can_be_completed(repo, shop, agent, tmp_path):
    other = Shop(tmp_path / "test-system.db")
    other.faults["a"] = "before"
    with pytest.raises(RollbackIncomplete):
        wrapped(repo, other, "fresh", template="s@here", replay="execute")
    assert not other.standing
    fresh = wrapped(repo, other, "fresh", template="s@here", replay="execute")
    assert other.standing == {"a": 1, "b": 1}
    assert len(fresh.tool_track()) == 2


def test_replay_is_refused_for_a_session_that_began_without_it(repo, shop, agent):
    wrapped(repo, shop, "plain", template="s@here")
    with pytest.raises(Conflict, match="another name"):
        wrapped(repo, shop, "plain", template="s@here", replay="execute")
    for wrong in ({"replay": "execute"}, {"replay": "redo", "template": "s"}, {"force": True, "template": "s"}):
        with pytest.raises(InvalidInput):
            wrapped(repo, shop, "new", **wrong)
    assert shop.standing == {"a": 1, "b": 1, "c": 1}


def test_a_tool_declared_irreversible_later_blocks_a_replay(repo, shop, agent):
    stricter = repo.wrap(shop.graph(), "s", effects=shop.effects() | {"order": effect("irreversible")})
    with pytest.raises(RollbackBlocked, match="irreversible"):
        stricter.rollback("here", replay="execute")
    assert shop.standing == {"a": 1, "b": 1, "c": 1}


def test_a_call_that_stands_by_a_later_run_is_done_on_the_new_track(repo):
    """It was reversed and made again by a switch; `once` keeps it from running a third time."""
    made = []

    @tool
    def sign(name: str) -> str:
        """Sign."""
        made.append(name)
        return name

    graph = tool_node_graph(scripted(call("sign", name="Ann"), "ok"), [sign])
    undoing = {"sign": reversible(lambda args, result: made.remove(args["name"]))}
    agent = repo.wrap(graph, "s", effects=undoing)
    start = agent.checkpoint("start")
    agent.invoke({"messages": [("user", "sign")]})
    agent.rollback(start)
    agent.session.switch("main", sync="world")
    once = {"sign": reversible(lambda args, result: made.remove(args["name"]), once=True)}
    agent = repo.wrap(graph, "s", effects=once)
    again = agent.rollback(agent.head, replay="execute", force=True)
    assert made == ["Ann"]
    assert [one.status for one in again.tool_track()] == ["done"]
