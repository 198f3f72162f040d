"""Each answer of a person reaches the tool call that asked, even if one task runs all calls of a batch."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from contextlib import redirect_stdout
from typing import Any

import backend
import pytest
from chats import chatting
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt
from scripted import call, calls, node_graph, obedient, quick_tool, say, scripted, tool_node_graph

import agentgit
from agentgit.errors import AnswerRequired, Conflict, InvalidInput

ITEMS = "abc"


class Approvals:
    """Tools that ask a person, the list of their actions, and events that hold calls back."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.hold: dict[str, threading.Event] = {}

    def tools(self) -> list[BaseTool]:
        """Create `buy` and its async twin `abuy`, `move`, which asks twice, and `ask`."""

        def buy(item: str) -> str:
            """Buy it if a person says yes."""
            if item in self.hold:
                assert self.hold[item].wait(60)
            return self._bought(item, interrupt({"buy": item}))

        async def abuy(item: str) -> str:
            """Buy it if a person says yes."""
            await asyncio.sleep(0)
            return self._bought(item, interrupt({"buy": item}))

        def move(item: str) -> str:
            """Move it between the two places that a person names."""
            places = interrupt({"from": item}), interrupt({"to": item})
            self.done.append(f"{item}: {places[0]} to {places[1]}")
            return self.done[-1]

        def ask(item: str) -> str:
            """Ask the same question for every item."""
            return self._bought(item, interrupt("sure?"))

        return [quick_tool(function) for function in (buy, abuy, move, ask)]

    def _bought(self, item: str, answer: str) -> str:
        if answer == "yes":
            self.done.append(item)
        return f"{item}: {answer}"

    def graph(self, *wanted: Any):
        """Build a ToolNode graph whose model requests these calls in one message."""
        return tool_node_graph(scripted(calls(*wanted), "fine"), self.tools())


EFFECTS = dict.fromkeys(("buy", "abuy", "move", "ask"), "irreversible")


@pytest.fixture
def shop():
    return Approvals()


def shown(result: dict[str, Any]) -> Any:
    """Return the question that a person sees, or None."""
    asked = result.get("__interrupt__")
    return asked[0].value if asked else None


def results(agent: Any) -> list[Any]:
    return [message.content for message in agent.messages() if message.type == "tool"]


def resume(result: dict[str, Any], answer: str, *, by_id: bool) -> Command[Any]:
    return Command(resume={result["__interrupt__"][0].id: answer} if by_id else answer)


def go_on(run: Any, said: dict[str, str], *, by_id: bool) -> list[str]:
    """Answer questions until none is left, and return the items in the order of their questions."""
    result, order = run(say()), []
    while (question := shown(result)) is not None:
        order.append(question["buy"])
        result = run(resume(result, said[order[-1]], by_id=by_id))
    return order


@pytest.mark.each_value_once
@pytest.mark.parametrize("answers", ["yes no", "no yes", "yes yes no", "yes no no", "no yes no", "no no yes"])
@pytest.mark.parametrize("name", ["buy", "abuy"])
@pytest.mark.parametrize("by_id", [True, False])
def test_each_call_of_a_batch_receives_the_answer_to_its_question(repo, shop, name, answers, by_id):
    """Equal answers would not reveal one that reaches the wrong call."""
    said = dict(zip(ITEMS, answers.split(), strict=False))
    agent = repo.wrap(shop.graph(*(call(name, item=item) for item in said)), "s", effects=EFFECTS)
    run = agent.invoke if name == "buy" else lambda given: asyncio.run(agent.ainvoke(given))
    order = go_on(run, said, by_id=by_id)
    assert sorted(order) == list(said)
    assert results(agent) == [f"{item}: {answer}" for item, answer in said.items()]
    assert sorted(shop.done) == [item for item, answer in said.items() if answer == "yes"]


@pytest.mark.parametrize("by_id", [True, False])
def test_answers_reach_their_calls_after_a_restart(repo, shop, by_id):
    url, said = backend.url(repo), {"a": "yes", "b": "no", "c": "yes"}
    graph = shop.graph(*(call("buy", item=item) for item in ITEMS))
    result = repo.wrap(graph, "s", effects=EFFECTS).invoke(say())
    for _ in ITEMS:
        with agentgit.open(url) as later:
            answer = said[shown(result)["buy"]]
            result = later.wrap(graph, "s", effects=EFFECTS).invoke(resume(result, answer, by_id=by_id))
    assert results(repo.wrap(graph, "s", effects=EFFECTS)) == ["a: yes", "b: no", "c: yes"]
    assert sorted(shop.done) == ["a", "c"]


def test_a_call_that_asks_first_does_not_take_another_calls_answer(repo, shop):
    agent = repo.wrap(shop.graph(call("buy", item="a"), call("buy", item="b")), "s", effects=EFFECTS)
    result = agent.invoke(say())
    assert shown(result) == {"buy": "a"}
    shop.hold["a"] = threading.Event()
    threading.Timer(0.3, shop.hold["a"].set).start()
    result = agent.invoke(Command(resume="yes"))
    assert (shown(result), shop.done) == ({"buy": "b"}, ["a"])
    agent.invoke(Command(resume="no"))
    assert results(agent) == ["a: yes", "b: no"]


@pytest.mark.parametrize("by_id", [True, False])
def test_a_call_that_asks_twice_receives_both_answers(repo, shop, by_id):
    wanted = call("move", item="x"), call("buy", item="a"), call("move", item="y")
    agent = repo.wrap(shop.graph(*wanted), "s", effects=EFFECTS)
    said = {("from", "x"): "attic", ("to", "x"): "cellar", ("from", "y"): "hall", ("to", "y"): "yard"}
    result, asked = agent.invoke(say()), []
    while (question := shown(result)) is not None:
        asked.append(next(iter(question.items())))
        result = agent.invoke(resume(result, said.get(asked[-1], "no"), by_id=by_id))
    assert sorted(asked) == sorted([*said, ("buy", "a")])
    assert results(agent) == ["x: attic to cellar", "a: no", "y: hall to yard"]


def test_equal_questions_are_answered_in_the_order_of_the_batch(repo, shop):
    agent = repo.wrap(shop.graph(call("ask", item="a"), call("ask", item="b")), "s", effects=EFFECTS)
    agent.invoke(say())
    for answer in ("no", "yes"):
        agent.invoke(Command(resume=answer))
    assert results(agent) == ["a: no", "b: yes"]


def test_a_fork_with_a_pending_question_answers_the_right_calls(repo, shop):
    agent = repo.wrap(shop.graph(*(call("buy", item=item) for item in ITEMS)), "s")
    agent.invoke(say())
    agent.invoke(Command(resume="yes"))
    other = agent.fork()
    for answer in ("no", "yes"):
        agent.invoke(Command(resume=answer))
    assert results(agent) == ["a: yes", "b: no", "c: yes"]
    for answer in ("yes", "no"):
        other.invoke(Command(resume=answer))
    assert results(other) == ["a: yes", "b: yes", "c: no"]


@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("hands_on", [True, False])
def test_graphs_run_by_tools_receive_the_answers_of_their_calls(repo, hands_on, by_id):
    """Two calls each run a graph that asks, and each graph continues with its answer, with or without a config."""
    asking = node_graph(lambda state: {"messages": [("ai", interrupt({"buy": state["messages"][-1].content}))]})

    def run(item: str, config: RunnableConfig) -> str:
        """Ask through a graph."""
        return asking.invoke(say(item), config if hands_on else None)["messages"][-1].content

    model = scripted(calls(call("run", item="a"), call("run", item="b")), "ok")
    agent = repo.wrap(tool_node_graph(model, [tool(run)]), "s")
    assert go_on(agent.invoke, {"a": "yes", "b": "no"}, by_id=by_id) == ["a", "b"]
    assert results(agent) == ["yes", "no"]


async def test_run_raises_what_the_graph_asks_until_it_is_answered_or_dropped(repo, world):
    """The turn that asks stands and waits; the next message runs nothing, unless it drops the question."""
    graph = tool_node_graph(obedient(), world.tools())
    agent = repo.wrap(graph, "s", effects=world.effects())
    with pytest.raises(
        AnswerRequired, match=r"The turn waits for an answer to \{'add': 'sofa'\}\. agent\.invoke"
    ) as asked:
        agent.run("add_if_approved sofa")
    assert asked.value.questions == [{"add": "sofa"}]
    again = repo.wrap(graph, "s", effects=world.effects())
    before = again.history()
    with pytest.raises(AnswerRequired, match="Nothing was run: the graph waits") as asked:
        again.run("hello")
    with pytest.raises(AnswerRequired, match="Nothing was run"):
        await again.arun("hello")
    assert (asked.value.questions, again.history()) == ([{"add": "sofa"}], before)
    assert await again.fork().arun("hello", on_question="drop") == "hm"
    again.invoke(Command(resume="yes"))
    assert world.items == ["sofa"]
    assert again.run("hello") == "hm"
    with pytest.raises(InvalidInput, match="on_question"):
        again.run("hello", on_question="ignore")


@pytest.mark.parametrize("line_for_each", [False, True])
def test_several_questions_are_answered_by_the_next_step_that_names_their_ids(repo, line_for_each):
    """They are listed in one order, whichever task asked first, and lines of a chat answer them in that order."""
    second_asked, answers = threading.Event(), dict[str, Any]()

    def node(name: str):
        def ask(state: Any) -> Any:
            assert name == "b" or second_asked.wait(60)
            second_asked.set()
            answers[name] = interrupt(f"{name}?")
            return {"messages": [("ai", name)]}

        return ask

    builder = StateGraph(MessagesState)
    for name in "ab":
        builder.add_node(name, node(name)).add_edge(START, name)
    agent = repo.wrap(builder.compile(), "s")
    with pytest.raises(AnswerRequired) as asked:
        agent.run("hello")
    with pytest.raises(AnswerRequired) as again:
        agent.run("hello")
    assert again.value.interrupts == asked.value.interrupts
    assert [one.value for one in asked.value.interrupts] == asked.value.questions == agent.branch.questions
    ids, step = [one.id for one in asked.value.interrupts], asked.value.next[0]
    assert step.worded("graph") == f"A run with Command(resume={{'{ids[0]}': ..., '{ids[1]}': ...}}) answers them"
    assert type(step).from_dict(json.loads(json.dumps(step.to_dict()))) == step
    if line_for_each:
        assert step.worded("chat") == "A line for each, in this order, answers them"
        with redirect_stdout(io.StringIO()), chatting(repo, agent) as chat:
            for question in asked.value.questions:
                chat.handle_line(question)
        assert answers == {"a": "a?", "b": "b?"}
    else:
        call = step.worded("python").removesuffix(" answers them").replace("...", "'yes'")
        eval(call, {"agent": agent, "Command": Command})  # noqa: S307  # the step, with an answer for each
        assert answers == {"a": "yes", "b": "yes"}
    assert agent.branch.questions == []


def asking(name: str, *, by_send: bool = False):
    """Build a graph whose node of a name asks."""
    builder = StateGraph(MessagesState)
    builder.add_node("begin", lambda state: {})
    builder.add_node(name, lambda state: {"messages": [("ai", str(interrupt("Send it?")))]})
    builder.add_edge(START, "begin")
    if by_send:
        builder.add_conditional_edges("begin", lambda state: [Send(name, state)], [name])
    else:
        builder.add_edge("begin", name)
    return builder.compile()


@pytest.mark.parametrize("by_send", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_answer_for_a_node_that_the_graph_does_not_have_is_refused(repo, by_send, depth):
    """LangGraph drops it without a word, also in a subgraph."""

    def graph(name):
        built = asking(name, by_send=by_send)
        for _ in range(depth):
            built = StateGraph(MessagesState).add_node("inner", built).add_edge(START, "inner").compile()
        return built

    repo.wrap(graph("ask"), "s").invoke(say())
    renamed = repo.wrap(graph("question"), "s")
    with pytest.raises(Conflict, match="the node ask, which this graph does not have"):
        renamed.invoke(Command(resume="yes"))
    agent = repo.wrap(graph("ask"), "s")
    assert agent.invoke(Command(resume="yes"))["messages"][-1].content == "yes"


def test_an_answer_for_which_nothing_waits_is_refused(repo):
    """LangGraph drops it without a word: on a new thread, and when the question has its answer."""
    graph = repo.graph(asking("ask"))

    def refuse(thread):
        with pytest.raises(Conflict, match="Nothing was run: no question waits for this answer"):
            graph.invoke(Command(resume="yes"), thread)

    thread = {"configurable": {"thread_id": "t"}}
    refuse(thread)
    graph.invoke(say(), thread)
    graph.invoke(Command(resume="first", update={"messages": [("human", "also this")]}), thread)
    refuse(thread)
    graph.invoke(say(), thread)
    graph.invoke(Command(resume="second"), thread)
    texts = [one.content for one in graph.get_state(thread).values["messages"]]
    assert texts[-1] == "second"
    assert texts.count("first") == 1


@pytest.mark.parametrize("command", [Command(resume=None), Command()], ids=["None", "empty"])
def test_none_is_no_answer_and_the_question_goes_on_waiting(repo, command):
    """LangGraph fails there with an error of its own code."""
    agent, graph = repo.wrap(asking("ask"), "s"), repo.graph(asking("ask"))
    thread = {"configurable": {"thread_id": "t"}}
    agent.invoke(say())
    graph.invoke(say(), thread)
    for answer in (agent.invoke, lambda command: graph.invoke(command, thread)):
        with pytest.raises(InvalidInput, match="takes no None as an answer"):
            answer(command)
    assert agent.invoke(Command(resume=False))["messages"][-1].content == "False"
    assert graph.get_state(thread).next == ("ask",)


def test_every_text_of_a_session_shows_what_it_waits_for(repo):
    agent = repo.wrap(asking("ask"), "s")
    agent.invoke(say())
    waits = "waits for an answer: Send it?"

    def texts():
        log = agent.session.log(branch=agent.branch_id)._repr_mimebundle_()["text/plain"]
        return [repr(agent), str(agent.tree()), str(agent.session.folded_tree()), log, agent._repr_html_()]

    assert all(waits in text for text in texts())
    assert [branch.questions for branch in agent.session.branches()] == [["Send it?"]]
    agent.invoke(Command(resume="yes"))
    assert not any("waits" in text for text in texts())


def test_a_question_of_a_task_is_shown_once_although_its_entrypoint_waits_for_it_too(repo):
    """A second question with the same text is another one."""

    @task
    def ask(text: str) -> str:
        return str(interrupt(text))

    @entrypoint()
    def letters(texts: list[str]) -> list[str]:
        return [one.result() for one in [ask(text) for text in texts]]

    agent = repo.wrap(letters, "s")
    agent.invoke(["Send it?", "Send it?", "Now?"])
    assert agent.branch.questions.count("Now?") == 1
    assert agent.branch.questions.count("Send it?") == 2
    with pytest.raises(AnswerRequired) as refused:
        agent.run(["again"])
    assert str(refused.value).count("Now?") == 1


def test_a_question_that_is_answered_beside_another_one_no_longer_waits(repo):
    builder = StateGraph(MessagesState)
    for name in "ab":
        builder.add_node(name, lambda state, name=name: {"messages": [("ai", str(interrupt({"item": name})))]})
        builder.add_edge(START, name)
    agent = repo.wrap(builder.compile(), "s")
    agent.invoke(say())
    agent.invoke(Command(resume={agent.get_state().interrupts[0].id: "yes"}))
    assert agent.branch.questions == [{"item": "b"}]
    with pytest.raises(AnswerRequired) as asked:
        agent.run("hello")
    assert asked.value.questions == [{"item": "b"}]


def test_a_question_of_a_tool_that_a_tool_calls_receives_its_answer_after_a_rollback(repo):
    @tool
    def ask(item: str) -> str:
        """Ask a person."""
        return interrupt(f"{item}?")

    @tool
    def outer(item: str) -> str:
        """Let another tool ask."""
        return ask.invoke({"item": item})

    for number in range(12):  # which of the two calls took the answer depended on the ids of the session
        model = scripted(calls(call("outer", item="a")), "done", "done")
        agent = repo.wrap(tool_node_graph(model, [outer]), f"s{number}")
        agent.invoke({"messages": [("user", "go")]})
        agent.checkpoint("waiting")
        agent.invoke(Command(resume="no"))
        again = agent.rollback("waiting")
        again.invoke(Command(resume="yes"))
        assert [one["content"] for one in again.history() if one["role"] == "tool"] == ["yes"]


def test_an_input_with_the_run_id_of_the_last_run_is_not_dropped_in_silence(repo):
    """LangGraph goes on with a run of that id that broke off, and drops the input of one that has ended."""
    failures = [ValueError("down")]

    def answer(state):
        if failures:
            raise failures.pop()
        return {"messages": [("ai", "done")]}

    agent = repo.wrap(node_graph(answer), "s")
    same = {"metadata": {"run_id": "r"}}
    with pytest.raises(ValueError, match="down"):
        agent.invoke(say("one"), same)
    with pytest.raises(InvalidInput, match="run_id 'r' is that of the last run"):
        agent.invoke(say("another"), same)
    agent.invoke(say("one"), same)
    for config in (same, {"configurable": {"run_id": "r"}}):
        with pytest.raises(InvalidInput, match="run_id 'r' is that of the last run"):
            agent.invoke(say("two"), config)
    assert [one["content"] for one in agent.history()] == ["one", "done"]
    assert [point.metadata["description"] for point in agent.session.log(branch=agent.branch_id)] == ["done", "one"]
    agent.invoke(say("two"), {"metadata": {"run_id": "q"}})
    assert agent.history()[-2]["content"] == "two"


@pytest.mark.parametrize("on_unanswered", ["answer", "raise"])
def test_a_dropped_question_is_dropped_whatever_becomes_of_a_turn_that_broke_off(repo, world, on_unanswered):
    model = scripted(call("add_if_approved", item="x"), "dropped")
    graph = tool_node_graph(model, world.tools())
    agent = repo.wrap(graph, "s", effects=world.effects(), on_unanswered=on_unanswered)
    for _ in range(2):
        with pytest.raises(AnswerRequired):
            agent.run("add it")
    assert agent.run("never mind", on_question="drop") == "dropped"
    assert world.items == []
