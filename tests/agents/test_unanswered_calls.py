"""A conversation is always one that a provider accepts: a new message never leaves a tool call without a result."""

from __future__ import annotations

import asyncio
import operator
import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, TypedDict

import processes
import pytest
import soaks
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.errors import EmptyInputError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.pregel._loop import SyncPregelLoop
from langgraph.types import Command, interrupt
from scripted import World, call, calls, node_graph, obedient, tool_node_graph

import agentgit
from agentgit.demo import ScriptedModel
from agentgit.errors import AgentGitError, AnswerRequired, Conflict, RollbackBlocked, WorldDiverged


class Refused(Exception):
    """The error 400 of a provider."""


def require_accepted(messages: Sequence[BaseMessage]) -> None:
    """Refuse what providers refuse: a call without a result directly after it, and a result without a call."""
    open_calls: set[str | None] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                raise Refused(f"no call has the result {message}")
            open_calls.remove(message.tool_call_id)
        elif open_calls:
            raise Refused(f"calls without a result: {open_calls}")
        elif isinstance(message, AIMessage):
            open_calls = {one["id"] for one in message.tool_calls}
    if open_calls:
        raise Refused(f"calls without a result at the end: {open_calls}")


def strict() -> ScriptedModel:
    """Make an obedient model that refuses what providers refuse."""
    rule = obedient().rule

    def checked(messages: Sequence[BaseMessage]) -> Any:
        require_accepted(messages)
        return rule(messages)

    return ScriptedModel(rule=checked)


THREAD = {"configurable": {"thread_id": "t"}}
GRAPHS = {
    "tool node": lambda world: tool_node_graph(strict(), world.tools(), handle_tool_errors=False),
    "create_agent": lambda world: create_agent(strict(), world.tools()),
}


@pytest.fixture(params=GRAPHS)
def graph(request, world):
    return GRAPHS[request.param](world)


def results(agent: Any) -> dict[str, str]:
    """Return the results in a conversation by the names of their tools."""
    names = {one["id"]: one["name"] for message in agent.history() for one in message["tool_calls"]}
    return {names[one["tool_call_id"]]: one["content"] for one in agent.history() if one["role"] == "tool"}


def break_off(agent: Any, text: str = "add chair; fail storm; look") -> None:
    """Run a turn that ends with an error of a tool."""
    with pytest.raises(RuntimeError, match="storm"):
        agent.run(text)


def test_a_new_message_after_a_turn_that_broke_off_comes_after_what_is_known_of_its_calls(repo, graph, world):
    """The provider accepts it, and the model reads the result, the error or that nothing is known of each call."""
    agent = repo.wrap(graph, "s", effects=world.effects(fail=agentgit.compensable(world.refund)))
    break_off(agent)
    assert agent.run("hello") == "hm"
    said = results(agent)
    assert said["add"] == '{"item": "chair", "number": 1}'
    assert said["fail"] == "Unknown: it raised RuntimeError: storm, and it is not known whether the call happened."
    assert said["look"] in ("chair", "nothing") or said["look"].startswith("No result: the turn ended before")
    assert agent.run("hello") == "hm", "and it goes on"


def test_no_checkpoint_after_a_turn_that_broke_off_holds_its_open_calls(repo, graph, world):
    """From each checkpoint, automatic or made by hand, a turn can begin; undo leads to no dead end either."""
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.run("add table")
    break_off(agent)
    agent.checkpoint("by hand")
    agent.run("hello")
    agent.checkpoint("later")
    for point in agent.session.log(branch=agent.branch_id):
        require_accepted(agent.fork(point.id).messages())
        assert agent.fork(point.id).run("hello") == "hm"
    for _ in range(2):
        agent = agent.undo()
        assert agent.run("hello") == "hm"
    assert world.items == ["table"]


def test_a_message_in_place_of_an_answer_says_that_the_question_was_not_answered(repo, graph, world):
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.invoke({"messages": [("user", "add chair; add_if_approved sofa")]})
    assert agent.run("hello", on_question="drop") == "hm"
    assert "wrote a new message instead of an answer" in results(agent)["add_if_approved"]


def test_a_copy_of_a_waiting_point_knows_what_its_step_has_done_and_that_it_asks(repo, world):
    """A fork, an alternative and a session from a template have the results of the step, and no journal of it."""
    graph = create_agent(strict(), world.tools())
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.invoke({"messages": [("user", "add chair; add_if_approved sofa; add_if_approved lamp")]})
    agent.invoke(Command(resume={agent.get_state().interrupts[0].id: "yes"}))
    waiting = agent.checkpoint("waiting")
    copies = [
        agent.fork(),
        agent.fork(waiting),
        repo.wrap(graph, "t", effects=world.effects(), template=waiting),
        agent,
    ]
    for copy in copies:
        assert copy.run("hello", on_question="drop") == "hm"
        answers = [one["content"] for one in copy.history() if one["role"] == "tool"]
        assert ["sofa" in answers[1], "chair" in answers[0]] == [True, True], answers
        assert "asked the user, who wrote a new message instead of an answer" in answers[2]
        copy.switch(copy.branch_id, sync="ignore")
    assert world.items == ["chair", "sofa"]


def test_an_exploration_of_messages_is_refused_while_the_graph_waits_for_an_answer(repo, graph, world):
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.invoke({"messages": [("user", "add_if_approved sofa")]})
    with pytest.raises(AnswerRequired, match="Nothing was run: the graph waits for an answer"):
        agent.explore(1, ["hello", "add table"])
    assert len(agent.session.branches()) == 1
    assert len(agent.explore(1, [Command(resume="yes")] * 2).leaves) == 2


def test_a_question_that_was_answered_beside_a_call_that_failed_waits_no_more(repo, world):
    """What was answered is done; no checkpoint of the turn that broke off holds its open calls."""
    agent = repo.wrap(create_agent(strict(), world.tools()), "s", effects=world.effects())
    with pytest.raises(RuntimeError, match="storm"):
        agent.invoke({"messages": [("user", "charge 5; add_if_approved sofa; fail storm")]})
    with pytest.raises(RuntimeError, match="storm"):
        agent.invoke(Command(resume="yes"))
    fork = agent.fork()
    for point in fork.session.log(branch=fork.branch_id):
        require_accepted(agent.fork(point.id).messages())
    assert agent.run("hello") == "hm"
    assert world.items == ["sofa"]


def test_a_call_that_ends_after_another_one_failed_waits_no_more(repo, monkeypatch):
    """LangGraph can lose what a task wrote that ends then: its question still stands in the graph checkpoint."""
    has_failed, put_writes = threading.Event(), SyncPregelLoop.put_writes

    def put_late(loop: Any, task_id: str, writes: Any) -> None:
        if has_failed.is_set() and any(channel == "__resume__" for channel, _ in writes):
            time.sleep(0.3)  # until the turn has ended
        put_writes(loop, task_id, writes)

    monkeypatch.setattr(SyncPregelLoop, "put_writes", put_late)

    @tool
    def charge(amount: int) -> str:
        """Ask, and charge once the other call has failed."""
        answer = interrupt(f"charge {amount}?")
        has_failed.wait(30)
        return str(answer)

    @tool
    def fail(why: str) -> str:
        """Fail."""
        has_failed.set()
        raise RuntimeError(why)

    agent = repo.wrap(create_agent(strict(), [charge, fail]), "s", effects={"charge": "irreversible"})
    for given in ({"messages": [("user", "charge 5; fail storm")]}, Command(resume="yes")):
        has_failed.clear()
        with pytest.raises(RuntimeError, match="storm"):
            agent.invoke(given)
    fork = agent.fork()
    for point in fork.session.log(branch=fork.branch_id):
        require_accepted(agent.fork(point.id).messages())
    assert agent.run("hello") == "hm"
    assert results(agent)["charge"] == "yes"


def asking_tools(raised: list[str]) -> dict[str, Any]:
    """Make the tools `charge`, which asks a person and then may fail, and `send`, which may fail and then asks."""

    @tool
    def charge(amount: int) -> str:
        """Ask, and charge."""
        answer = interrupt(f"charge {amount}?")
        if raised:
            raise RuntimeError(raised.pop())
        return str(answer)

    @tool
    def send(text: str) -> str:
        """Ask, and send."""
        if raised:
            raise RuntimeError(raised.pop())
        return str(interrupt(f"send {text}?"))

    return {"charge": charge, "send": send}


def supervisor(tools: Sequence[Any]) -> Any:
    """Make a graph whose tool `note` gives its text to a subagent, as a node of a graph, with these tools."""
    builder = StateGraph(MessagesState).add_node("inner", create_agent(strict(), [*tools], name="inner"))
    inner = builder.add_edge(START, "inner").compile()

    @tool
    def note(text: str) -> str:
        """Ask the subagent."""
        return str(inner.invoke({"messages": [("user", text.replace("_", " "))]})["messages"][-2].text)

    return create_agent(strict(), [note])


@pytest.mark.parametrize("is_inner", [False, True])
def test_a_question_that_was_answered_before_its_task_failed_waits_no_more(repo, is_inner):
    raised = ["storm"]
    tools = [*asking_tools(raised).values()]
    graph, text = (supervisor(tools), "note charge_5") if is_inner else (create_agent(strict(), tools), "charge 5")
    effects = {"charge": "read_only"} | ({"note": "read_only"} if is_inner else {})
    agent = repo.wrap(graph, "s", effects=effects)
    agent.invoke({"messages": [("user", text)]})
    with pytest.raises(RuntimeError, match="storm"):
        agent.invoke(Command(resume="yes"))
    assert agent.session.log().questions == []
    assert agent.fork().run("hello") == "hm"
    agent = agent.switch("main", sync="ignore")
    done = agent.invoke(Command(resume="no"))["messages"][-2]
    assert done.text == "yes", "LangGraph uses the first answer"


def test_what_a_node_asks_after_its_subgraph_has_failed_waits(repo):
    """The question of the subgraph, which was answered, does not hide it."""

    def ask(state):
        interrupt("first?")
        raise RuntimeError("storm")

    inner = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()

    def node(state):
        try:
            inner.invoke(state)
        except RuntimeError:
            return {"messages": [("ai", str(interrupt("go on without?")))]}

    agent = repo.wrap(node_graph(node), "s")
    agent.invoke({"messages": [("user", "hello")]})
    agent.invoke(Command(resume="A"))
    assert agent.session.log().questions == ["go on without?"]
    with pytest.raises(AnswerRequired, match="go on without"):
        agent.run("hello")
    assert agent.invoke(Command(resume="yes"))["messages"][-1].text == "yes"


@pytest.mark.parametrize("mode", ["answer", "undo", "raise"])
@pytest.mark.parametrize("reducer", [add_messages, operator.add])
def test_a_message_between_two_results_opens_no_call(repo, world, mode, reducer):
    """A tool may return one beside its result; the turn is done, and only the order that a provider takes is made."""

    @tool
    def photo(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Take a photo."""
        return Command(update={"messages": [ToolMessage("taken", tool_call_id=tool_call_id), HumanMessage("look")]})

    def model(state):
        last = state["messages"][-1]
        wanted = (
            calls(call("photo", "c1"), call("add", "c2", item="chair")) if last.content == "go" else AIMessage("hm")
        )
        return {"messages": [wanted]}

    builder = StateGraph(TypedDict("State", {"messages": Annotated[list, reducer]})).add_node("model", model)
    builder.add_node("tools", ToolNode([photo, world.tool("add")])).add_edge(START, "model")
    graph = builder.add_conditional_edges("model", tools_condition).compile()
    effects = world.effects() | {"photo": "read_only"}
    agent = repo.wrap(graph, "s", effects=effects, on_unanswered=mode, check_effects=False)
    agent.invoke({"messages": [HumanMessage("go", id="go")]})
    assert agent.fork().history() == agent.history(), "no call is open, so the fork has the whole turn"
    agent = agent.switch("main", sync="ignore")
    agent.invoke({"messages": [HumanMessage("hello", id="hello")]})
    assert world.items == ["chair"]
    roles = "".join(one["role"][0] for one in agent.history())
    assert roles == ("uattuua" if reducer is add_messages else "uatutua")


def channel_graph(key: str, reducer: Any, tools: Sequence[Any], **options: Any) -> Any:
    """Make a graph whose conversation is in a channel of this name; without a reducer, an input replaces it."""
    model = strict()
    builder = StateGraph(TypedDict("State", {key: Annotated[list, reducer] if reducer else list}))
    builder.add_node("model", lambda s: {key: [*([] if reducer else s[key]), model.invoke(s[key])]})
    builder.add_node("tools", ToolNode(tools, messages_key=key, handle_tool_errors=False))
    builder.add_edge(START, "model").add_edge("tools", "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state[key][-1].tool_calls else "__end__")
    return builder.compile(**options)


@pytest.mark.parametrize("reducer", [add_messages, operator.add, None])
def test_open_calls_are_answered_in_the_channel_that_holds_the_conversation(repo, world, reducer):
    """Whatever its name. An input that replaces the conversation leaves no call open."""

    @tool
    def photo(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Take a photo."""
        return Command(update={"chat": [ToolMessage("taken", tool_call_id=tool_call_id)]})

    tools = [*world.tools(), photo]
    agent = repo.wrap(channel_graph("chat", reducer, tools), "s", effects=world.effects() | {"photo": "read_only"})
    wanted = calls(call("photo", "c1"), call("fail", "c2", why="storm"))
    agent.update_state(None, {"chat": [HumanMessage("go"), wanted]}, as_node="model")
    with pytest.raises(RuntimeError, match="storm"):
        agent.invoke(None)
    for _ in range(2):
        assert agent.invoke({"chat": [HumanMessage("hello")]})["chat"][-1].text == "hm"
    if reducer is not None:
        assert results(agent)["photo"] == "taken"
        assert results(agent)["fail"].startswith("Unknown: it raised")


@pytest.mark.parametrize("is_inner", [False, True])
def test_a_question_after_a_failure_waits_for_its_answer(repo, is_inner):
    raised = ["storm"]
    tools = [*asking_tools(raised).values()]
    graph, text = (supervisor(tools), "note send_x") if is_inner else (create_agent(strict(), tools), "send x")
    agent = repo.wrap(graph, "s", effects={"send": "read_only"} | ({"note": "read_only"} if is_inner else {}))
    with pytest.raises(RuntimeError, match="storm"):
        agent.run(text)
    agent.invoke(None)
    with pytest.raises(AnswerRequired, match=r"send x\?"):
        agent.run("hello")
    assert agent.session.log().questions == ["send x?"]
    assert agent.invoke(Command(resume="yes"))["messages"][-2].text == "yes"


def test_open_calls_before_other_messages_are_answered_where_they_stand(repo, graph, world):
    """A message that update_state has put after the open calls stays after their results, with its id."""
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.run("add table")
    break_off(agent)
    agent.update_state(None, {"messages": [HumanMessage("by the way", id="later")]})
    assert agent.run("hello") == "hm"
    assert [(one["role"], one["content"]) for one in agent.history()][-3:-1] == [
        ("user", "by the way"),
        ("user", "hello"),
    ]
    assert agent.history()[-3]["id"] == "later"
    assert agent.run("hello") == "hm"


def test_results_that_came_after_another_message_are_moved(repo, world):
    """The provider refuses the turn that goes on after update_state has put a message there, but not the next one."""
    agent = repo.wrap(create_agent(strict(), world.tools()), "s", effects=world.effects())
    agent.invoke({"messages": [("user", "note x; add_if_approved sofa")]})
    agent.update_state(None, {"messages": [HumanMessage("by the way")]})
    with pytest.raises(Refused):
        agent.invoke(Command(resume="yes"))
    assert agent.run("hello") == "hm"
    roles = [(one["role"], one["content"]) for one in agent.history()]
    assert roles[2:5] == [("tool", "noted"), ("tool", '{"item": "sofa", "number": 1}'), ("user", "by the way")]
    assert world.items == ["sofa"]


def test_a_message_can_be_refused_while_calls_are_open(repo, graph, world):
    agent = repo.wrap(graph, "s", effects=world.effects(), on_unanswered="raise")
    break_off(agent)
    before = agent.history()
    with pytest.raises(Conflict, match=r"add\(item='chair'\).*Nothing was run.*agent\.invoke\(None\)"):
        agent.run("hello")
    assert agent.history() == before
    assert agent.undo().run("hello") == "hm"


def test_a_refused_message_names_the_undo_only_if_there_is_a_checkpoint(repo, graph, world):
    agent = repo.wrap(graph, "s", effects=world.effects(), on_unanswered="raise", auto_checkpoint="off")
    break_off(agent)
    with pytest.raises(Conflict) as refused:
        agent.run("hello")
    assert [step.verb for step in refused.value.next] == ["continue", "answer_calls"]
    agent.checkpoint("before the call")
    with pytest.raises(Conflict) as refused:
        agent.run("hello")
    assert [step.verb for step in refused.value.next] == ["continue", "undo", "answer_calls"]
    assert agent.undo().run("hello") == "hm"


def test_a_message_can_take_the_turn_back_that_broke_off(repo, graph, world):
    """The agent goes on with a new branch, where neither the message nor the effects of that turn are left."""
    agent = repo.wrap(graph, "s", effects=world.effects(), on_unanswered="undo")
    agent.run("add table")
    break_off(agent)
    assert agent.run("hello") == "hm"
    assert (world.items, agent.branch.name) == (["table"], "main-2")
    assert [one["content"] for one in agent.history() if one["role"] == "user"] == ["add table", "hello"]


ONWARD = {
    "checkpoint": lambda agent: agent,
    "fork": lambda agent: agent.fork(),
    "rollback": lambda agent: agent.rollback("asking", force=True),
}


@pytest.mark.parametrize("how", ONWARD)
@pytest.mark.parametrize("is_undo", [False, True])
def test_a_turn_that_asks_is_taken_back_past_the_checkpoints_of_its_question(repo, graph, world, how, is_undo):
    """By a message or by undo: the agent stands before the turn, not where it waits for the answer again."""
    agent = repo.wrap(graph, "s", effects=world.effects(), on_unanswered="undo")
    agent.run("add table")
    agent.invoke({"messages": [("user", "add chair; add_if_approved sofa")]})
    agent.checkpoint("asking")
    agent = ONWARD[how](agent)
    if is_undo:
        agent = agent.undo()
    assert agent.run("hello", on_question="drop") == "hm"
    assert [one["content"] for one in agent.history() if one["role"] == "user"] == ["add table", "hello"]
    assert world.items == ["table"]


def test_a_turn_before_which_no_checkpoint_stands_is_not_taken_back(repo, graph, world):
    agent = repo.wrap(graph, "s", effects=world.effects(), on_unanswered="undo", auto_checkpoint="off")
    break_off(agent)
    with pytest.raises(Conflict, match=r"no checkpoint stands before them.*agent\.invoke\(None\)"):
        agent.run("hello")
    assert [branch.name for branch in agent.session.branches()] == ["main"]


def test_taking_the_turn_back_is_blocked_by_what_cannot_be_undone(repo, graph, world):
    agent = repo.wrap(graph, "s", effects=world.effects(), on_unanswered="undo")
    break_off(agent, "send letter; fail storm")
    with pytest.raises(RollbackBlocked) as refused:
        agent.run("hello")
    assert agent.branch.name == "main"
    assert "force=True" not in str(refused.value)
    assert {step.verb for step in refused.value.next} == {"undo", "answer_calls"}
    with pytest.raises(RollbackBlocked, match="force=True"):
        agent.undo()
    assert agent.undo(force=True).run("hello") == "hm"


def test_taking_the_turn_back_takes_nothing_back_that_another_branch_did(repo, graph, world):
    agent = repo.wrap(graph, "s", effects=world.effects(), on_unanswered="undo")
    agent.run("add table")
    other = agent.fork(name="other")
    break_off(agent)
    other.switch("other", "world").run("add lamp")
    agent = agent.switch("main", "ignore")
    before = list(world.items)
    with pytest.raises(WorldDiverged, match=r"broke off before these calls were answered.*other branches did"):
        agent.run("hello")
    assert world.items == before
    assert agent.undo(plan=agent.plan_undo()).run("hello") == "hm"


def test_a_stale_redo_takes_back_no_turn_of_another_agent(repo, graph, world):
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.run("add table")
    back = agent.undo()
    repo.wrap(graph, "s", effects=world.effects()).run("add lamp")
    with pytest.raises(Conflict, match="has moved since this agent last saw it"):
        back.redo()
    assert world.items == ["lamp"]
    back.redo(plan=back.plan_redo())
    assert world.items == ["table"]


def test_the_model_is_told_the_result_of_a_call_that_ran_again(repo, graph, world):
    agent = repo.wrap(graph, "s", effects=world.effects())
    break_off(agent)
    agent = agent.rollback("main#1").redo()
    assert world.items == ["chair"]
    agent.run("hello")
    assert "chair" in results(agent)["add"]


@pytest.mark.parametrize("how", ["resolved", "answered by a function", "as it was"])
def test_a_rerun_has_one_result_for_a_call_that_was_open(repo, graph, world, how):
    """The model is told that it is unknown only if the rerun does not know it either."""
    agent = repo.wrap(graph, "s", effects=world.effects(fail="irreversible"))
    break_off(agent, "fail storm")
    agent.run("hello")
    if how == "resolved":
        repo.resolve(agent.tool_track()[0], "happened", result="calm")
    again = agent.rerun(tools={"fail": lambda call: "calm"} if how == "answered by a function" else "record")
    require_accepted(again.get_state().values["messages"])
    (told,) = results(again).values()
    assert told == "calm" or (how == "as it was" and told.startswith("Unknown: "))


@pytest.mark.parametrize("mode", ["answer", "undo", "raise"])
def test_a_served_graph_does_the_same(repo, graph, world, mode):
    app, config = repo.graph(graph, effects=world.effects(), on_unanswered=mode), THREAD
    app.invoke({"messages": [("user", "add table")]}, config)
    with pytest.raises(RuntimeError, match="storm"):
        app.invoke({"messages": [("user", "add chair; fail storm")]}, config)
    if mode == "raise":
        with pytest.raises(Conflict, match="Nothing was run"):
            app.invoke({"messages": [("user", "hello")]}, config)
        return
    for _ in range(2):
        assert app.invoke({"messages": [("user", "hello")]}, config)["messages"][-1].text == "hm"
    assert world.items == (["table"] if mode == "undo" else ["table", "chair"])


def test_a_message_at_a_state_of_history_that_holds_an_open_call_takes_its_turn_back(repo, graph, world):
    app = repo.graph(graph, effects=world.effects(), on_unanswered="undo", confirm="never")
    app.invoke({"messages": [("user", "add table")]}, THREAD)
    with pytest.raises(RuntimeError, match="storm"):
        app.invoke({"messages": [("user", "add chair; fail storm")]}, THREAD)
    calling = [one for one in app.get_state_history(THREAD) if one.next and one.next[0] == "tools"]
    for state, said in zip(calling, [["add table", "hello"], ["hello"]], strict=True):
        values = app.invoke({"messages": [("user", "hello")]}, state.config)
        assert [one.text for one in values["messages"] if one.type == "human"] == said
    assert world.items == []


@pytest.mark.parametrize("mode", ["answer", "undo"])
@pytest.mark.parametrize("left", ["going back", "undo", "going on"])
def test_the_end_of_a_branch_that_broke_off_and_was_left_can_be_the_start_of_a_run(repo, graph, world, mode, left):
    app = repo.graph(graph, effects=world.effects(), on_unanswered=mode)

    def say(text: str, config: Any = THREAD) -> Any:
        return app.invoke({"messages": [("user", text)]}, config)

    say("add table")
    first = app.get_state(THREAD).config
    with pytest.raises(RuntimeError, match="storm"):
        say("add chair; fail storm")
    broken = app.get_state(THREAD).config
    if left == "undo":
        repo.session("t").undo()
    else:
        say("hello", first if left == "going back" else THREAD)
    for _ in range(2):
        answered = say("hello", broken)
        assert answered["messages"][-1].text == "hm"
        require_accepted(answered["messages"])


def test_an_unknown_choice_is_refused(repo, graph):
    with pytest.raises(agentgit.errors.InvalidInput, match="'answer', 'undo' or 'raise'"):
        repo.wrap(graph, "s", on_unanswered="ignore")


class Life:
    """A session on which random things happen. After each, a fork of it can go on with a new message."""

    def __init__(self, repo: Any, chance: random.Random, world: World, kind: str) -> None:
        self.chance, self.world, self.repo = chance, world, repo
        self.graph = GRAPHS[kind](world)
        self.agent = repo.wrap(self.graph, "t", effects=world.effects())
        self.app = repo.graph(self.graph, effects=world.effects(), confirm="never")

    def text(self) -> str:
        orders = ["add chair", "look", "note x", "fail storm", "add_if_approved sofa", "charge 5", "hello"]
        return "; ".join(self.chance.sample(orders, self.chance.randint(1, 3)))

    def say(self) -> None:
        self.agent.invoke({"messages": [("user", self.text())]})

    def answer(self) -> None:
        self.agent.invoke(Command(resume="yes"))

    def go_on(self) -> None:
        self.agent.invoke(None)

    def cancel(self) -> None:
        async def run() -> None:
            turn = asyncio.create_task(self.agent.ainvoke({"messages": [("user", self.text())]}))
            await asyncio.sleep(self.chance.random() / 20)
            turn.cancel()
            await turn

        asyncio.run(run())

    def checkpoint(self) -> None:
        self.agent.checkpoint("by hand")

    def point(self) -> int:
        return int(self.chance.choice([*self.agent.session.log(branch=self.agent.branch_id)]).id)

    def roll_back(self) -> None:
        self.agent = self.agent.rollback(self.point(), force=True)

    def undo(self) -> None:
        self.agent = self.agent.undo(force=True)

    def fork(self) -> None:
        self.agent = self.agent.fork(self.point())

    def switch(self) -> None:
        branch = self.chance.choice(self.repo.session("t").branches())
        self.agent = self.agent.switch(branch.id, sync="world", force=True)

    def edit(self) -> None:
        ids = [one["id"] for one in self.agent.history() if one["role"] == "user"]
        self.agent = self.agent.edit(self.chance.choice(ids), self.text(), force=True)

    def merge(self) -> None:
        self.agent.merge(self.chance.choice(self.repo.session("t").branches()).id, resolve="theirs")

    def add_message(self) -> None:
        self.agent.update_state(None, {"messages": [HumanMessage("by the way")]})

    def serve(self) -> None:
        self.agent = self.agent.switch(self.agent.branch_id, sync="world", force=True)
        thread_id = self.repo.session("t").info.metadata.get("thread_id", "t")
        self.app.invoke({"messages": [("user", self.text())]}, {"configurable": {"thread_id": thread_id}})

    def step(self) -> str:
        verbs = [self.say] * 4 + [
            self.answer, self.go_on, self.cancel, self.checkpoint, self.roll_back, self.undo, self.fork, self.switch,
            self.edit, self.merge, self.add_message, self.serve,
        ]  # fmt: skip
        verb = self.chance.choice(verbs)
        # The provider refuses a turn that goes on with calls after which `add_message` has put a message.
        with suppress(RuntimeError, AgentGitError, EmptyInputError, asyncio.CancelledError, IndexError, Refused):
            verb()
        return verb.__name__

    def require_way_on(self, done: list[str]) -> None:
        fork = self.agent.fork()
        fork.switch(fork.branch_id, sync="ignore")
        assert fork.run("hello", on_question="drop") == "hm", done
        for point in list(fork.session.log(branch=fork.branch_id))[:4]:
            on = fork.fork(point.id)
            if not on.get_state().interrupts:
                require_accepted(on.messages())
        self.agent.switch(self.agent.branch_id, sync="ignore")


@pytest.mark.long
@pytest.mark.parametrize("steps", [12, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", GRAPHS)
def test_no_state_is_a_dead_end(repo, world, kind, steps):
    """Whatever fails, is cancelled, edited, rolled back, forked, merged or served: a new message is accepted."""
    life, done = Life(repo, random.Random(f"{kind} {soaks.SEED}"), world, kind), []  # noqa: S311  # to come again
    for _ in range(steps):
        done.append(life.step())
        life.require_way_on(done)


KILLED = """
import os, signal, sys
from langchain_core.tools import InjectedToolCallId, tool
import agentgit, scripted, test_unanswered_calls as tests

@tool
def add(item: str) -> str:
    "Die."
    os.kill(os.getpid(), signal.SIGKILL)

graph = scripted.tool_node_graph(tests.strict(), [add])
agentgit.open({url!r}).wrap(graph, "s", effects={{"add": "irreversible"}}).run("add chair; add table")
"""


def test_a_new_message_after_a_kill_says_what_is_unknown(database, repo, world, tmp_path):
    url = database.url.render_as_string(hide_password=False)
    assert processes.run(KILLED.format(url=url), cwd=tmp_path).returncode == -9
    agent = repo.wrap(GRAPHS["tool node"](world), "s", effects=world.effects())
    with pytest.warns(agentgit.errors.TurnAbandoned, match="told what is known"):
        assert agent.run("hello") == "hm"
    assert "Unknown: it was interrupted" in str([one["content"] for one in agent.history()])


@pytest.mark.parametrize("key", ["messages", "chat"])
def test_a_subagent_with_memory_goes_on_after_its_turn_broke_off(repo, world, key):
    """Its conversation, too, gets what is known of the calls that it left open."""
    inner = channel_graph(key, add_messages, world.tools(), checkpointer=True, name="inner")

    @tool
    def ask(text: str) -> str:
        """Ask the subagent."""
        return str(inner.invoke({key: [("user", text)]})[key][-1].text)

    def rule(messages: Sequence[BaseMessage]) -> AIMessage:
        require_accepted(messages)
        last = messages[-1]
        return calls(call("ask", text=last.text)) if last.type == "human" else calls(text=last.text)

    graph = tool_node_graph(ScriptedModel(rule=rule), [ask], handle_tool_errors=False)
    agent = repo.wrap(graph, "s", effects=world.effects())
    assert agent.run("add chair") == "done"
    break_off(agent, "add sofa; fail storm")
    assert [agent.run("hello"), agent.run("add table")] == ["hm", "done"]
    assert world.items == ["chair", "sofa", "table"]
