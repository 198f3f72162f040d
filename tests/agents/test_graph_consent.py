"""A served graph asks before it compensates, and only an answer to the plan that was shown consents."""

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_store
from langgraph.types import Command, interrupt
from scripted import call, node_graph, obedient, scripted, tool_node_graph
from served import THREAD, contents, is_asked, run, said

import agentgit
from agentgit import InvalidInput, compensable

YES, NO = Command(resume=True), Command(resume=False)


@pytest.fixture
def app(repo, world):
    return repo.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())


def test_an_answer_that_comes_with_the_run_answers_nothing(app, world):
    """`Command(resume=True)` at an older checkpoint, or after an update, is asked first."""
    old, _ = run(app, "hello", "charge 5")
    before_tools = next(one.config for one in app.get_state_history(THREAD) if one.next == ("tools",))
    assert is_asked(app.invoke(YES, before_tools))
    app.invoke(NO, THREAD)
    app.update_state(old, {"messages": [HumanMessage("add chair")]}, as_node="__start__")
    assert is_asked(app.invoke(YES, THREAD))
    assert (world.charges, world.items) == ([5], [])


def test_consent_does_not_answer_the_question_of_a_tool(repo, world):
    model = scripted(call("add_if_approved", item="x"), "done")
    effects = world.effects(add_if_approved=compensable(world.remove))
    app = repo.graph(tool_node_graph(model, world.tools()), effects=effects)
    app.invoke(said("add it"), THREAD)
    app.invoke(Command(resume="yes"), THREAD)
    before_tools = [one.config for one in app.get_state_history(THREAD) if one.next == ("tools",)]
    assert is_asked(app.invoke(None, before_tools[-1]))
    assert app.invoke(YES, THREAD)["__interrupt__"][0].value == {"add": "x"}
    assert world.items == []
    app.invoke(Command(resume="no"), THREAD)
    assert contents(app.get_state(THREAD).values)[-2] == "not approved"
    assert world.items == []


def test_a_question_of_a_tool_beside_a_call_that_was_consented_to_is_answered(repo, world):
    """The message of the model is edited, as in LangGraph Studio, and run again."""
    app = repo.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())
    app.invoke(said("charge 5; add_if_approved x"), THREAD)
    app.invoke(Command(resume="yes"), THREAD)
    old = next(one for one in app.get_state_history(THREAD) if one.next[:1] == ("tools",))
    edited = old.values["messages"][-1].model_copy(deep=True)
    edited.tool_calls[0]["args"], edited.tool_calls[1]["args"] = {"amount": 7}, {"item": "y"}
    point = app.update_state(old.config, {"messages": [edited]}, as_node="model")
    assert is_asked(app.invoke(None, point))
    assert app.invoke(YES, THREAD)["__interrupt__"][0].value == {"add": "y"}
    app.invoke(Command(resume="yes"), THREAD)
    assert (world.charges, world.items) == ([7], ["y"])


def test_declining_returns_to_the_branch_before_all_questions(app, world):
    """With two questions open, an answer that declines runs nothing on the branch of the first one."""
    first, second, third = run(app, "hello", "charge 5", "charge 6")
    app.invoke(said("add a"), first)
    app.invoke(said("add b"), second)
    app.invoke(NO, THREAD)
    assert (world.charges, world.items) == ([5, 6], [])
    assert app.get_state(THREAD).config == third


def test_a_new_message_instead_of_an_answer_cancels(app, world):
    first, _ = run(app, "hello", "charge 5")
    app.invoke(said("add a"), first)
    run(app, "add b")
    assert (world.charges, world.items) == ([5], ["b"])
    assert contents(app.get_state(THREAD).values)[:3] == ["hello", "hm", "charge 5"]


def test_private_settings_of_a_client_have_no_effect(app, world):
    old, _ = run(app, "hello", "charge 5")
    foreign = InMemorySaver()
    app.invoke(said("look"), {"configurable": {"thread_id": "t", "__pregel_checkpointer": foreign}})
    assert list(foreign.list(None)) == []
    question = app.invoke(said("add a"), old)["__interrupt__"][0]
    answered = {"thread_id": "t", "__pregel_resume_map": {question.id: True}, "__pregel_resuming": True}
    assert is_asked(app.invoke(None, {"configurable": answered}))
    assert (world.charges, world.items) == ([5], [])


def test_the_first_node_has_its_context_after_the_question(repo, world):
    charge = world.tool("charge")

    def node(state):
        get_config(), get_store()
        charge.invoke({"amount": 5})
        return {"messages": [("ai", interrupt("own?"))]}

    app = repo.graph(node_graph(node), effects={"charge": compensable(world.refund)}, check_effects=False)
    app.invoke(said("one"), THREAD)
    app.invoke(Command(resume="first"), THREAD)
    start = list(app.get_state_history(THREAD))[-1].config
    assert is_asked(app.invoke(said("two"), start))
    assert app.invoke(YES, THREAD)["__interrupt__"][0].value == "own?"
    assert contents(app.invoke(Command(resume="second"), THREAD)) == ["two", "second"]
    assert world.charges == [5]


def test_consent_covers_only_the_plan_that_was_shown(repo, app, world):
    old, _ = run(app, "hello", "charge 5")
    app.invoke(said("add a"), old)
    graph = tool_node_graph(obedient(), world.tools())
    repo.wrap(graph, "t", branch="main", effects=world.effects()).run("charge 100")
    again = app.invoke(YES, THREAD)["__interrupt__"][0].value
    assert [step["args"] for step in again["steps"]] == [{"amount": 100}, {"amount": 5}]
    assert world.charges == [5, 100]
    app.invoke(YES, THREAD)
    assert (world.charges, world.items) == ([], ["a"])


def test_a_second_yes_to_the_first_question_is_no_answer_to_the_next_one(repo, app, world):
    """A double click, or a second tab: another process has acted, and another plan is shown."""
    old, _ = run(app, "hello", "charge 5")
    (first,) = app.invoke(said("add chair"), old)["__interrupt__"]
    repo.wrap(tool_node_graph(obedient(), world.tools()), "t", effects=world.effects()).at("main").run("charge 50")
    yes = Command(resume={first.id: True})
    for _ in range(2):
        (asked,) = app.invoke(yes, THREAD)["__interrupt__"]
        assert asked.id != first.id
        assert "charge(amount=50)" in asked.value["message"]
        assert (world.charges, world.items) == ([5, 50], [])
    app.invoke(Command(resume={asked.id: True}), THREAD)
    assert (world.charges, world.items) == ([], ["chair"])


def test_an_imported_question_cannot_be_answered(repo, app, world, tmp_path):
    """A question that an export brought along is refused, because what it asked about is not known here."""
    old, _ = run(app, "hello", "charge 5")
    app.invoke(said("add a"), old)
    repo.session("t").export(tmp_path / "t.agentgit")
    with agentgit.open(tmp_path / "other.db") as other:
        other.import_(tmp_path / "t.agentgit")
        served = other.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())
        with pytest.raises(InvalidInput, match="another database"):
            served.invoke(YES, THREAD)
    assert (world.charges, world.items) == ([5], [])


def test_declining_does_not_run_a_failed_step_again(app, world):
    (old,) = run(app, "hello")
    with pytest.raises(RuntimeError, match="boom"):
        app.invoke(said("charge 5; fail boom"), THREAD)
    app.invoke(said("look"), old)
    with pytest.raises(InvalidInput, match="in the middle of a run"):
        app.invoke(NO, THREAD)
    assert (len(world.happened("fail")), world.charges) == (1, [5])


async def test_async_runs_ask_and_answer_too(app, world):
    await app.ainvoke(said("hello"), THREAD)
    old = (await app.aget_state(THREAD)).config
    await app.ainvoke(said("charge 5"), THREAD)
    assert is_asked(await app.ainvoke(said("add a"), old))
    await app.ainvoke(YES, THREAD)
    assert (world.charges, world.items) == ([], ["a"])
