"""Merges and cherry-picks add history to a branch and leave the world unchanged."""

import operator
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import backend
import faults
import points
import processes
import pytest
from delta_graphs import chat as delta_chat
from delta_graphs import delta, joined
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel, LastValue
from langgraph.graph import MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Command, Overwrite
from merge_graphs import State, said, state_graph, told, unanswered, values
from scripted import GRAPHS, call, calls, obedient, say, scripted, tool_node_graph

import agentgit
from agentgit import Conflict, InvalidInput, MergeConflict, NotFound, WorldDiverged


@pytest.fixture
def pair(repo):
    agent = repo.wrap(state_graph(), "s")
    told(agent, "start", note="a", total=1, cart=["chair"], plan=[1])
    return agent, agent.fork(name="retry")


# -- merge


def test_values_changed_only_by_theirs_are_taken(pair):
    agent, retry = pair
    told(retry, "theirs", note="b", total=5, cart=["sofa"], plan=[2])
    made = agent.merge("retry", name="merged")
    assert values(agent) == values(retry) == {"note": "b", "total": 6, "cart": ["chair", "sofa"], "plan": [2]}
    assert said(agent) == said(retry) == ["start", "to start", "theirs", "to theirs"]
    assert (made.checkpoint_name, made.is_auto, made.metadata["branch"]) == ("merged", False, "main")
    assert made.metadata["description"] == "Merge of retry#3 into main, since main#2"
    assert agent.head == made


def test_values_changed_only_by_ours_stay(pair):
    agent, retry = pair
    told(agent, "ours", note="b")
    told(retry, "theirs")
    plan = agent.merge("retry", dry_run=True)
    assert (plan.conflicts, plan.values, len(plan.messages)) == ([], [], 2)
    assert str(plan) == (
        "Merge of retry#3 into main, since main#2, in session s: adds history, runs no tool.\n"
        "  message  user       theirs\n"
        "  message  assistant  to theirs\n"
        "0 values and 2 messages to add."
    )
    assert said(agent)[2:] == ["ours", "to ours"]
    agent.merge("retry")
    assert said(agent) == ["start", "to start", "ours", "to ours", "theirs", "to theirs"]
    assert agent.state["note"] == "b"


def test_items_added_to_a_list_by_both_branches_are_kept(pair):
    agent, retry = pair
    told(agent, "ours", cart=["table"])
    told(retry, "theirs", cart=["sofa"])
    assert [(one.key, one.how, one.value) for one in agent.merge("retry", dry_run=True).values] == [
        ("cart", "append", ["sofa"])
    ]
    agent.merge("retry")
    assert agent.state["cart"] == ["chair", "table", "sofa"]
    told(agent, "ours", plan=[1, 2])
    told(retry, "theirs", plan=[1, 3])
    assert [one.key for one in agent.merge("retry", dry_run=True).conflicts] == ["plan"]


def refusing(before, more):
    if before:
        raise TypeError(more)
    return more


OWN_REDUCERS = [lambda before, more: more or before, lambda before, more: [*before, *more][-3:], refusing]


@pytest.mark.parametrize("reducer", OWN_REDUCERS)
def test_a_list_reducer_that_does_not_only_append_conflicts(repo, reducer):
    class Own(MessagesState):
        items: Annotated[list, reducer]

    def node(state):
        return {"messages": [AIMessage("ok")]}

    agent = repo.wrap(StateGraph(Own).add_node("node", node).set_entry_point("node").compile(), "s")
    agent.invoke({"messages": [HumanMessage("start")], "items": [1, 2]})
    retry = agent.fork(name="retry")
    for one, last in ((agent, 3), (retry, 4)):
        one.update_state(None, {"items": Overwrite([1, 2, last])}, "node")
        one.run("on")
    assert [one.key for one in agent.merge("retry", dry_run=True).conflicts] == ["items"]
    agent.merge("retry", resolve="theirs")
    assert agent.state["items"] == [1, 2, 4]


@pytest.mark.parametrize("kind", [operator.or_, DeltaChannel(joined, snapshot_frequency=2)])
def test_dict_entries_added_by_both_branches_are_kept(repo, kind):
    class Own(MessagesState):
        files: Annotated[dict, kind]

    def node(state):
        last = state["messages"][-1]
        return {"messages": [AIMessage("ok")], **last.additional_kwargs}

    agent = repo.wrap(StateGraph(Own).add_node("node", node).set_entry_point("node").compile(), "s")
    told(agent, "start", files={"a": "1", "b": "1"})
    retry = agent.fork(name="retry")
    told(agent, "ours", files={"a": "2", "c": "1"})
    told(retry, "theirs", files={"b": "2", "d": "1"})
    plan = agent.merge("retry", dry_run=True)
    assert [(one.key, one.how, one.value) for one in plan.values] == [("files", "append", {"b": "2", "d": "1"})]
    agent.merge("retry")
    assert agent.state["files"] == {"a": "2", "b": "2", "c": "1", "d": "1"}
    told(agent, "ours", files={"d": "2"})
    told(retry, "theirs", files={"d": "3"})
    assert [one.key for one in agent.merge("retry", dry_run=True).conflicts] == ["files"]


def test_conflicts_are_listed_and_nothing_changes_until_they_are_resolved(pair):
    agent, retry = pair
    told(agent, "ours", note="mine", total=10)
    told(retry, "theirs", note="yours", total=20)
    before = (agent.state, agent.head.id, len(agent.checkpoints()))
    with pytest.raises(MergeConflict, match="note, total since main#2") as refused:
        agent.merge("retry")
    assert (agent.state, agent.head.id, len(agent.checkpoints())) == before
    clashes = {one.key: (one.base, one.ours, one.theirs) for one in refused.value.plan.conflicts}
    assert clashes == {"note": ("a", "mine", "yours"), "total": (1, 11, 21)}
    assert "conflict  note" in str(refused.value.plan)
    assert "<td" in refused.value._repr_html_()
    resolved = {"note": "ours", "total": "theirs"}
    assert not agent.merge("retry", resolve=resolved, dry_run=True).conflicts
    agent.merge("retry", resolve=resolved)
    assert (agent.state["note"], agent.state["total"], len(agent.history())) == ("mine", 21, 6)


def test_a_repeated_merge_adds_only_new_changes(pair):
    agent, retry = pair
    told(agent, "ours", note="mine")
    told(retry, "theirs", note="yours")
    first = agent.merge("retry", resolve="ours")
    assert agent.merge("retry", dry_run=True).is_empty
    assert agent.merge("retry") == first
    told(retry, "more", plan=[7])
    assert agent.merge("retry", dry_run=True).base == "retry#3"
    agent.merge("retry")
    assert said(agent)[4:] == ["theirs", "to theirs", "more", "to more"]
    assert (agent.state["note"], agent.state["plan"]) == ("mine", [7])
    assert retry.merge("main", dry_run=True).base == "retry#5"
    retry.merge("main")
    assert retry.state["note"] == "mine"
    assert said(retry) == ["start", "to start", "theirs", "to theirs", "more", "to more", "ours", "to ours"]
    assert agent.merge("retry", dry_run=True).is_empty


def test_changes_merged_through_a_third_branch_are_not_repeated(pair):
    agent, retry = pair
    third = agent.fork(name="third")
    told(retry, "theirs", cart=["sofa"], note="b")
    agent.merge("retry")
    third.merge("main")
    assert third.merge("retry", dry_run=True).is_empty
    told(retry, "more", cart=["lamp"], note="c")
    plan = third.merge("retry", dry_run=True)
    assert (plan.base, plan.conflicts) == ("retry#3", [])
    third.merge("retry")
    assert values(third) == values(retry)
    assert said(third) == said(retry)


def test_a_branch_from_inside_a_merged_part_adds_only_the_rest(pair):
    agent, retry = pair
    told(retry, "theirs", cart=["sofa"])
    told(retry, "more", cart=["lamp"])
    agent.merge("retry")
    second = agent.fork("retry#3", name="second")
    told(second, "other", cart=["bed"], note="b")
    assert agent.merge("second", dry_run=True).base == "retry#3"
    agent.merge("second")
    assert agent.state["cart"] == ["chair", "sofa", "lamp", "bed"]
    assert agent.state["note"] == "b"
    assert said(agent)[2:] == ["theirs", "to theirs", "more", "to more", "other", "to other"]


def test_a_later_fork_is_not_a_newer_merge_base(pair):
    """The base is what both branches have merged, even if one of them was forked later from an older point."""
    agent, _ = pair
    told(agent, "ours", cart=["sofa"])
    late = agent.fork("main#2", name="late")
    other = late.fork(name="other")
    other.merge("main")
    told(agent, "more", cart=["lamp"])
    late.merge("main")
    assert late.merge("other", dry_run=True).is_empty
    told(other, "last", cart=["bed"])
    late.merge("other")
    assert sorted(late.state["cart"]) == ["bed", "chair", "lamp", "sofa"]
    assert len(late.history()) == len({message["id"] for message in late.history()}) == 8


@pytest.mark.long
def test_branches_merged_into_each_other_agree_or_conflict(pair):
    """With several newest common points none is chosen alone, and values on which they differ are a conflict."""
    agent, retry = pair
    told(agent, "ours", cart=["sofa"])
    told(retry, "theirs", cart=["lamp"])
    third = agent.fork(name="third")
    third.merge("retry")
    agent.merge("retry")
    retry.merge("main#4")
    told(retry, "more", note="b")
    plan = third.merge("retry", dry_run=True)
    assert plan.base == "retry#3 and main#4"
    assert ([one.key for one in plan.values], len(plan.messages)) == (["note"], 2)
    assert [one.key for one in plan.conflicts] == ["cart"]
    third.merge("retry", resolve="ours")
    assert sorted(third.state["cart"]) == ["chair", "lamp", "sofa"]


@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_merges_loses_and_duplicates_nothing(seed):
    chance = random.Random(seed)  # noqa: S311  # the same each time
    with agentgit.open(":memory:") as repo:
        agents = [repo.wrap(state_graph(), "s")]
        told(agents[0], "0", cart=["0"])
        for number in range(1, 16):
            agent, what = chance.choice(agents), chance.random()
            if what < 0.4:
                told(agent, str(number), cart=[str(number)])
            elif what < 0.55 and len(agents) < 4:
                agents.append(agent.fork(chance.choice(agent.checkpoints()), name=f"fork-{number}"))
            else:
                other = chance.choice([one for one in agents if one is not agent] or agents)
                told_both, carts = {*told_to(agent), *told_to(other)}, [cart(agent), cart(other)]
                is_clash = bool(agent.merge(other.branch.name, dry_run=True).conflicts)
                agent.merge(other.branch.name, resolve="ours")
                assert sorted(told_to(agent)) == sorted(told_both)
                assert sorted(cart(agent)) == sorted(carts[0] if is_clash else {*carts[0], *carts[1]})


def told_to(agent):
    return [message["content"] for message in agent.history() if message["role"] == "user"]


def cart(agent):
    return agent.state.get("cart", [])


def test_a_merge_destroys_nothing_and_runs_no_node_and_no_condition(repo, pair):
    agent, retry = pair
    told(agent, "ours")
    told(retry, "theirs")
    before, theirs, ran = agent.head, retry.state, list(agent.graph.ran)
    agent.merge("retry")
    assert agent.graph.ran == ran
    assert (agent.get_state().next, agent.get_state().metadata["source"]) == ((), "update")
    assert repo.session().get_checkpoint(before).conversation_history == before.conversation_history
    assert repo.session("s").branch("retry").session_state == {k: v for k, v in theirs.items() if k != "messages"}
    back = agent.rollback(before)
    assert said(back) == ["start", "to start", "ours", "to ours"]
    told(agent, "on")
    assert said(agent)[-2:] == ["on", "to on"]


def test_a_rewritten_conversation_is_a_conflict(pair):
    agent, retry = pair
    early = agent.fork(name="early")
    retry.update_state(None, {"messages": [RemoveMessage(m["id"]) for m in retry.history()]}, "node")
    told(retry, "summary")
    early.merge("retry")
    assert said(early) == ["summary", "to summary"]
    told(agent, "ours")
    with pytest.raises(MergeConflict, match="messages"):
        agent.merge("retry")
    agent.merge("retry", resolve={"messages": "theirs"})
    assert said(agent) == ["summary", "to summary"]


def test_equal_edits_on_both_branches_do_not_conflict(pair):
    agent, retry = pair
    first, second = (message["id"] for message in agent.history())
    for one in pair:
        edit = [HumanMessage("edited", id=first), RemoveMessage(second)]
        one.update_state(None, {"messages": edit}, "node")
    told(agent, "ours")
    told(retry, "theirs")
    agent.merge("retry")
    assert said(agent) == ["edited", "ours", "to ours", "theirs", "to theirs"]


# -- tool calls


@pytest.fixture
def shop(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    retry = agent.fork(name="retry")
    retry.run("add sofa; look")
    return agent, retry


@pytest.mark.long
def test_a_merged_tool_call_is_history_without_an_effect(world, shop):
    agent, _ = shop
    happened, position = list(world.log), agent.head.get_tool_track_position()
    agent.merge("retry")
    assert world.log == happened
    assert agent.head.get_tool_track_position() == position == 1
    assert [one.args for one in agent.tool_track()] == [{"item": "chair"}]
    assert unanswered(agent) == []
    with pytest.raises(WorldDiverged):
        agent.run("add table")
    assert [step.action for step in agent.plan_rollback("main#1").steps] == ["reverse", "reverse"]
    agent = agent.switch("main", sync="ignore")
    agent.run("add table")
    agent.rollback("main#1")
    assert world.items == []
    assert len(world.undone) == 3


def test_an_unfinished_batch_is_not_merged(repo, world):
    model = scripted("hello", calls(call("look"), call("add_if_approved", item="safe")), "ok", "fine")
    agent = repo.wrap(tool_node_graph(model, world.tools()), "s", effects=world.effects())
    agent.run("hi")
    retry = agent.fork(name="retry")
    retry.invoke(say("buy a safe"))
    point = retry.checkpoint("asking")
    plan = agent.merge(point, dry_run=True)
    assert [message["content"] for message in plan.messages] == ["buy a safe"]
    assert [one.rpartition(": ")[2] for one in plan.left_out] == ["its batch of tool calls and results is incomplete"]
    agent.merge(point)
    assert said(agent) == ["hi", "hello", "buy a safe"]
    with pytest.raises(Conflict, match="in the middle of a turn") as refused:
        retry.merge("main")
    assert [step.verb for step in refused.value.next] == ["answer"]


def test_a_second_answer_to_one_call_is_left_out(repo, world):
    model = scripted(calls(call("add_if_approved", call_id="c1", item="safe")), "yes then", "no then")
    agent = repo.wrap(tool_node_graph(model, world.tools()), "s", effects=world.effects())
    agent.invoke(say("buy a safe"))
    retry = agent.fork(agent.checkpoint("asking"), name="retry")
    agent.invoke(Command(resume="yes"))
    retry = retry.switch("retry", sync="ignore")
    retry.invoke(Command(resume="no"))
    plan = agent.merge("retry", dry_run=True)
    assert [one.rpartition(": ")[2] for one in plan.left_out] == ["its batch of tool calls and results is incomplete"]
    agent.merge("retry")
    roles = [message["role"] for message in agent.history()]
    assert roles == ["user", "assistant", "tool", "assistant", "assistant"]
    assert unanswered(agent) == []


# -- cherry-pick


def test_picking_a_checkpoint_adds_the_messages_it_added(world, shop):
    agent, retry = shop
    happened = list(world.log)
    plan = agent.cherry_pick("retry", dry_run=True)
    assert [message["role"] for message in plan.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    made = agent.cherry_pick("retry", name="picked")
    assert said(agent) == said(retry)
    assert world.log == happened
    assert made.metadata["description"] == "Cherry-pick of retry#3 into main, since retry#2"
    assert agent.cherry_pick("retry") == made
    assert agent.cherry_pick("retry", dry_run=True).is_empty


def test_the_values_that_a_checkpoint_changed_are_picked_with_its_messages(pair):
    agent, retry = pair
    told(retry, "first", note="b", cart=["sofa"])
    told(retry, "second", plan=[2], cart=["lamp"])
    plan = agent.cherry_pick("retry", dry_run=True)
    assert [(one.key, one.how) for one in plan.values] == [("plan", "take")]
    assert [(one.key, one.base, one.ours, one.theirs) for one in plan.conflicts] == [
        ("cart", ["chair", "sofa"], ["chair"], ["chair", "sofa", "lamp"])
    ]
    with pytest.raises(MergeConflict, match="cart since retry#4"):
        agent.cherry_pick("retry")
    agent.cherry_pick("retry", resolve="ours")
    assert values(agent) == {"note": "a", "total": 1, "cart": ["chair"], "plan": [2]}
    assert said(agent)[2:] == ["second", "to second"]
    agent.cherry_pick("retry#3")
    assert (agent.state["note"], agent.state["cart"]) == ("b", ["chair", "sofa"])


# -- merge and cherry-pick


def test_merging_into_a_moved_or_running_branch_is_refused(repo, pair):
    agent, retry = pair
    told(retry, "theirs")
    second = repo.wrap(state_graph(), "s", branch="main")
    told(second, "elsewhere")
    with pytest.raises(Conflict, match="has moved"):
        agent.merge("retry")
    agent = agent.switch("main")
    turn = repo.wrap(state_graph(), "s", branch="main").stream({"messages": [HumanMessage("wait")]})
    next(turn)
    with pytest.raises(Conflict, match="is running"):
        agent.merge("retry")
    list(turn)


def test_a_branch_whose_turn_raised_is_continued_before_a_merge(repo):
    fails = []

    def node(state):
        if fails:
            raise RuntimeError(fails.pop())
        return {"messages": [AIMessage("ok")]}

    agent = repo.wrap(StateGraph(State).add_node("node", node).set_entry_point("node").compile(), "s")
    told(agent, "start")
    retry = agent.fork(name="retry")
    told(retry, "theirs")
    fails.append("no")
    with pytest.raises(RuntimeError):
        told(agent, "ours")
    with pytest.raises(Conflict, match="middle of a turn") as refused:
        agent.merge("retry")
    assert [step.verb for step in refused.value.next] == ["continue"]
    agent.invoke(None)
    agent.merge("retry")
    assert said(agent) == ["start", "ok", "ours", "ok", "theirs", "ok"]


def test_a_node_that_runs_when_a_value_changes_is_not_left_due_by_a_merge(repo):
    """A graph whose node subscribes to a channel of its state is refused, because a merge runs no node."""
    echo = NodeBuilder().subscribe_to("seen", read=False).do(lambda _: "echoed").write_to("out")
    graph = Pregel(
        nodes={"echo": echo},
        channels={"seen": LastValue(str), "out": LastValue(str)},
        input_channels="seen",
        output_channels="out",
    )
    agent = repo.wrap(graph, "s")
    agent.invoke("one")
    retry = agent.fork(name="retry")
    retry.invoke("two")
    with pytest.raises(InvalidInput, match="Nodes of this graph run when seen changes"):
        agent.merge("retry")
    assert agent.get_state().values["seen"] == "one"


def test_only_one_of_several_concurrent_merges_succeeds(repo, pair):
    agent, retry = pair
    told(retry, "theirs", cart=["sofa"])
    graph, gate = state_graph(), threading.Barrier(4)

    def merge(one):
        gate.wait()
        one.merge("retry")

    with ThreadPoolExecutor(4) as pool:
        merges = [pool.submit(merge, repo.wrap(graph, "s", branch="main")) for _ in range(4)]
    assert [type(one.exception()) for one in merges].count(Conflict) == 3
    agent = agent.switch("main")
    assert said(agent) == ["start", "to start", "theirs", "to theirs"]
    assert agent.state["cart"] == ["chair", "sofa"]


def test_an_interrupted_merge_leaves_the_branch_unchanged(repo, pair):
    agent, retry = pair
    told(retry, "theirs", note="b")
    before, threads = (agent.get_state().config, agent.head.id), backend.threads(repo)
    for point in (points.PUBLISH_MERGE, points.STORE_CHECKPOINT):
        with faults.interrupted(point), pytest.raises(KeyboardInterrupt):
            agent.merge("retry")
        assert (agent.get_state().config, agent.head.id) == before
    assert backend.threads(repo) == threads
    agent.merge("retry")
    assert agent.state["note"] == "b"


def test_a_reopened_session_merges_once_a_graph_is_wrapped_and_has_the_whole_state(repo, pair):
    agent, retry = pair
    told(retry, "theirs", note="b")
    plan = agent.merge("retry", dry_run=True)
    with agentgit.open(backend.url(repo)) as later:
        session = later.session("s")
        with pytest.raises(InvalidInput, match="Wrap it first"):
            session.agent("main")
        later.wrap(state_graph(), "s")
        assert session.agent("main").merge("retry", dry_run=True) == plan
        made = session.agent("main").merge("retry", name="m")
        assert session.agent("main").cherry_pick("retry") == made
    with agentgit.open(backend.url(repo)) as later:
        again = later.wrap(state_graph(), "s", branch="main")
        assert (again.state["note"], said(again)) == ("b", ["start", "to start", "theirs", "to theirs"])
        point = later.session().get_checkpoint(made.id)
        assert point.session_state["note"] == "b"
        assert len(point.conversation_history) == made.metadata["message_count"] == 4
        told(again, "on")
        assert again.rollback(made.id).state["messages"] == again.state["messages"][:4]


def test_what_is_no_checkpoint_of_the_session_is_refused(repo, pair):
    agent, _ = pair
    other = repo.wrap(state_graph(), "other")
    with pytest.raises(InvalidInput, match="belongs to session"):
        other.merge(agent.head)
    told(other, "hi")
    with pytest.raises(InvalidInput, match="belongs to session"):
        agent.merge(other.head)
    for verb in (agent.merge, agent.cherry_pick):
        with pytest.raises(NotFound):
            verb("nowhere")
    for wrong in ([], [1], 3.5):
        with pytest.raises(InvalidInput):
            agent.cherry_pick(wrong)


def test_a_viewer_sees_what_a_merge_would_do_and_may_not_merge(repo, pair):
    told(pair[1], "theirs", note="b")
    repo.users.add("vic")
    repo.session("s").sharing.share("vic", "viewer")
    viewer = repo.as_user("vic").wrap(state_graph(), "local/s", branch="main")
    for verb in (viewer.merge, viewer.cherry_pick):
        assert [one.key for one in verb("retry", dry_run=True).values] == ["note"]
        with pytest.raises(agentgit.NotAllowed):
            verb("retry")


@pytest.mark.parametrize("kind", GRAPHS)
def test_every_kind_of_graph_continues_after_a_merge(repo, world, kind):
    agent = repo.wrap(GRAPHS[kind](obedient(), world.tools()), "s", effects=world.effects(), check_effects=False)
    agent.run("note one")
    retry = agent.fork(name="retry")
    agent.run("note ours")
    retry.run("note theirs")
    before = agent.head
    agent.merge("retry", resolve="ours")
    talk = [message["content"] for message in agent.history() if message["role"] == "user"]
    assert talk == ["note one", "note ours", "note theirs"]
    assert world.notes == ["one", "ours", "theirs"]
    agent.run("note more")
    assert [message["content"] for message in agent.history() if message["role"] == "user"] == [*talk, "note more"]
    assert len(agent.tool_track()) == 3
    assert agent.rollback(before).history() == before.conversation_history


@pytest.mark.parametrize("full", [2, 100])
def test_delta_channels_are_merged(repo, full):
    graph = delta_chat(delta(full, _messages_delta_reducer), full=full)
    agent = repo.wrap(graph, "s")

    def say(branch, text, *, id):
        branch.invoke({"messages": [HumanMessage(text, id=id)]})

    say(agent, "start", id="1")
    retry = agent.fork(name="retry")
    say(agent, "ours", id="2")
    say(retry, "theirs", id="3")
    say(retry, "more", id="5")
    with pytest.raises(MergeConflict, match="log"):
        agent.merge("retry")
    agent.merge("retry", resolve={"log": "theirs"})
    assert [m.id for m in agent.messages() if m.type == "human"] == ["1", "2", "3", "5"]
    log = agent.state["log"]
    assert log == retry.state["log"]
    say(agent, "on", id="4")
    with agentgit.open(backend.url(repo)) as later:
        again = later.wrap(graph, "s", branch="main")
        assert again.state == agent.state
        assert again.state["log"][:-3] == log[-7:]


DYING = """
import sys
import agentgit, faults, points
from merge_graphs import state_graph
agent = agentgit.open(sys.argv[1]).wrap(state_graph(), "s", branch="main")
with faults.killed(getattr(points, sys.argv[2])):
    agent.merge("retry")
"""


@pytest.mark.long
@pytest.mark.parametrize("point", ["PUBLISH_MERGE", "STORE_CHECKPOINT"])
def test_a_killed_process_leaves_the_branch_unchanged(repo, pair, point):
    agent, retry = pair
    told(retry, "theirs", note="b", cart=["sofa"])
    before = (agent.get_state().config, agent.head.id, agent.state)
    url = backend.address(repo)
    done = processes.run(DYING, url, point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (agent.get_state().config, agent.head.id, agent.state) == before
    agent.merge("retry")
    assert said(agent) == ["start", "to start", "theirs", "to theirs"]
    assert agent.state["cart"] == ["chair", "sofa"]


def test_checkpoint_data_that_looks_like_a_merge_is_ignored(repo, pair):
    agent, retry = pair
    told(retry, "theirs", note="b")
    for data in ("merged", {"merged": 7}, {"merged": {"checkpoint": 10**30}}, {"merged": {"checkpoint": True}}, [1]):
        agent.checkpoint("mine", data=data)
    assert agent.merge("retry", dry_run=True).base == "main#2"
    assert len(agent.merge("retry", dry_run=True).messages) == 2


def test_an_imported_session_remembers_its_merges(repo, pair, tmp_path):
    agent, retry = pair
    told(agent, "ours", note="mine")
    told(retry, "theirs", note="yours", cart=["sofa"])
    agent.merge("retry", resolve="ours")
    kept = [{"merged": 7}, {"merged": {"checkpoint": 5}}]
    for data in kept:
        agent.checkpoint("mine", data=data)
    told(retry, "more", cart=["lamp"])
    repo.session("s").export(tmp_path / "s.jsonl")
    brought = repo.import_(tmp_path / "s.jsonl", session="there").session
    there = repo.wrap(state_graph(), brought.session_name, branch="main")
    assert [p.metadata["data"] for p in there.session.log(name="mine", branch=there.branch_id)] == kept[::-1]
    plan = there.merge("retry", dry_run=True)
    assert (plan.base, plan.conflicts, len(plan.messages)) == ("retry#3", [], 2)
    there.merge("retry")
    assert there.state["cart"] == ["chair", "sofa", "lamp"]
    repo.session("there").export(tmp_path / "main.jsonl", branch="main")
    alone = repo.import_(tmp_path / "main.jsonl", session="alone").session
    assert repo.wrap(state_graph(), alone.session_name).merge("main#3", dry_run=True).base == "main#3"
