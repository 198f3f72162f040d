"""`replay="execute"`: what stands is reversed first, then the tools of the path run again, here or in a fresh world.

The world is a shop that outlives its customers and numbers its orders: an order that is made again is another order.
"""

import json

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.types import Command
from scripted import GRAPHS, World, call, calls, obedient, scripted, tool_node_graph
from shop import Shop, wish

import agentgit
from agentgit import Conflict, InvalidInput, RollbackBlocked, RollbackIncomplete, compensable, effect, reversible


@pytest.fixture
def shop(tmp_path):
    """The shop."""
    return Shop(tmp_path / "shop.db")


def wrapped(repo, shop, session="s", **how):
    return repo.wrap(shop.graph(), session, effects=shop.effects(), **how)


@pytest.fixture
def agent(repo, shop):
    """A branch with an order and a payment before the checkpoint `here`, and an order after it."""
    made = wrapped(repo, shop)
    made.invoke(wish([("order", "a")], [("pay", "b")]))
    made.checkpoint("here")
    made.invoke(wish([("order", "c")]))
    return made


def ids(calls):
    return [one.id for one in calls]


@pytest.mark.long
def test_t2_what_stands_is_reversed_before_the_path_runs_again(repo, shop, agent):
    """T2: nothing is in the world twice, reversals come first and newest first, and the branch that was left stays."""
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


def test_t2_with_default_arguments_a_standing_order_is_there_once(repo, shop, agent):
    """T2: the default stops where a result is another one, with the old order reversed, and is gone on with."""
    with pytest.raises(RollbackIncomplete, match="the record has") as caught:
        agent.rollback("here", replay="execute")
    assert shop.standing == {"a": 1}
    assert agent.branch.status == "open"
    assert repo.resume(caught.value.operation, force=True).status == "done"
    assert shop.standing == {"a": 1, "b": 1}


def test_t2_the_new_branch_shows_the_new_results(repo, shop, agent):
    """T2: tool track, history, messages and state have what the tools returned now; the originals stay on record."""
    fresh = agent.rollback("here", replay="execute", on_drift="continue")
    old, new = agent.tool_track()[:2], fresh.tool_track()
    assert [one.result["order"] for one in new] == [4, 5]
    assert [one.replay_of for one in new] == ids(old)
    assert [one.result["order"] for one in old] == [1, 2]
    assert [one.tool_call_id for one in new] == [one.tool_call_id for one in old]
    assert not {one.idempotency_key for one in new} & {one.idempotency_key for one in old}
    for told in (fresh.history(), [m.model_dump() for m in fresh.messages()], fresh.head.conversation_history):
        answers = [m for m in told if m.get("tool_call_id")]
        assert [json.loads(m["content"])["order"] for m in answers] == [4, 5]
    answers = [m for m in fresh.state["messages"] if isinstance(m, ToolMessage)]
    assert [json.loads(m.content)["order"] for m in answers] == [4, 5]
    assert [m["id"] for m in fresh.history()] == [m["id"] for m in agent.history()][: len(fresh.history())]


@pytest.mark.parametrize("kind", [kind for kind in GRAPHS if kind != "functional"])
def test_t2_every_kind_of_graph_goes_on_with_the_new_results(repo, kind):
    """T2: ToolNode, create_agent and a subgraph continue with what their tools returned now."""
    world = World()
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


def test_t2_later_rollbacks_undo_the_new_effects(repo, shop, agent):
    """T2: the reversal of a call that ran again gets its new result, and nothing of the old ones is reversed again."""
    fresh = agent.rollback("here", replay="execute", on_drift="continue")
    fresh.invoke(wish([("order", "d")]))
    start = fresh.rollback("main#1")
    assert shop.standing == {}
    assert shop.asked("cancelled") == {"a": 2, "b": 2, "c": 1, "d": 1}
    assert [item.invocation.result["order"] for item in start.report.reversed] == [6, 5, 4]
    assert repo.maintenance.fsck().is_sound


@pytest.mark.long
def test_t2_switch_undo_and_redo_lead_between_the_old_and_the_new_branch(repo, shop, agent):
    """T2: the world follows a switch to the branch that was left and back; each effect stands once."""
    fresh = agent.rollback("here", replay="execute", on_drift="continue")
    with pytest.raises(agentgit.WorldDiverged):
        agent.invoke(wish([("order", "x")]))
    agent = agent.switch("main", sync="world")
    assert shop.standing == {"a": 1, "b": 1, "c": 1}
    fresh = wrapped(repo, shop, branch=fresh.branch.name)
    fresh = fresh.switch(fresh.branch.name, sync="world")
    assert shop.standing == {"a": 1, "b": 1}
    assert [one.status for one in fresh.tool_track()] == ["reversed", "reversed"]
    back = fresh.redo()
    assert back.branch.name == "main"
    assert shop.standing == {"a": 1, "b": 1, "c": 1}
    assert repo.maintenance.fsck().is_sound


def test_t2_a_branch_whose_calls_ran_again_can_run_them_again(repo, shop, agent):
    """T2: twice in a row, and on a fork of the new branch: each time what stood is reversed first."""
    fresh = agent.rollback("here", replay="execute", on_drift="continue")
    fresh.checkpoint("there")
    again = fresh.fork().rollback("there", replay="execute", on_drift="continue")
    assert shop.standing == {"a": 1, "b": 1}
    assert [one.result["order"] for one in again.tool_track()] == [6, 7]
    assert [one.replay_of for one in again.tool_track()] == ids(fresh.tool_track())
    part = again.fork()
    part.invoke(wish([("order", "d")]))
    assert [one.result["order"] for one in part.tool_track()] == [6, 7, 8]
    assert [one.position for one in part.tool_track()] == [0, 1, 2]
    assert repo.maintenance.fsck().is_sound


def test_t2_a_diff_tells_which_calls_came_out_otherwise(repo, shop, agent):
    """T2: the calls and messages that differ are in the diff with the branch that was left; both sides have all."""
    here = agent.checkpoints()[-2]
    fresh = agent.rollback("here", replay="execute", on_drift="continue")
    found = repo.session("s").diff("here", fresh.head)
    assert found.common_calls == 0
    assert [one["result"]["order"] for one in found.removed_calls] == [1, 2]
    assert [one["result"]["order"] for one in found.added_calls] == [4, 5]
    assert [m["role"] for m in found.added_messages] == ["tool", "tool"]
    assert here.metadata["state_hash"] != fresh.head.metadata["state_hash"]


def test_t2_a_path_that_came_out_alike_has_the_same_state(repo):
    """T2: where nothing drifted the state at the new head hashes to the state of the checkpoint."""
    world = World()
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("look; add chair")
    here = agent.checkpoint("here")
    fresh = agent.rollback("here", replay="execute")
    assert fresh.report.drifted == []
    assert fresh.head.metadata["state_hash"] == here.metadata["state_hash"]
    assert world.items == ["chair"]
    assert [one.tool_name for one in fresh.tool_track()] == ["look", "add"]


def test_t2_exports_of_such_a_branch_are_whole(repo, shop, agent, tmp_path):
    """T2: a session whose calls ran again is carried, and so is the new branch alone, with the new results."""
    fresh = agent.rollback("here", replay="execute", on_drift="continue")
    repo.session("s").export(tmp_path / "all.jsonl")
    repo.session("s").export(tmp_path / "one.jsonl", branch=fresh.branch.name)
    with agentgit.open(tmp_path / "other.db") as other:
        for name in ("all", "one"):
            other.import_(tmp_path / f"{name}.jsonl", session=name)
            assert [one.result["order"] for one in other.session(name).tool_track()] == [4, 5]
            assert other.session(name).get_checkpoint("HEAD").conversation_history == fresh.history()
        assert other.maintenance.fsck().is_sound


# -- what blocks


def blocked(repo, graph, effects, *, turns=1):
    """Do something, and try to run it again; give the agent and what was said."""
    agent = repo.wrap(graph, "s", effects=effects)
    for _ in range(turns):
        agent.run("do it")
    agent.checkpoint("here")
    with pytest.raises(RollbackBlocked, match="Nothing was done") as caught:
        agent.rollback("here", replay="execute")
    return agent, caught.value.plan


@pytest.mark.parametrize("kind", ["irreversible", "once", "once, compensable", "undeclared"])
def test_t2_what_must_not_run_a_second_time_blocks_or_is_answered_from_the_record(repo, kind):
    """T2: an irreversible, a `once` and an undeclared call block; with force the record answers, and says so."""
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


def test_t2_an_unknown_call_blocks_until_somebody_tells(repo):
    """T2: a call that was broken off is not made again; force shows it as unknown on the new branch."""
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
    assert done == [5]
    assert [step.action for step in plan.steps] == ["block"]


def test_t2_an_undo_that_is_not_here_or_says_no_blocks(repo, database, shop, agent):
    """T2: what cannot be reversed here is not made a second time; force answers it from the record."""
    effects = shop.effects() | {"order": reversible(shop.cancel, precheck=lambda call: "the shop is closed")}
    closed = repo.wrap(shop.graph(), "s", effects=effects)
    with pytest.raises(RollbackBlocked, match="the shop is closed"):
        closed.rollback("here", replay="execute")
    assert shop.standing == {"a": 1, "b": 1, "c": 1}
    fresh = closed.rollback("here", replay="execute", force=True, on_drift="continue")
    assert shop.standing == {"a": 1, "b": 1, "c": 1}
    assert (shop.orders("a"), shop.orders("b")) == ([1], [4])
    assert [one.result["order"] for one in fresh.tool_track()] == [1, 4]
    assert [item.invocation.args["item"] for item in fresh.report.kept] == ["c"]
    assert [item.invocation.args["item"] for item in fresh.report.answered] == ["a"]
    assert repo.maintenance.fsck().is_sound


def test_t2_a_reversal_that_fails_leaves_its_call_standing_once(repo, shop, agent):
    """T2: with on_error='continue' a call whose undo raised does not run again; given up, the record answers for it."""
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


def test_t2_a_tool_that_raises_when_it_runs_again_is_tried_again(repo, shop, agent):
    """T2: the rollback stops there, the branch that was left is as before, and resume runs only what is missing."""
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


def test_t2_what_failed_is_not_made_to_fail_again(repo):
    """T2: a call that failed keeps its place on the new track, with its error, and does not run."""
    world = World()
    agent = repo.wrap(
        tool_node_graph(obedient(), world.tools(), handle_tool_errors=True),
        "s",
        effects=world.effects(fail="read_only"),
    )
    agent.run("add chair; fail why; look")
    agent.checkpoint("here")
    fresh = agent.rollback("here", replay="execute", on_drift="continue")
    assert len(world.happened("fail")) == 1
    assert len(world.happened("look")) == 2
    assert [one.status for one in fresh.tool_track()] == ["done", "failed", "done"]
    assert fresh.tool_track()[1].error_message == agent.tool_track()[1].error_message
    assert world.items == ["chair"]


@pytest.mark.long
def test_t2_an_idempotent_call_simply_runs_again(repo):
    """T2: it is not reversed, and nothing blocks."""
    world = World()
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(note="idempotent"))
    agent.run("note x")
    agent.checkpoint("here")
    fresh = agent.rollback("here", replay="execute")
    assert world.notes == ["x", "x"]
    assert [item.invocation.tool_name for item in fresh.report.redone] == ["note"]


def test_t2_what_a_tool_called_in_its_turn_is_there_once(repo):
    """T2: a tool that calls recorded tools blocks, because nobody would record these; with force both are answered."""
    world = World()
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


def test_t2_a_batch_that_waits_for_a_person_goes_on_as_it_is(repo):
    """T2: calls beside a question block; with force they are answered, and the answer is taken once."""
    world = World()
    replies = (calls(call("add", item="a"), call("add_if_approved", item="b")), "done")
    agent = repo.wrap(tool_node_graph(scripted(*replies), world.tools()), "s", effects=world.effects())
    agent.run("add them")
    agent.checkpoint("asking")
    with pytest.raises(RollbackBlocked, match="is waiting for a person"):
        agent.rollback("asking", replay="execute")
    fresh = agent.rollback("asking", replay="execute", force=True)
    fresh.invoke(Command(resume="yes"))
    assert world.items == ["a", "b"]
    assert repo.maintenance.fsck().is_sound


def test_t2_it_takes_no_tools_keep_and_require_clean_refuses_what_stands(repo, shop, agent):
    """T2: tools='keep' would leave everything in the world twice; require_clean runs only where nothing stands."""
    for ask in (agent.plan_rollback, agent.rollback, agent.session.plan_rollback):
        with pytest.raises(InvalidInput, match="happen twice"):
            ask("here", replay="execute", tools="keep")
    with pytest.raises(RollbackBlocked, match="a clean world is required"):
        agent.rollback("here", replay="execute", tools="require_clean")
    start = agent.rollback("main#1")
    fresh = start.rollback("here", replay="execute", tools="require_clean", on_drift="continue")
    assert shop.standing == {"a": 1, "b": 1}
    assert fresh.report.reversed == []


def test_t2_an_answer_that_the_fence_gave_runs_again_like_the_call_it_stands_for(repo, shop):
    """T2: a payment that a rollback kept, and that answered a call here, is refunded and then made again, once."""
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
    assert json.loads(fresh.history()[2]["content"])["order"] == 2
    assert repo.maintenance.fsck().is_sound


def test_t2_the_same_request_twice_gives_the_same_branch(repo, shop, agent):
    """T2: the second time nothing runs, and a request of another kind under that name is refused."""
    how = {"replay": "execute", "on_drift": "continue", "request_id": "click-1"}
    first = agent.rollback("here", **how)
    assert agent.rollback("here", **how).branch.name == first.branch.name
    assert shop.asked("order") == {"a": 2, "c": 1}
    with pytest.raises(InvalidInput, match="click-1"):
        agent.rollback("here", request_id="click-1")


def test_t2_messages_that_say_something_else_than_the_result_stay(repo):
    """T2: where a graph wrote its own words of a result, they stay, and the model is told of the new result."""
    world = World()

    @tool
    def add(item: str) -> ToolMessage:
        """Add an item, and say so in words of its own."""
        world.items.append(item)
        return ToolMessage(f"{item} is number {len(world.items)}", tool_call_id="", artifact=len(world.items))

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


# -- a fresh world


def test_t2_a_fresh_world_is_a_new_session_from_a_template(repo, shop, agent, tmp_path):
    """T2: the calls run in the new session's world; nothing is reversed, nothing of the old session is touched."""
    other = Shop(tmp_path / "test-system.db")
    other.act("order", "of somebody else")
    before = shop.standing, agent.history(), [one.to_dict() for one in agent.tool_track()]
    fresh = wrapped(repo, other, "fresh", template="s@here", replay="execute")
    assert other.standing == {"of somebody else": 1, "a": 1, "b": 1}
    assert (shop.standing, agent.history(), [one.to_dict() for one in agent.tool_track()]) == before
    assert fresh.report.reversed == []
    assert [one.result["order"] for one in fresh.tool_track()] == [2, 3]
    assert [json.loads(m["content"])["order"] for m in fresh.history() if m["role"] == "tool"] == [2, 3]
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
def test_t2_a_template_with_a_call_that_must_not_run_again_makes_no_session(repo, shop):
    """T2: it blocks before anything, a session included; force answers it from the record."""
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


def test_t2_a_fresh_world_that_was_not_finished_is_gone_on_with(repo, shop, agent, tmp_path):
    """T2: a tool that raises leaves a session whose calls the same wrap, or resume, finishes; nothing is made twice."""
    other = Shop(tmp_path / "test-system.db")
    other.faults["a"] = "before"
    with pytest.raises(RollbackIncomplete):
        wrapped(repo, other, "fresh", template="s@here", replay="execute")
    assert not other.standing
    fresh = wrapped(repo, other, "fresh", template="s@here", replay="execute")
    assert other.standing == {"a": 1, "b": 1}
    assert len(fresh.tool_track()) == 2


def test_t2_a_session_that_began_without_its_calls_does_not_make_them_later(repo, shop, agent):
    """T2: replay belongs to the beginning; where it means nothing it is refused."""
    wrapped(repo, shop, "plain", template="s@here")
    with pytest.raises(Conflict, match="another name"):
        wrapped(repo, shop, "plain", template="s@here", replay="execute")
    for wrong in ({"replay": "execute"}, {"replay": "redo", "template": "s"}, {"force": True, "template": "s"}):
        with pytest.raises(InvalidInput):
            wrapped(repo, shop, "new", **wrong)
    assert shop.standing == {"a": 1, "b": 1, "c": 1}


def test_t2_an_irreversible_effect_of_today_does_not_run_again(repo, shop, agent):
    """T2: a tool that is declared irreversible or once since its calls were made does not run either."""
    stricter = repo.wrap(shop.graph(), "s", effects=shop.effects() | {"order": effect("irreversible")})
    with pytest.raises(RollbackBlocked, match="irreversible"):
        stricter.rollback("here", replay="execute")
    assert shop.standing == {"a": 1, "b": 1, "c": 1}
