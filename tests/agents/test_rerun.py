"""A rerun puts the recorded inputs of a branch into a graph again, and no tool acts on the world."""

import asyncio
import contextlib
import operator
import signal
from typing import Annotated, TypedDict

import faults
import points
import pytest
from chains import replying
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from payment_graphs import ASYNC, SHAPES, Ledger, exit_code, pay_of
from scripted import GRAPHS, call, calls, obedient, say, scripted, tool_node_graph

import agentgit
from agentgit import (
    Conflict,
    InvalidInput,
    PromptChanged,
    RerunDiverged,
    RollbackBlocked,
    RollbackIncomplete,
    Simulated,
    effect,
)
from agentgit.demo import ScriptedModel
from agentgit.testing import RecordedModel

OWN_IDS = ("in_a_called_graph", "in_a_graph_without_memory", "in_a_tool", "with_middleware")
"""The graphs in which messages get random ids from a graph that the node's code calls, or from the model."""

AT_ONCE = ("in_workers", "in_tasks", "in_threads_of_a_node")
"""The graphs whose equal calls run at the same time: which of them got which answer, the record does not say."""


class Answers(TypedDict):
    answers: Annotated[list[str], operator.add]


@pytest.fixture
def agent(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    return agent


def said(text):
    return {"messages": [HumanMessage(text)]}


# -- what is answered from the record


@pytest.mark.parametrize("shape", SHAPES)
def test_every_way_of_calling_a_tool_is_answered_from_the_record(repo, tmp_path, shape):
    ledger = Ledger(tmp_path / "ledger")
    agent = repo.wrap(SHAPES[shape](pay_of(ledger)), "s", effects={"pay": effect("irreversible")}, check_effects=False)
    given = "go" if shape == "in_tasks" else said("go")
    if shape in ASYNC:
        asyncio.run(agent.ainvoke(given))
    else:
        agent.invoke(given)
    paid = ledger.lines()
    again = asyncio.run(agent.arerun()) if shape in ASYNC else agent.rerun()
    report = again.report
    assert ledger.lines() == paid
    assert (report.status, report.match_rate, report.reordered) == ("done", 1.0, [])
    if shape not in AT_ONCE:
        assert report.is_same_state
    if shape not in (*OWN_IDS, *AT_ONCE):
        assert again.head.metadata["state_hash"] == agent.head.metadata["state_hash"]


@pytest.mark.parametrize("kind", GRAPHS)
def test_an_unchanged_conversation_of_every_kind_of_graph_proves_itself(repo, world, kind):
    """Reads, batches, errors, undeclared and irreversible tools; with the same model, and with the recorded replies."""
    agent = repo.wrap(GRAPHS[kind](obedient(), world.tools()), "s", effects=world.effects())
    for text in ("add chair; charge 5; add chair", "look", "hello", "note this; send letter"):
        agent.invoke(said(text))
    with pytest.raises(RuntimeError, match="broken"):
        agent.invoke(said("fail broken"))
    agent.invoke(said("add lamp"))
    log, track, head, model = list(world.log), agent.tool_track(), agent.head, RecordedModel(agent)
    recorded = agent.rerun(GRAPHS[kind](model, world.tools()))
    for again in (agent.rerun(), recorded):
        report = again.report
        assert (report.status, report.turns, report.match_rate, report.is_same_state) == ("done", 6, 1.0, True)
        assert {one.status for one in again.tool_track()} == {"simulated"}
        assert [one.result for one in again.tool_track()] == [one.result for one in track]
        assert again.branch.status == "simulated"
    model.check_complete()
    if kind != "functional":  # its code gives the messages of tools random ids
        assert recorded.head.metadata["state_hash"] == head.metadata["state_hash"]
    assert RecordedModel(recorded).remaining == RecordedModel(agent).remaining  # a rerun is recorded like any branch
    assert (world.log, agent.tool_track(), agent.head) == (log, track, head)
    assert repo.session("s").branch().name == "main"
    assert not repo.maintenance.fsck().findings


def asking(*names, question="ok?"):
    def node(name):
        return lambda state: {"answers": [name + str(interrupt(question))]}

    builder = StateGraph(Answers)
    for name in names:
        builder.add_node(name, node(name)).add_edge(START, name)
    return builder.compile()


def test_equal_questions_at_the_same_time_keep_their_answers(repo):
    """A question is found by its text and by the node that asked it, whatever the order of the answers was."""
    agent = repo.wrap(asking("a", "b", "c"), "s")
    agent.invoke({"answers": []})
    a, b, c = (one.id for one in agent.get_state().interrupts)
    agent.invoke(Command(resume={c: " no", a: " yes"}))
    agent.invoke(Command(resume={b: " later"}))
    again = agent.rerun()
    assert again.state["answers"] == ["a yes", "b later", "c no"]
    assert again.report.is_same


def test_equal_questions_of_subgraphs_that_still_wait(repo):
    def inner(name):
        def ask(state):
            return {"answers": [name + interrupt("ok?") + interrupt("sure?")]}

        return StateGraph(Answers).add_node(ask).add_edge(START, "ask").compile()

    builder = StateGraph(Answers)
    for name in ("a", "b"):
        builder.add_node(name, inner(name)).add_edge(START, name)
    agent = repo.wrap(builder.compile(), "s")
    agent.invoke({"answers": []})
    for given in ({"a": " yes", "b": " no"}, {"b": " never"}):
        waiting = {task.name: task.interrupts[0].id for task in agent.get_state().tasks}
        agent.invoke(Command(resume={waiting[name]: answer for name, answer in given.items()}))
    again = agent.rerun()
    assert again.report.is_same
    assert [one.value for one in again.get_state().interrupts] == ["sure?"]
    assert again.get_state().tasks[1].result == agent.get_state().tasks[1].result == {"answers": ["b no never"]}


def test_an_unanswered_question_is_a_miss(repo):
    agent = repo.wrap(asking("a"), "s")
    agent.invoke({"answers": []})
    agent.invoke(Command(resume=" yes"))
    other = asking("a", question="really?")
    report = agent.rerun(other).report
    assert (report.unanswered, report.match_rate, report.is_same) == (["really?"], 0.0, False)
    assert "unanswered: 'really?'" in str(report)
    with pytest.raises(RerunDiverged, match="no answer to the question 'really\\?'") as stopped:
        agent.rerun(other, on_miss="stop")
    assert stopped.value.report.status == "diverged"
    again = agent.rerun(other, on_miss=lambda call: f" {call.tool_name} {call.args['value']}")
    assert again.state["answers"] == ["a interrupt really?"]
    assert [(one.tool_name, one.answered_by) for one in again.report.new] == [("interrupt", "function")]

    async def answer(call):
        return " later"

    assert asyncio.run(agent.arerun(other, on_miss=answer)).state["answers"] == ["a later"]


@pytest.mark.parametrize("kind", ["node", "agent"])
@pytest.mark.parametrize("is_abandoned", [False, True])
def test_a_tool_whose_question_was_left_open_waits_again(repo, world, kind, is_abandoned):
    two = calls(call("add_if_approved", item="chair"), call("add_if_approved", item="table"))

    def graph():
        model = scripted(two, *(["hello"] if is_abandoned else []))
        return tool_node_graph(model, world.tools()) if kind == "node" else create_agent(model, world.tools())

    agent = repo.wrap(graph(), "s", effects=world.effects())
    agent.invoke(say("buy"))
    agent.invoke(Command(resume={agent.get_state().interrupts[0].id: "yes"}))
    assert len(agent.get_state().interrupts) == 1
    if is_abandoned:
        agent.run("never mind", on_question="drop")
    log = list(world.log)
    again = agent.rerun()
    assert (again.report.match_rate, again.report.unanswered) == (1.0, [])
    assert len(again.report.matched) == 2
    assert again.report.is_same_state
    assert [one.value for one in again.get_state().interrupts] == [one.value for one in agent.get_state().interrupts]
    assert world.log == log


def test_a_part_of_a_branch_and_the_path_through_its_ancestors(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    middle = agent.checkpoint("middle")
    agent.run("add table")
    fork = agent.rollback(middle)
    fork.run("add lamp")
    fork.run("add sofa")

    def added(report):
        return [one.args["item"] for one in report.matched]

    assert added(fork.rerun().report) == ["chair", "lamp", "sofa"]
    assert added(fork.rerun(start=middle).report) == ["lamp", "sofa"]
    assert added(agent.rerun(end=middle).report) == ["chair"]
    assert added(fork.rerun(end=middle).report) == ["chair"]
    whole = fork.rerun(start=middle)
    assert [message.content for message in whole.messages()] == [message.content for message in fork.messages()]
    with pytest.raises(InvalidInput, match="must be checkpoints of this branch"):
        agent.rerun(start=fork.head)


# -- policies


def test_policies_by_tool(repo, world):
    """A read-only tool may run, a value and a function stand for any other; nothing else is entered."""
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair; charge 5; look")
    log = list(world.log)
    seen = []

    def charge(asked):
        seen.append((asked.tool_name, asked.args, asked.effect))
        return {"charged": 7}

    class Table:
        """A value that is compared with others one by one."""

        def __eq__(self, other):
            raise ValueError("The truth value of a table is ambiguous.")

        __hash__ = None

        def __str__(self):
            return "a table"

    again = agent.rerun(tools={"look": "live", "add": Table(), "charge": charge})
    results = {message.name: message.content for message in again.messages() if message.type == "tool"}
    assert results == {"add": "a table", "charge": '{"charged": 7}', "look": "chair"}
    assert seen == [("charge", {"amount": 5}, "compensable")]
    assert world.log[len(log) :] == [("look", {})]
    assert sorted(one.answered_by for one in again.report.calls) == ["function", "live", "value"]
    assert again.report.match_rate == 1
    for name in ("add", "charge", "send"):
        with pytest.raises(InvalidInput, match="runs only tools that are declared read_only or state"):
            agent.rerun(tools={name: "live"})
    agent.rerun(tools="live")
    assert world.log[len(log) :] == [("look", {})] * 2


def test_bad_input_makes_no_branch(agent):
    for words, why in [
        ({"tools": "recrod"}, "tools must be 'record'"),
        ({"tools": 5}, "tools must be"),
        ({"tools": {"lok": "live"}}, "names lok, which neither the graph nor the record has"),
        ({"max_calls": -1}, "max_calls must be"),
        ({"max_calls": True}, "max_calls must be"),
        ({"on_miss": "ask"}, "on_miss must be"),
        ({"on_miss": None}, "on_miss must be"),
        ({"config": 5}, "config must be a mapping"),
        ({"graph": "a prompt"}, "compiled LangGraph graph"),
        ({"graph": StateGraph(MessagesState)}, "compiled"),
        ({"start": "HEAD"}, "nothing to run again"),
    ]:
        with pytest.raises(InvalidInput, match=why):
            agent.rerun(**words)
    assert [branch.name for branch in agent.session.branches()] == ["main"]


def test_on_a_miss_the_rerun_stops_or_asks_a_function(agent, world, caplog):
    def other():
        return tool_node_graph(scripted(calls(call("add", item="sofa")), "done"), world.tools())

    with pytest.raises(
        RerunDiverged, match=r"no call add\(item='sofa'\).*nearest recorded call is add\(item='chair'\)"
    ) as e:
        agent.rerun(other(), on_miss="stop")
    assert caplog.text == ""  # LangChain would print a stop in each run of CI if it were an error in a callback
    assert e.value.report.status == "diverged"
    assert e.value.nearest == agent.tool_track()[0].id
    told = agent.rerun(other(), on_miss=lambda asked: f"no {asked.args['item']}")
    assert [message.content for message in told.messages() if message.type == "tool"] == ["no sofa"]
    assert world.items == ["chair"]


# -- bad input


def test_an_input_that_the_new_graph_does_not_take_makes_another_state(repo):
    """A key that the new graph lacks is ignored, as by LangGraph, and the report says that the state differs."""

    class Order(TypedDict):
        item: str

    class Wish(TypedDict):
        wish: str

    def build(schema):
        return StateGraph(schema).add_node("act", lambda state: {}).add_edge(START, "act").compile()

    agent = repo.wrap(build(Order), "s")
    agent.invoke({"item": "chair"})
    report = agent.rerun(build(Wish)).report
    assert (report.status, report.is_same_state, agent.state) == ("done", False, {"item": "chair"})


@pytest.mark.parametrize("way", ["node", "retry", "fallback"])
def test_a_graph_that_catches_errors_does_not_hide_a_changed_prompt(repo, way):
    asked = []

    def answer(messages):
        asked.append(messages)
        return AIMessage("hi")

    def chatting(model, prompt):
        def chat(messages):
            with contextlib.suppress(Exception):
                return model.invoke([SystemMessage(prompt), *messages])
            return "hi"

        return replying(chat)

    agent = repo.wrap(chatting(ScriptedModel(rule=answer), "Be brief."), "s")
    agent.run("one")
    agent.run("two")
    model = RecordedModel(agent)
    if way == "retry":
        model = model.with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    elif way == "fallback":
        model = model.with_fallbacks([ScriptedModel(rule=answer)])
    with pytest.raises(PromptChanged, match="another system prompt") as changed:
        agent.rerun(chatting(model, "Be kind."))
    report = changed.value.report
    assert (report.status, report.turns) == ("diverged", 1)
    assert "has another system prompt than recorded" in report.reason
    assert len(asked) == 2


@pytest.mark.parametrize("options", [{"on_miss": "stop"}, {"max_calls": 5}])
def test_a_rerun_that_stopped_is_not_hidden_by_a_node_that_catches_errors_and_is_not_made_real(agent, world, options):
    add, answers = world.tool("add"), []

    def act(messages):
        for number in range(20):
            with contextlib.suppress(Exception):
                answers.append(add.invoke({"item": f"lamp {number}"}))

    with pytest.raises(RerunDiverged) as stopped:
        agent.rerun(replying(act), effects=world.effects(), **options)
    assert (stopped.value.report.status, len(answers)) == ("diverged", options.get("max_calls", 0))
    with pytest.raises(Simulated, match="did not come to its end: diverged"):
        agent.session.plan_switch("rerun")
    for force in (False, True):
        with pytest.raises(Simulated, match="did not come to its end: diverged"):
            agent.switch("rerun", sync="world", force=force)
    assert world.items == ["chair"]
    assert agent.session.branch("rerun").status == "simulated"


def test_a_model_that_never_stops_reaches_the_limit_of_steps(agent, world):
    number = iter(range(10_000))
    endless = ScriptedModel(rule=lambda messages: calls(call("add", item=f"i{next(number)}")))
    report = agent.rerun(tool_node_graph(endless, world.tools())).report
    assert report.status == "failed"
    assert "GraphRecursionError" in report.reason
    assert world.items == ["chair"]


# -- going on for real


def test_going_on_runs_what_was_simulated_or_refuses(repo, agent, world):
    other = scripted(calls(call("charge", amount=7)), "done")
    again = agent.rerun(tool_node_graph(other, world.tools()), on_miss=lambda asked: {"charged": 7})
    name = again.branch.name
    refused = [
        lambda: again.run("hello"),
        lambda: again.update_state(None, said("x")),
        lambda: again.fork(),
        lambda: again.rerun(),
        lambda: again.explore(["hello"]),
        lambda: again.rollback("HEAD~1"),
        lambda: agent.rollback(again.head),
        lambda: agent.rollback(again.head, conversation=False),
        lambda: agent.switch(name),
        lambda: agent.switch(name, sync="note"),
        lambda: agent.switch(name, sync="ignore"),
        lambda: agent.merge(name),
        lambda: agent.cherry_pick(again.head),
        lambda: repo.wrap(agent.graph, "t", template=f"s@{name}"),
    ]
    for attempt in refused:
        with pytest.raises(Simulated, match="nothing of it happened"):
            attempt()
    assert (world.items, world.charges) == (["chair"], [])
    plan = agent.session.plan_switch(name)
    assert [(step.action, str(step.invocation)) for step in plan.steps] == [
        ("reverse", "add(item='chair')"),
        ("redo", "charge(amount=7)"),
    ]
    real = agent.switch(name, sync="world")
    assert (world.items, world.charges) == ([], [7])
    assert real.branch.status == "open"
    real.run("add lamp")
    assert world.items == ["lamp"]
    back = real.rollback("main#1")
    assert (world.items, world.charges) == ([], [])
    assert back.branch.status == "open"
    assert not repo.maintenance.fsck().findings


def test_a_call_that_was_told_as_not_made_is_not_run_for_real(agent, world):
    """The conversation says that the call was not made, so the switch does not make it."""
    both = scripted(calls(call("add", item="chair"), call("add", item="sofa")), "done")
    again = agent.rerun(tool_node_graph(both, world.tools()))
    assert {one.args["item"]: one.answered_by for one in again.report.calls} == {"chair": "record", "sofa": "told"}
    agent.switch(again.branch.name, sync="world")
    assert world.items == ["chair"]
    track = agent.session.tool_track(branch=again.branch.name)
    sofa = next(one for one in track if one.args["item"] == "sofa")
    assert (sofa.status, sofa.error_message) == ("simulated", "It was not made: the record does not have it.")


def require_refused(repo, agent, point):
    for attempt in (
        lambda: agent.fork(point),
        lambda: agent.merge(point),
        lambda: agent.switch("rerun"),
        lambda: repo.wrap(agent.graph, "t", template=f"s@{point.metadata['reference']}"),
    ):
        with pytest.raises((Simulated, Conflict), match=r"nothing of it happened|was not finished"):
            attempt()


def test_nothing_goes_on_from_a_rerun_that_still_runs(repo, world):
    attempts = []

    def attack(messages):
        if any(branch.name == "rerun" for branch in agent.session.branches()):
            attempts.append(agent.session.checkpoints(branch="rerun")[-1])
            require_refused(repo, agent, attempts[-1])
        return "done"

    agent = repo.wrap(replying(attack), "s")
    agent.run("one")
    agent.run("two")
    assert agent.rerun().report.is_same_state
    assert len(attempts) == 2
    assert [branch.name for branch in agent.session.branches()] == ["main", "rerun"]
    assert agent.session.branch().name == "main"


def test_a_call_that_cannot_be_made_for_real_is_not_skipped(repo, agent, world):
    """Nothing that was simulated is taken for done, so a switch ends only when each call has run, also with `force`."""
    rings = []

    @tool
    def ring(times: int) -> str:
        """Ring a bell."""
        if len(rings) < 2:
            rings.append("broken")
            raise RuntimeError("no bell")
        return "rang"

    other = tool_node_graph(scripted(calls(call("ring", times=2)), "done"), [ring])
    again = agent.rerun(other, tools={"ring": "rang"}, effects={"ring": "idempotent"})
    for one in (agent, again):
        with pytest.raises(RollbackBlocked, match=r"is unknown\. A simulated call cannot be skipped"):
            one.switch("rerun", sync="world", force=True)
    assert again.branch.status == "simulated"
    again = repo.wrap(other, "s", branch="rerun", effects={"ring": "idempotent"})
    with pytest.raises(RollbackIncomplete, match="A simulated call cannot be skipped") as stopped:
        again.switch("rerun", sync="world")
    with pytest.raises(RollbackIncomplete, match="A simulated call cannot be skipped"):
        repo.resume(stopped.value.operation, force=True)
    assert agent.session.branch().name == "main"
    assert agent.session.branch("rerun").status == "partial"
    require_refused(repo, agent, again.head)
    repo.resume(stopped.value.operation, force=True)
    assert agent.session.branch().name == "rerun"
    assert agent.session.branch().status == "open"
    assert not repo.maintenance.fsck().findings


# -- other ways to fail


@pytest.mark.parametrize("moment", ["an intent", "a step", "the end of a turn"])
def test_a_killed_rerun_acts_on_nothing_and_leaves_a_branch_that_nothing_goes_on_from(tmp_path, moment):
    ledger = Ledger(tmp_path / "ledger")
    url = f"sqlite:///{tmp_path / 'agentgit.db'}"

    def open_agent(repo):
        shape = SHAPES["in_a_tool_node"](pay_of(ledger))
        return repo.wrap(shape, "s", effects={"pay": effect("irreversible")}, check_effects=False)

    with agentgit.open(url) as repo:
        for _ in range(3):
            open_agent(repo).invoke(said("go"))
    paid = ledger.lines()
    point = {"an intent": points.RECORD_CALL, "a step": points.SAVE_STATE, "the end of a turn": points.FLUSH_WITH_WORK}

    def run_and_die():
        with agentgit.open(url) as repo:
            agent = open_agent(repo)
            with faults.killed(point[moment], time=2):
                agent.rerun()

    assert exit_code(run_and_die) == -signal.SIGKILL
    assert ledger.lines() == paid
    with agentgit.open(url) as repo:
        agent = open_agent(repo)
        assert {one.name: one.status for one in agent.tree().walk()}["rerun"] == "simulated"
        with pytest.raises(Simulated, match="did not come to its end"):
            agent.switch("rerun", sync="world")
        with pytest.raises(Simulated):
            agent.at("rerun").invoke(said("go"))
        assert agent.session.recover(branch="rerun").status == "simulated"
        assert agent.rerun().report.match_rate == 1
        assert ledger.lines() == paid
        assert not repo.maintenance.fsck().findings


def test_in_an_encrypted_database(tmp_path, world):
    ring = agentgit.Keyring({"one": agentgit.Keyring.new_key()})
    with agentgit.open(tmp_path / "agentgit.db", keyring=ring) as repo:
        agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
        agent.run("add chair; charge 5")
        again = agent.rerun()
        assert again.report.is_same_state
        agent.switch(again.branch.name, sync="world")
        assert (world.items, world.charges) == (["chair"], [5])
        assert not repo.maintenance.fsck().findings
