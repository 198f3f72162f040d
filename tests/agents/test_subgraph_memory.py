"""A branch gives each subgraph the memory that it had at the branch point, so that state and world agree."""

from contextlib import suppress

import pytest
from langchain.agents import create_agent
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from remembering import KINDS, Builder, Outer, build, items
from scripted import node_graph, obedient
from served import THREAD, is_asked

from agentgit import InvalidInput

NEXT = {"turn": "n"}


async def ask(app, is_async, value, config=THREAD):
    return await app.ainvoke(value, config) if is_async else app.invoke(value, config)


async def finish(app, is_async, value, config=THREAD):
    """Run a turn, say yes to each question, and return the questions."""
    answer, questions = await ask(app, is_async, value, config), []
    while is_asked(answer):
        questions += [one.value for one in answer["__interrupt__"]]
        answer = await ask(app, is_async, yes(answer))
    return questions


def yes(answer):
    return Command(resume={one.id: "yes" for one in answer["__interrupt__"]})


def agrees(app, world):
    return items(app.get_state(THREAD).values) == sorted(world.items)


@pytest.mark.each_value_once
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_state_and_world_agree_after_a_run_at_each_point(repo, world, kind, asks, is_async):
    """At each checkpoint of two turns, twice at one, with an input and without."""
    graph, builder = build(kind, world, asks=asks)
    app = repo.graph(graph, effects=builder.effects, confirm="never")
    for turn in "12":
        await finish(app, is_async, {"turn": turn})
        assert agrees(app, world)
    points = list(app.get_state_history(THREAD))
    for point in [*points, points[2]]:
        for value in (NEXT, None):
            await finish(app, is_async, value, point.config)
            assert agrees(app, world), (point.next, value)
    assert repo.maintenance.fsck(3).is_sound


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_at_a_paused_point_asks_the_first_question_again(repo, world, kind):
    graph, builder = build(kind, world, asks=True)
    app = repo.graph(graph, effects=builder.effects)
    await finish(app, False, {"turn": "1"})
    waiting = app.invoke({"turn": "2"}, THREAD)
    paused = app.get_state(THREAD).config
    before = sorted(world.items)
    await finish(app, False, yes(waiting))
    builder.ran.clear()
    answer = app.invoke(None, paused)
    assert answer["__interrupt__"][0].value == waiting["__interrupt__"][0].value
    assert "e-a" in builder.ran or kind == "parallel"
    assert sorted(world.items) == before
    await finish(app, False, yes(answer))
    assert agrees(app, world)


@pytest.mark.parametrize("kind", KINDS)
def test_a_subgraph_runs_again_at_a_point_before_it(repo, world, kind):
    """Between two steps of the second turn, with the memory of the first; the old branch keeps its own memory."""
    graph, builder = build(kind, world)
    app = repo.graph(graph, effects=builder.effects)
    for turn in "12":
        app.invoke({"turn": turn}, THREAD)
    ended = app.get_state(THREAD)
    point = next(one for one in app.get_state_history(THREAD) if one.next and "first2" in one.values["log"])
    while "e-a2" in items(point.values):
        point = app.get_state(point.parent_config)
    builder.ran.clear()
    assert items(app.invoke(None, point.config)) == items(ended.values) == sorted(world.items)
    assert "e-a" in builder.ran
    assert items(app.invoke({"turn": "3"}, ended.config)) == sorted(world.items)


def test_a_wrapped_agent_rolls_back_and_redoes_the_memory(repo, world):
    """Between turns, from a fork of a fork, and back on the branch that was left."""
    graph, builder = build("two", world)
    agent = repo.wrap(graph, "s", effects=builder.effects)
    ends = []
    for turn in "123":
        agent.invoke({"turn": turn})
        ends.append(agent.checkpoint(turn))
    back = agent.rollback(ends[1])
    back = back.rollback(ends[0])
    assert items(back.invoke({"turn": "4"})) == sorted(world.items)
    again = back.rollback(back.checkpoints()[0].id)
    assert items(again.invoke({"turn": "5"})) == sorted(world.items)
    old = again.switch("main", sync="world")
    assert items(old.invoke({"turn": "6"})) == sorted(world.items)
    assert {one[-1] for one in world.items} == set("1236")


@pytest.mark.parametrize("first", ["add chair", "add chair; fail storm; note late"])
@pytest.mark.parametrize("edit", [False, True])
async def test_a_subagent_that_had_not_begun_gets_its_own_message_when_the_turn_goes_on(repo, world, first, edit):
    """It neither gives its last answer again nor makes the calls that it left open before."""
    helper = create_agent(obedient(), world.tools(), checkpointer=True, name="helper")
    failures = [False, True, False]

    def ask(state):
        if failures.pop(0):
            raise ConnectionError("not reached")
        return {"messages": helper.invoke({"messages": [state["messages"][-1]]})["messages"][-1:]}

    agent = repo.wrap(node_graph(ask), "s", effects=world.effects(), check_effects=False)
    with suppress(RuntimeError):
        agent.run(first)
    notes = [*world.notes]
    with pytest.raises(ConnectionError):
        agent.run("add lamp")
    if edit:
        agent.update_state(None, {"messages": [("user", "add table")]})
    answer = await agent.ainvoke(None)
    wanted = "table" if edit else "lamp"
    assert (world.items, world.notes, answer["messages"][-1].content) == (["chair", wanted], notes, "done")


@pytest.mark.parametrize("move", [lambda agent: agent.fork(), lambda agent: agent.rollback("HEAD")])
def test_a_call_of_a_subagent_beside_a_question_is_not_made_again_after_an_edit_on_another_branch(repo, world, move):
    helper = create_agent(obedient(), world.tools(), checkpointer=True, name="helper")

    def ask(state):
        return {"messages": helper.invoke({"messages": [state["messages"][-1]]})["messages"][-1:]}

    agent = repo.wrap(node_graph(ask), "s", effects=world.effects(), check_effects=False)
    agent.invoke({"messages": [("user", "add chair; add_if_approved sofa")]})
    agent.update_state(None, {"messages": [("user", "hello")]})
    other = move(agent)
    other.invoke(None)
    assert world.items == ["chair"]
    other.invoke(Command(resume="yes"))
    assert world.items == ["chair", "sofa"]


@pytest.mark.parametrize("move", [lambda agent: agent.fork(), lambda agent: agent.rollback("HEAD")])
def test_a_subagent_that_has_begun_goes_on_after_an_edit_on_another_branch(repo, world, move):
    def put(state):
        world.tool("add").invoke({"item": "chair"})

    builder = StateGraph(Outer).add_node("put", put).add_node("ask", lambda state: {"log": [interrupt("go on?")]})
    helper = builder.add_edge(START, "put").add_edge("put", "ask").compile(checkpointer=True)
    outer = StateGraph(Outer).add_node("call", lambda state: {"log": helper.invoke({"turn": "1"})["log"]})
    agent = repo.wrap(outer.add_edge(START, "call").compile(), "s", effects=world.effects(), check_effects=False)
    agent.invoke({"turn": "1"})
    agent.update_state(None, {"log": ["edited"]})
    other = move(agent)
    other.invoke(None)
    assert [one.value for one in other.get_state().interrupts] == ["go on?"]
    assert world.items == ["chair"]


@pytest.mark.parametrize("move", [lambda agent: agent.fork(), lambda agent: agent.rollback("HEAD")])
def test_a_subagent_that_has_not_begun_begins_after_an_edit_on_another_branch(repo, world, move):
    """It remembers an earlier turn, and LangGraph would give its last answer once more."""
    helper = create_agent(obedient(), world.tools(), checkpointer=True, name="helper")

    def ask(state):
        return {"messages": helper.invoke({"messages": [state["messages"][-1]]})["messages"][-1:]}

    graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile(interrupt_before=["ask"])
    agent = repo.wrap(graph, "s", effects=world.effects(), check_effects=False)
    for text in ("add chair", "add table"):
        agent.invoke({"messages": [("user", text)]})
        if text == "add chair":
            agent.invoke(None)
    agent.update_state(None, {"messages": [("user", "add lamp")]})
    move(agent).invoke(None)
    assert world.items == ["chair", "lamp"]


def test_an_edit_between_two_steps_lets_the_subgraph_run(repo, world):
    graph, builder = build("called", world)
    app = repo.graph(graph, effects=builder.effects)
    for turn in "12":
        app.invoke({"turn": turn}, THREAD)
    point = next(one for one in app.get_state_history(THREAD) if one.next == ("n1",))
    app.invoke(None, app.update_state(point.config, {"turn": "9"}))
    assert agrees(app, world)
    assert {"first2", "e-a9", "last9"} < set(world.items)


def test_a_run_at_a_question_of_a_subgraph_asks_that_question(repo, world):
    """The calls of the subgraph before the question stand, and its later ones are reversed."""
    builder = Builder(world)
    app = repo.graph(builder.graph(builder.expert("e", asks=True)), effects=builder.effects, confirm="never")
    app.invoke(yes(app.invoke(yes(app.invoke({"turn": "1"}, THREAD)), THREAD)), THREAD)
    answer, places = app.invoke({"turn": "2"}, THREAD), []
    while is_asked(answer):
        inner = app.get_state(THREAD, subgraphs=True).tasks[0].state.config
        places.append((answer["__interrupt__"][0].value, sorted(world.items), inner))
        answer = app.invoke(yes(answer), THREAD)
    for question, before, place in [*places, *places[::-1]]:
        answer = app.invoke(None, place)
        assert answer["__interrupt__"][0].value == question
        assert sorted(world.items) == before
        while is_asked(answer):
            answer = app.invoke(yes(answer), THREAD)
        own = app.get_state({"configurable": {**THREAD["configurable"], "checkpoint_ns": "n1"}}).values["own"]
        assert sorted([*own, *answer["log"]]) == sorted(world.items)
        assert len(world.items) == 12


def test_a_place_beside_another_subgraph_is_refused(repo, world):
    builder = Builder(world)
    one, two = builder.expert("e", asks=True), builder.expert("f")
    graph = StateGraph(Outer).add_node("one", one).add_node("two", two).add_edge(START, "one").add_edge(START, "two")
    app = repo.graph(graph.compile(), effects=builder.effects, check_effects=False)
    answer = app.invoke({"turn": "1"}, THREAD)
    inner = app.get_state(THREAD, subgraphs=True).tasks[0].state.config
    while is_asked(answer):
        answer = app.invoke(yes(answer), THREAD)
    before = sorted(world.items)
    with pytest.raises(InvalidInput, match="Another subgraph, 'two'"):
        app.invoke(None, inner)
    assert sorted(world.items) == before


def test_an_answer_where_no_question_waits_is_refused(repo, world):
    """LangGraph would take the memory for the subgraph's end, and skip the subgraph."""
    graph, builder = build("called", world, asks=True)
    app = repo.graph(graph, effects=builder.effects)
    for turn in "12":
        answer = app.invoke({"turn": turn}, THREAD)
        while is_asked(answer):
            answer = app.invoke(yes(answer), THREAD)
    point = next(one for one in app.get_state_history(THREAD) if one.next == ("n1",)).config
    with pytest.raises(InvalidInput, match="Run it with None first"):
        app.invoke(Command(resume="yes"), point)
    answer = app.invoke(None, THREAD)
    while is_asked(answer):
        answer = app.invoke(yes(answer), THREAD)
    assert agrees(app, world)
