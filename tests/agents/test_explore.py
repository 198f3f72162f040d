"""Exploration of the same steps with several choices, from shared prefixes and in one world."""

import asyncio
import json
import threading

import processes
import pytest
from chains import chain
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import MessagesState
from langgraph.types import Command
from scripted import World, agent_graph, call, calls, scripted, tool_node_graph
from shelves import shelf_in

import agentgit
from agentgit import (
    Conflict,
    Fenced,
    InvalidInput,
    NotFound,
    RollbackBlocked,
    RollbackIncomplete,
    WorldDiverged,
    reversible,
)
from agentgit.demo import ScriptedModel


def said(messages) -> list[str]:
    return [str(m.content) for m in messages if isinstance(m, HumanMessage)]


class Counting:
    """A model that records its calls, and calls a tool if the user names one, as in `add chair`."""

    def __init__(self, usage: int | None = None) -> None:
        self.asked: list[str] = []
        self.usage = usage
        self.broken: dict[str, Exception] = {}

    def __call__(self, messages) -> AIMessage:
        text = said(messages)[-1]
        self.asked.append(text)
        if text in self.broken:
            raise self.broken[text]
        name, _, item = text.partition(" ")
        if item and messages[-1].type == "human":
            return calls(call(name, **{"text" if name in ("send", "note") else "item": item}))
        used = {"input_tokens": self.usage, "output_tokens": 0, "total_tokens": self.usage} if self.usage else None
        return AIMessage(f"did {text}", usage_metadata=used)

    def model(self) -> ScriptedModel:
        return ScriptedModel(rule=self)


def agent_on(repo, world: World, counting: Counting, *, build=tool_node_graph, effects=None, **how):
    graph = build(counting.model(), world.tools())
    return repo.wrap(graph, session="s", effects=world.effects() if effects is None else effects, **how)


@pytest.fixture
def counting():
    return Counting()


@pytest.fixture
def agent(repo, world, counting):
    return agent_on(repo, world, counting)


def turns(choices: int, steps: int) -> int:
    return sum(choices**i for i in range(1, steps + 1))


# -- number of calls


SIZES = [(1, 1), (1, 3), (2, 1), (2, 3), (3, 2), (4, 3)]


# The kind of graph changes what a turn is but not the number of turns, so two sizes are enough for agent_graph.
@pytest.mark.parametrize(
    ("build", "choices", "steps"),
    [*((tool_node_graph, *size) for size in SIZES), (agent_graph, 1, 3), (agent_graph, 2, 2)],
)
def test_model_calls_equal_the_sum_of_the_choices(repo, world, build, choices, steps):
    """N steps with α choices make α + α² + … + αⁿ model calls and αⁿ leaves with n turns each."""
    counting = Counting(usage=10)
    agent = agent_on(repo, world, counting, build=build)
    agent.run("hello")
    counting.asked.clear()
    found = agent.explore([f"step{n}" for n in range(steps)], choices)
    assert len(counting.asked) == len(found.branches) == turns(choices, steps)
    assert (len(found.leaves), found.tokens) == (choices**steps, 10 * turns(choices, steps))
    assert {len(leaf.messages) for leaf in found.leaves} == {2 * steps}


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["hi", "add a", "add b", "note c", "look"]), min_size=1, max_size=3), data=st.data()
)
def test_each_leaf_is_scored_in_its_world_and_the_world_is_restored(steps, data):
    choices = data.draw(st.integers(1, 3))
    world, counting = World(), Counting()
    with agentgit.open(":memory:") as repo:
        agent = agent_on(repo, world, counting)
        agent.run("add first")
        before = list(world.items)
        seen: list[list[str]] = []  # sorted, because the undo of one of two equal items removes the first one
        found = agent.explore(steps, choices, score=lambda leaf: seen.append(sorted(world.items)) or 0)
        own = [step.removeprefix("add ") for step in steps if step.startswith("add ")]
        assert seen == [sorted([*before, *own])] * choices ** len(steps)
        assert world.items == before
        for number, step in enumerate(steps, 1):
            if step.startswith("add "):
                at_least = choices**number
                assert world.happened("add").count({"item": step.removeprefix("add ")}) >= at_least
        assert len(world.happened("add")) == 1 + sum(
            choices**n for n, step in enumerate(steps, 1) if step.startswith("add ")
        ), "nothing is done again on the way from leaf to leaf"
        assert len(found.branches) == turns(choices, len(steps))
        assert agent.run("hi") == "did hi"


# -- one world


def test_sibling_effects_are_reversed_before_the_next_branch_runs(agent, world):
    agent.run("add table")
    head, history = agent.head.id, agent.history()
    current: set[int | None] = set()
    worlds: dict[str, list[str]] = {}

    def look(leaf) -> float:
        current.add(agent.session.info.current_internal_session_id)
        worlds[leaf.name] = list(world.items)
        return len(leaf.tool_calls)

    found = agent.explore(2, ["add chair", "hello"], score=look)
    assert worlds == {
        "explore/1/1": ["table", "chair", "chair"],
        "explore/1/2": ["table", "chair"],
        "explore/2/1": ["table", "chair"],
        "explore/2/2": ["table"],
    }
    assert found.best.name == "explore/1/1"
    assert [c.args["item"] for c in found.best.tool_calls] == ["chair", "chair"]
    assert world.items == ["table"]
    assert len(world.undone) == 3
    assert current == {agent.branch_id}
    assert (agent.head.id, agent.history(), agent.branch.is_current) == (head, history, True)
    assert agent.run("add lamp") == "did add lamp"


def test_an_irreversible_call_stops_the_exploration_without_loss(agent, world, counting):
    ways = ["send mail", "hello"]
    with pytest.raises(RollbackBlocked, match="cannot be undone") as stopped:
        agent.explore(1, ways)
    assert "name='explore'" in stopped.value.__notes__[0]
    found = agent.exploration()
    assert [(b.name, b.status) for b in found.branches] == [("explore/1", "done"), ("explore/2", "begun")]
    assert counting.asked == ["send mail"] * 2
    assert agent.branch.is_current

    agent = agent.switch("explore/2", sync="world", force=True)
    agent = agent.switch("main", sync="world", force=True)
    found = agent.explore(1, ways, name="explore")
    assert [(b.name, b.status) for b in found.branches] == [("explore/1", "done"), ("explore/2", "done")]
    assert counting.asked == ["send mail", "send mail", "hello"]
    assert world.sent == ["mail"]


def test_an_exploration_stopped_by_a_failed_undo_can_be_resumed(repo, agent, world):
    world.broken.add("chair")
    with pytest.raises(RollbackIncomplete) as stopped:
        agent.explore(["add chair"], 2)
    world.broken.clear()
    repo.resume(stopped.value.operation)
    found = agent.explore(["add chair"], 2, name="explore")
    assert [b.status for b in found.branches] == ["done", "done"]
    assert world.happened("add") == [{"item": "chair"}] * 2
    assert world.items == []


def test_only_a_graph_whose_tools_read_explores_a_diverged_world(repo, agent, world, counting):
    """It would reverse the effects of another branch."""
    agent.run("hello")
    agent.fork(name="other").run("add chair")
    with pytest.raises(WorldDiverged, match="sync='world'"):
        agent.explore(["hello"])
    assert [b.name for b in agent.session.branches()] == ["main", "other"]
    reader = repo.wrap(tool_node_graph(counting.model(), [world.tool("look")]), "s", effects={"look": "read_only"})
    assert len(reader.fork("main#1").explore(["hello"]).leaves) == 2
    assert world.items == ["chair"]
    assert len(agent.switch("main", sync="world").explore(["hello"]).leaves) == 2


# -- concurrent branches


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_branches_run_concurrently_if_no_tool_changes_the_world(repo, is_async):
    meet = threading.Barrier(2, timeout=60)

    @tool
    def note(text: str) -> str:
        """Wait for the other branch."""
        meet.wait()
        return text

    agent = repo.wrap(tool_node_graph(Counting().model(), [note]), "s")
    how = (["note a", "note b"], 2)
    found = asyncio.run(agent.aexplore(*how, parallel=2)) if is_async else agent.explore(*how, parallel=2)
    assert [leaf.name for leaf in found.leaves] == ["explore/1/1", "explore/1/2", "explore/2/1", "explore/2/2"]
    assert {leaf.answer for leaf in found.leaves} == {"did note b"}
    assert found.undeclared == ["note"]
    assert "not declared, so not reversed: note" in str(found)


async def test_aexplore_runs_async_tools_and_undo_on_the_callers_loop(repo, world, counting):
    loop = asyncio.get_running_loop()

    async def remove(args, result):
        assert asyncio.get_running_loop() is loop
        world.remove(args, result)

    async def score(leaf) -> float:
        assert asyncio.get_running_loop() is loop
        return -len(leaf.tool_calls)

    agent = agent_on(repo, world, counting, effects=world.effects(add_later=reversible(remove)))
    found = await agent.aexplore(2, ["add_later chair", "hello"], score=score)
    assert len(world.happened("add_later")) == 3
    assert world.items == []
    assert found.best.name == "explore/2/2"
    assert (await agent.apromote("explore/1")).branch.name == "explore/1"
    assert world.items == ["chair"]
    assert (await agent.aexploration()).to_dict() == found.to_dict() | {
        "branches": [b.to_dict() for b in agent.exploration().branches]
    }


# -- interrupted explorations


@pytest.mark.parametrize("error", [RuntimeError("no answer"), Fenced("it stands already")], ids=["tool", "agentgit"])
def test_a_failed_turn_is_a_leaf_and_is_retried(repo, error):
    counting, ways = Counting(), ["bad", "good"]
    agent = repo.wrap(tool_node_graph(counting.model(), World().tools()), "s")
    counting.broken["bad"] = error
    found = agent.explore(2, ways)
    assert [(leaf.name, leaf.status) for leaf in found.leaves] == [
        ("explore/1", "failed"), ("explore/2/1", "failed"), ("explore/2/2", "done"),
    ]  # fmt: skip
    assert found.leaves[0].error == f"{type(error).__name__}: {error}"
    assert "failed" in str(found)

    counting.broken.clear()
    counting.asked.clear()
    found = agent.explore(2, ways, name="explore")
    assert [leaf.status for leaf in found.leaves] == ["done"] * 4
    assert sorted(counting.asked) == ["bad", "bad", "bad", "good"]
    assert [len(leaf.messages) for leaf in found.leaves] == [4] * 4


KILLED = """
import os
import agentgit, shelf
from test_explore import Counting, tool_node_graph
agent = agentgit.open("agentgit.db").wrap(tool_node_graph(Counting().model(), [shelf.put]), "s")
agent.explore(["put a", "put b"], 2, score=lambda leaf: os._exit(9) if leaf.name == "explore/2/1" else 0)
"""


@pytest.mark.long
def test_an_exploration_can_be_finished_after_a_kill(tmp_path, counting):
    with shelf_in(tmp_path) as shelf, agentgit.open(tmp_path / "agentgit.db") as repo:
        done = processes.run(KILLED, cwd=tmp_path)
        assert done.returncode == 9, done.stderr
        assert shelf.items() == ["a", "b"]
        agent = repo.wrap(tool_node_graph(counting.model(), [shelf.put]), "s")
        assert agent.branch.name == "main"
        found = agent.explore(["put a", "put b"], 2, name="explore", score=lambda leaf: len(shelf.items()))
        assert [leaf.score for leaf in found.leaves] == [0, 0, 2, 2]
        assert counting.asked == ["put b", "put b"]
        assert shelf.items() == []


def test_an_interrupt_is_a_leaf_and_its_answers_are_choices(repo, world):
    undo = reversible(lambda args, result: world.remove(args, result) if result != "not approved" else None)
    model = scripted(call("add_if_approved", item="chair"), "done", "bye")

    def wrapped(**how):
        effects = world.effects(add_if_approved=undo)
        return repo.wrap(tool_node_graph(model, world.tools()), "s", effects=effects, **how)

    agent = wrapped()
    found = agent.explore(["a chair", "bye"], 1)
    assert [(leaf.name, leaf.status) for leaf in found.leaves] == [("explore/1", "waiting")]
    waiting = agent.fork(name="asked")
    waiting.invoke({"messages": [("user", "a chair")]})
    answers = waiting.explore(1, [Command(resume="yes"), Command(resume="no")], name="answers")
    assert [(leaf.answer, len(leaf.tool_calls)) for leaf in answers.leaves] == [("done", 1), ("done", 1)]
    assert world.happened("add_if_approved") == [{"item": "chair"}]
    assert world.items == []

    assert [leaf.status for leaf in agent.explore(["a chair", "bye"], 1, name="explore").leaves] == ["waiting"]
    wrapped(branch="explore/1").invoke(Command(resume="yes"))
    found = agent.explore(["a chair", "bye"], 1, name="explore")
    assert [(leaf.name, leaf.status, leaf.answer) for leaf in found.leaves] == [("explore/1/1", "done", "bye")]


# -- forms of steps and choices


def test_choices_can_be_configs(repo):
    def answer(state: MessagesState, config: RunnableConfig):
        return {"messages": [("ai", config["configurable"]["tone"] + config["metadata"]["of"])]}

    agent = repo.wrap(chain(answer), "s")
    tones = [{"configurable": {"tone": tone}} for tone in ("warm", "cold")]
    found = agent.explore("hi", tones, config={"metadata": {"of": "!"}})
    assert [leaf.answer for leaf in found.leaves] == ["warm!", "cold!"]


def test_choices_can_be_functions_and_inputs_of_any_kind(agent):
    found = agent.explore(["a", "b"], [lambda step: f"please {step}", str.upper])
    assert [m["content"] for m in found.leaves[1].messages if m["role"] == "user"] == ["please a", "B"]
    found = agent.explore(2, [lambda number: f"step{number}"])
    assert found.leaves[0].answer == "did step2"
    pair = {"messages": [HumanMessage("one"), HumanMessage("two")]}
    (leaf,) = agent.explore(2, [pair]).leaves
    assert [m["content"] for m in leaf.messages if m["role"] == "user"] == ["one", "two"] * 2
    assert [message.id for message in pair["messages"]] == [None, None]


def test_invalid_arguments_make_no_branch(agent):
    for steps, choices in [
        (3, 2), (0, ["a"]), ([], 2), (["a"], 0), (["a"], []), (["a"], "ab"), (["a"], ["b"]), (["a"], True), (None, 2),
    ]:  # fmt: skip
        with pytest.raises(InvalidInput):
            agent.explore(steps, choices)
    for how, why in [
        ({"name": "a#1"}, "cannot be called"),
        ({"parallel": -1}, "parallel must be 0 or more"),
        ({"parallel": True}, "change the world: .*send"),
    ]:
        with pytest.raises(InvalidInput, match=why):
            agent.explore(["hello"], **how)
    assert [branch.name for branch in agent.session.branches()] == ["main"]


def test_a_score_is_a_number(agent):
    with pytest.raises(InvalidInput, match="not a number"):
        agent.explore(["a"], score=lambda leaf: float("nan"))


def test_a_name_belongs_to_one_exploration(agent):
    with pytest.raises(NotFound, match="has no exploration yet"):
        agent.exploration()
    with pytest.raises(NotFound):
        agent.exploration("other")
    assert (agent.explore(["a"]).name, agent.explore(["a"]).name) == ("explore", "explore-2")
    assert agent.exploration().name == "explore-2"
    with pytest.raises(Conflict, match="with 'a', not with 'b'"):
        agent.explore(["b"], name="explore")
    with pytest.raises(Conflict, match="from another branch"):
        agent.fork().explore(["a"], name="explore")
    agent.fork(name="mine/1")
    with pytest.raises(Conflict, match="Choose another name"):
        agent.explore(["a"], name="mine")


def test_an_exploration_continues_from_its_original_point(repo, agent):
    agent.explore(1, ["a", "b"])
    agent.run("on")
    repo.wrap(tool_node_graph(Counting().model(), []), "s", branch="explore/1").run("aside")
    found = agent.explore(2, ["a", "b"], name="explore")
    assert [[m["content"] for m in leaf.messages if m["role"] == "user"] for leaf in found.leaves] == [
        ["a", "a"], ["a", "b"], ["b", "a"], ["b", "b"],
    ]  # fmt: skip
    assert said(agent.messages()) == ["on"]


def test_effects_on_a_promoted_branch_are_not_reversed(repo, agent, world, counting):
    """Those of its own turns are, but not later ones."""
    found = agent.explore(1, ["add chair", "hello"])
    promoted = agent_on(repo, world, counting).promote(found.leaves[0])
    assert (promoted.branch.name, promoted.branch.is_current) == ("explore/1", True)
    assert [str(item.invocation) for item in promoted.report.redone] == ["add(item='chair')"]
    assert len(agent.explore(2, ["add chair", "hello"], name="explore").leaves) == 4
    promoted.promote(found.leaves[0]).run("add lamp")
    with pytest.raises(WorldDiverged, match="lamp"):
        agent.explore(3, ["add chair", "hello"], name="explore")
    assert world.items == ["chair", "lamp"]


def test_a_stale_agent_still_conflicts_after_exploring(repo, world, counting):
    agent, other = (agent_on(repo, world, counting) for _ in range(2))
    other.run("hello")
    agent.explore(["add chair"], 1)
    with pytest.raises(Conflict, match="has moved"):
        agent.run("hi")


def test_a_running_agent_cannot_explore(repo, agent):
    refused = []

    @tool
    def note(text: str) -> str:
        """Try to explore."""
        with pytest.raises(Conflict, match="is running") as error:
            agent.explore(["a"])
        refused.append(error)
        return text

    agent = repo.wrap(tool_node_graph(Counting().model(), [note]), "s")
    agent.run("note now")
    assert len(refused) == 1


# -- results


def test_leaves_are_compared_best_first(repo, agent, counting):
    counting.usage = 10
    agent.run("hello")
    found = agent.explore(2, ["add chair", "hi"], score=lambda leaf: len(leaf.tool_calls) / 2)
    assert found.tokens == 10 * turns(2, 2)
    assert [(row["branch"], row["score"], row["tokens"]) for row in found.compare()] == [
        ("explore/1/1", 1.0, 20), ("explore/1/2", 0.5, 20), ("explore/2/1", 0.5, 20), ("explore/2/2", 0.0, 20),
    ]  # fmt: skip
    assert str(found) == "\n".join([
        "explore, from main: 6 turns, 4 leaves, 60 tokens",
        "  explore/1/1  score 1    20 tokens  2 calls  did add chair",
        "  explore/1/2  score 0.5  20 tokens  1 call   did hi",
        "  explore/2/1  score 0.5  20 tokens  1 call   did add chair",
        "  explore/2/2  score 0    20 tokens           did hi",
    ])  # fmt: skip
    assert json.loads(json.dumps(found.to_dict()["branches"][0]["choices"])) == [1]
    pair = repo.session().diff("explore/1/1", "explore/1/2")
    assert (len(pair.removed_calls), len(pair.added_calls)) == (1, 0)
    with pytest.raises(NotFound, match="has a score"):
        _ = agent.explore(["hi"]).best


def test_the_branch_that_explores_an_empty_session_does_not_begin_after_a_turn(repo):
    agent = repo.wrap(tool_node_graph(Counting().model(), []), "empty")
    agent.explore(["hello"], 2)
    assert agent.session.log(branch=agent.branch_id).get("main#1").metadata["kind"] == "branch"
