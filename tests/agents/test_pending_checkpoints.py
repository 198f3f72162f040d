"""A checkpoint keeps the questions and answers that existed when it was made, whatever happens later."""

import operator
import os
import signal
from functools import partial
from typing import Annotated, TypedDict

import backend
import processes
import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from scripted import World, agent_graph, call, calls, scripted

import agentgit
from agentgit import Conflict
from agentgit.checkpoints.retention import Retention


class Log(TypedDict):
    """A state with a log that only grows."""

    log: Annotated[list, operator.add]


NAMES = ("a", "b", "c")


def ask(name, ran, dies=""):
    """Ask, and record in `ran` that the node has completed; the node named `dies` then kills its process."""
    answer = interrupt(name)
    ran.append(name)
    if name == dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"log": [f"{name}={answer}"]}


def parallel(ran, *, dies=""):
    """Compile a graph of three parallel nodes that ask."""
    builder = StateGraph(Log)
    for name in NAMES:
        node = partial(lambda name, state: ask(name, ran, dies), name)
        builder.add_node(name, node).add_edge(START, name).add_edge(name, END)
    return builder.compile()


def sent(ran):
    """Compile the same graph with one node that receives three Sends."""
    builder = StateGraph(Log).add_node("ask", lambda given: ask(given["name"], ran))
    builder.add_conditional_edges(START, lambda state: [Send("ask", {"name": name}) for name in NAMES], ["ask"])
    return builder.add_edge("ask", END).compile()


def below(ran):
    """Compile the same graph with each node in its own subgraph, after a step that completes before the question."""

    def inner(name):
        builder = StateGraph(Log).add_node("before", lambda state: ran.append(f"before {name}"))
        builder.add_node(name, lambda state: ask(name, ran))
        return builder.add_edge(START, "before").add_edge("before", name).add_edge(name, END).compile()

    builder = StateGraph(Log)
    for name in NAMES:
        builder.add_node(f"sub_{name}", inner(name)).add_edge(START, f"sub_{name}").add_edge(f"sub_{name}", END)
    return builder.compile()


GRAPHS = {"nodes": parallel, "Send": sent, "subgraphs": below}


def waiting(agent):
    """Return the ids of the open questions, by their values."""
    live = {}
    for one in agent.get_state().tasks:
        if one.result is None or not one.result:
            live.update((question.value, question.id) for question in one.interrupts)
    return live


def answer(agent, **answers):
    asked = waiting(agent)
    return agent.invoke(Command(resume={asked[name]: value for name, value in answers.items()}))


@pytest.fixture(params=GRAPHS)
def kind(request):
    return GRAPHS[request.param]


def begun(repo, kind, session="s"):
    """Ask three questions, answer one, and return the agent, the checkpoint and the record of completed nodes."""
    ran = []
    agent = repo.wrap(kind(ran), session)
    agent.invoke({"log": []})
    assert set(waiting(agent)) == set(NAMES)
    answer(agent, a=1)
    assert set(waiting(agent)) == {"b", "c"}
    return agent, agent.checkpoint("half"), ran


PARTS = [(("b", "c"), ("a",)), pytest.param((("a",), ("b",), ("c",)), marks=pytest.mark.long)]


@pytest.mark.parametrize("parts", PARTS)
def test_each_checkpoint_within_a_step_is_restored_exactly(repo, kind, parts):
    """LangGraph's view of each checkpoint between the answers is the same whenever it is restored; only nodes whose
    question was open run.
    """
    ran = []
    agent = repo.wrap(kind(ran), "s")
    agent.invoke({"log": []})
    views = {}
    for number, names in enumerate(((), *parts)):
        if names:
            answer(agent, **{name: f"{number}{name}" for name in names})
        views[f"m{number}"] = seen(agent)
        agent.checkpoint(f"m{number}")
    agent.invoke({"log": ["on"]})
    for name in reversed(views):
        back = agent.rollback(name)
        assert seen(back) == views[name]
        again = back.rollback("HEAD")  # a branch of the new branch, before that has run
        assert seen(again) == views[name]
        rest = waiting(again)
        if rest:
            del ran[:]
            done = answer(again, **dict.fromkeys(rest, "new"))["log"]
            told = {one.split("=")[0]: one.split("=")[1] for one in done}
            given = {n: f"{at}{n}" for at, names in enumerate(((), *parts)) for n in names if at <= int(name[1:])}
            assert told == {**dict.fromkeys(rest, "new"), **given}
            assert sorted(ran) == sorted(rest)
    assert agent.rollback("main#1").get_state().interrupts == ()  # made before the step that asks
    assert not repo.maintenance.fsck(level=3).findings


def seen(agent):
    """Return LangGraph's view of an agent's current state, without the thread id."""
    return plain(agent.get_state(subgraphs=True))


def plain(state):
    """Return a state and the states of its subgraphs, without configs."""
    tasks = [
        (t.id, t.name, t.path, t.error, t.interrupts, plain(t.state) if hasattr(t.state, "values") else None, t.result)
        for t in state.tasks
    ]
    return state.values, state.next, state.interrupts, tasks


def test_a_diff_within_a_step_shows_the_answer(repo, kind):
    ran = []
    agent = repo.wrap(kind(ran), "s")
    agent.invoke({"log": []})
    none = agent.checkpoint("none")
    answer(agent, a="yes")
    one = agent.checkpoint("one")
    answer(agent, b=2, c=3)
    found = repo.session("s").diff("none", "one")
    assert not found.is_empty
    text = str(found)
    assert "- 'a'; waits for an answer" in text
    assert "+ 'a'; done" in text
    assert "a=yes" in text
    assert "'b'" not in "\n".join(line for sign, line in found.lines() if not sign)
    assert repo.session("s").diff("one", "one").is_empty
    assert not agentgit.diff(none, one).is_empty
    back = agent.rollback("one")
    assert repo.session("s").diff("one", back.head).is_empty


def test_a_repeated_question_is_restored_with_its_earlier_answers(repo):
    """A node that repeats its question continues with the answers of the restored checkpoint (#6663)."""
    asked = []

    def ask(state):
        while True:
            age = interrupt("age?")
            asked.append(age)
            if age > 0:
                return {"log": [age]}

    builder = StateGraph(Log).add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)
    agent = repo.wrap(builder.compile(), "s")
    agent.invoke({"log": []})
    agent.checkpoint("asked")
    agent.invoke(Command(resume=-1))
    agent.checkpoint("again")
    agent.invoke(Command(resume=-2))
    agent.checkpoint("thrice")
    assert agent.invoke(Command(resume=30))["log"] == [30]
    repo.maintenance.gc()
    assert "answered -1" in str(repo.session("s").diff("asked", "again"))
    assert "answered -1, -2" in str(repo.session("s").diff("again", "thrice"))
    for name, before in (("thrice", [-1, -2]), ("again", [-1]), ("asked", [])):
        back = agent.rollback(name)
        del asked[:]
        assert back.invoke(Command(resume=7))["log"] == [7]
        assert asked == [*before, 7]


def test_a_half_failed_step_is_restored_half_done(repo):
    ran, broken = [], {"a", "b"}

    def node(name):
        def run(state):
            ran.append(name)
            if name in broken:
                raise RuntimeError(name)
            return {"log": [name]}

        return run

    builder = StateGraph(Log)
    for name in "ab":
        builder.add_node(name, node(name)).add_edge(START, name).add_edge(name, END)
    agent = repo.wrap(builder.compile(), "s")
    for mended in ("a", "b"):
        with pytest.raises(RuntimeError):
            agent.invoke({"log": []} if mended == "a" else None)
        agent.checkpoint(f"before {mended}")
        broken.discard(mended)
    assert agent.invoke(None)["log"] == ["a", "b"]
    for name, runs in (("before b", ["b"]), ("before a", ["a", "b"])):
        back = agent.rollback(name)
        del ran[:]
        assert sorted(back.invoke(None)["log"]) == ["a", "b"]
        assert sorted(ran) == runs


def test_the_functional_api_restores_tasks_and_answers(repo):
    ran = []

    @task
    def step(name):
        ran.append(name)
        return name

    @entrypoint()
    def flow(given):
        first = step("one").result()
        a = interrupt("a")
        second = step("two").result()
        return [first, a, second, interrupt("b"), step("three").result()]

    agent = repo.wrap(flow, "s")
    agent.invoke("go")
    agent.checkpoint("at a")
    agent.invoke(Command(resume=1))
    agent.checkpoint("at b")
    agent.invoke(Command(resume=2))
    for name, given, runs in (
        ("at b", [9], ["three"]), ("at a", [8, 9], ["two", "three"])
    ):  # fmt: skip
        back = agent.rollback(name)
        del ran[:]
        for value in given:
            answered = back.invoke(Command(resume=value))
        assert answered == ["one", 8 if len(given) == 2 else 1, "two", 9, "three"]
        assert ran == runs
    assert "'b'" in str(repo.session("s").diff("at a", "at b"))


@pytest.mark.each_value_once
@pytest.mark.parametrize("way", ["fork", "template", "export", "export of a point", "export of a branch"])
def test_fork_and_template_continue_a_half_answered_step_and_an_import_shows_it(repo, kind, way, tmp_path):
    agent, _, ran = begun(repo, kind)
    view = seen(agent)
    answer(agent, b=2)
    agent.checkpoint("more")
    answer(agent, c=3)
    agent.invoke({"log": ["on"]})
    if way == "fork":
        back = agent.fork("half")
    elif way == "template":
        back = repo.wrap(kind(ran), "other", template="s@half")
    else:
        points = {point.checkpoint_name: point for point in agent.checkpoints()}
        side = agent.fork("more", name="side")
        part = {"export of a point": {"checkpoint": points["half"]}, "export of a branch": {"branch": "side"}}.get(
            way, {}
        )
        repo.session("s").export(tmp_path / "s.jsonl", **part)
        repo.import_(tmp_path / "s.jsonl", session="other")
        repo.maintenance.gc()
        assert side.get_state().next
        back = repo.wrap(kind(ran), "other").rollback("half")
    assert seen(back) == view
    del ran[:]
    if "export" in way:  # what waits in a file never goes on
        with pytest.raises(Conflict, match="imported"):
            answer(back, b=5, c=6)
        assert ran == []
    else:
        assert answer(back, b=5, c=6)["log"] == ["a=1", "b=5", "c=6"]
        assert sorted(ran) == ["b", "c"]
    assert not repo.maintenance.fsck(level=3).findings


def test_gc_and_retention_keep_pending_data_of_a_checkpoint(repo, kind):
    agent, point, _ = begun(repo, kind)
    view = seen(agent)
    answer(agent, b=2, c=3)
    for number in range(3):
        agent.invoke({"log": [number]})
    assert repo.maintenance.gc(dry_run=True).values == repo.maintenance.gc().values
    repo.session("s").retention.set(Retention(keep_last=1, max_checkpoints=2))
    repo.maintenance.gc()
    assert not repo.maintenance.fsck(level=3).findings
    assert seen(agent.rollback(point)) == view


@pytest.mark.long
def test_a_checkpoint_in_a_batch_keeps_the_calls_done_by_then(repo):
    world = World()
    model = scripted(calls(*(call("add_if_approved", f"c{n}", item=f"item{n}") for n in range(3))), "done", "done")
    agent = repo.wrap(agent_graph(model, world.tools()), "s", effects=world.effects())
    agent.invoke({"messages": [("user", "go")]})
    ids = {question.value["add"]: question.id for question in agent.get_state().interrupts}
    agent.invoke(Command(resume={ids["item1"]: "yes"}))
    agent.checkpoint("half")
    agent.invoke(Command(resume={ids["item0"]: "yes", ids["item2"]: "yes"}))
    assert sorted(world.items) == ["item0", "item1", "item2"]
    plan = agent.plan_rollback("half")
    assert sorted(step.invocation.args["item"] for step in plan.reversals) == ["item0", "item2"]
    back = agent.rollback("half")
    assert world.items == ["item1"]
    assert [one.args["item"] for one in back.tool_track()] == ["item1"]
    back.invoke(Command(resume={ids["item0"]: "yes", ids["item2"]: "no"}))
    assert (sorted(world.items), len(world.happened("add_if_approved"))) == (["item0", "item1"], 4)
    assert not repo.maintenance.fsck(level=3).findings


def test_fsck_reports_damaged_pending_writes_of_a_checkpoint(repo, kind):
    agent, point, _ = begun(repo, kind)
    for damage in (b"x", b'[["","x",[["t",0,"","log","zz"]]]]', b'[["","x",[["t",0,"","log","' + b"00" * 32 + b'"]]]]'):
        backend.change(repo, "checkpoint", point.id, pending=damage)
        assert f"checkpoint {point.id}" in {one.row for one in repo.maintenance.fsck(level=1).findings}
    backend.change(repo, "checkpoint", point.id, pending=b"x")
    with pytest.raises(agentgit.Corrupt):
        agent.rollback(point)
    assert len(repo.session("s").branches()) == 1


KILLED = """
import sys
import agentgit
from test_pending_checkpoints import answer, parallel
with agentgit.open(sys.argv[1]) as repo:
    agent = repo.wrap(parallel([]), "s")
    agent.invoke({"log": []})
    answer(agent, a=1)
    agent.checkpoint("half")
    answer(repo.wrap(parallel([], dies=sys.argv[2]), "s"), b=2, c=3)
"""


@pytest.mark.long
@pytest.mark.parametrize("dies", ["b", "c"])
def test_a_half_answered_step_survives_kill_9(dies, tmp_path):
    path = tmp_path / "agentgit.db"
    assert processes.run(KILLED, path, dies).returncode == -signal.SIGKILL
    with agentgit.open(path) as repo:
        ran = []
        agent = repo.wrap(parallel(ran), "s")
        back = agent.rollback("half")
        assert set(waiting(back)) == {"b", "c"}
        assert answer(back, b=5, c=6)["log"] == ["a=1", "b=5", "c=6"]
        assert sorted(ran) == ["b", "c"]
        assert not repo.maintenance.fsck(level=3).findings


def test_fork_and_undo_include_answers_after_the_last_checkpoint(repo, kind):
    agent, _, _ = begun(repo, kind)
    answer(agent, b=2)
    assert set(waiting(agent.fork())) == {"c"}
    agent.checkpoint("more")
    answer(agent, c=3)
    assert set(waiting(agent.undo())) == {"c"}
    assert set(waiting(agent.undo(2))) == {"b", "c"}
