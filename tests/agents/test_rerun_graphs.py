"""Reruns of graphs with retries, commands, updates, breakpoints, middleware, state tools and artifacts."""

import asyncio
import contextlib
from typing import Annotated, Any

import pytest
from chains import replying
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.cache.memory import InMemoryCache
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy, Command, RetryPolicy
from scripted import call, calls, obedient, scripted, tool_node_graph

from agentgit import Conflict
from agentgit.testing import RecordedModel


def said(text):
    return {"messages": [HumanMessage(text)]}


def require_same(agent, again):
    report = again.report
    assert (report.status, report.match_rate, report.is_same_state) == ("done", 1.0, True), str(report)
    assert {call.status for call in again.tool_track()} <= {"simulated"}
    assert [call.tool_name for call in again.tool_track()] == [call.tool_name for call in agent.tool_track()]


@pytest.mark.parametrize(
    ("attempts", "policy"),
    [([3], None), ([1, 3], None), ([2], None), ([2, 1, 3], None), ([1], RetryPolicy(initial_interval=0.01))],
    ids=["3", "1, 3", "2", "2, 1, 3", "1 with a policy"],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_turn_that_its_caller_or_its_graph_tries_again(repo, attempts, policy, is_async):
    """Each attempt at a call has its own record. A turn that never succeeded goes on as often as it did, too."""
    made = []

    @tool
    def pay(amount: int) -> dict[str, Any]:
        """Pay."""
        made.append(amount)
        if made.count(amount) < 3:
            raise ConnectionError(f"no network ({len(made)})")
        return {"paid": amount}

    graph = replying(lambda messages: pay.invoke({"amount": int(messages[-1].text)}), retry_policy=policy)
    agent = repo.wrap(graph, "s", effects={"pay": "idempotent"}, check_effects=False)
    for amount, count in enumerate(attempts):
        for number in range(count):
            with contextlib.suppress(ConnectionError):
                agent.invoke(None if number else said(str(amount)))
    before = list(made)
    again = asyncio.run(agent.arerun()) if is_async else agent.rerun()
    assert (again.report.status, again.report.turns, again.report.not_made) == ("done", len(attempts), [])
    require_same(agent, again)
    assert [one.error_message for one in again.tool_track()] == [one.error_message for one in agent.tool_track()]
    assert made == before
    assert policy is None or len(made) == 3


def test_a_person_who_corrects_the_state_after_an_error(repo, world):
    tools = {tool.name: tool for tool in world.tools()}

    def look(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", "looking")]}

    def act(state: MessagesState) -> dict[str, Any]:
        name, _, item = state["messages"][0].text.partition(" ")
        argument = "why" if name == "fail" else "item"
        return {"messages": [("ai", str(tools[name].invoke({argument: item})))]}

    builder = StateGraph(MessagesState).add_node("look", look).add_node("act", act)
    graph = builder.add_edge(START, "look").add_edge("look", "act").compile()
    agent = repo.wrap(graph, "s", effects=world.effects(), check_effects=False)
    with pytest.raises(RuntimeError):
        agent.invoke(said("fail now"))
    corrected = HumanMessage("add chair", id=agent.messages()[0].id)
    agent.update_state(None, {"messages": [corrected]}, as_node="look")
    agent.invoke(None)
    require_same(agent, agent.rerun())
    assert world.items == ["chair"]


def test_a_node_that_fails_only_in_the_rerun_is_not_run_for_ever(repo):
    """What a caller continued is repeated while the record has calls for it; then the error ends the rerun."""
    failures = []

    def act(messages):
        failures.append(messages[-1].text)
        if len(failures) != 2:
            raise ConnectionError("no network")
        return "done"

    agent = repo.wrap(replying(act), "s")
    with pytest.raises(ConnectionError):
        agent.invoke(said("go"))
    agent.invoke(None)
    report = agent.rerun().report
    assert (report.status, report.reason) == ("failed", "ConnectionError: no network")
    assert len(failures) == 4


def test_commands_and_updates_of_a_caller(repo):
    """They are inputs like a message, also of another build of the graph, whose input has fewer keys than its state."""

    class Counted(MessagesState):
        count: int

    def talk(state: Counted) -> dict[str, Any]:
        return {"messages": [("ai", f"heard {len(state['messages'])}")]}

    def build():
        builder = StateGraph(Counted, input_schema=MessagesState).add_node("talk", talk).add_node("other", talk)
        return builder.add_edge(START, "talk").compile()

    agent = repo.wrap(build(), "s")
    agent.invoke(said("one"))
    agent.invoke(Command(goto="other", update={"messages": [HumanMessage("two")], "count": 2}))
    agent.update_state(None, {"messages": [HumanMessage("three")], "count": 3}, as_node="other")
    agent.invoke(said("four"))
    for again in (agent.rerun(), agent.rerun(build())):
        require_same(agent, again)
        assert [one.content for one in again.messages()] == [one.content for one in agent.messages()]
        assert (again.state["count"], again.report.recorded_turns) == (3, 4)


def stopping(model, world):
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode(world.tools()))
    builder.add_edge(START, "model").add_edge("tools", "model").add_conditional_edges("model", tools_condition)
    return builder.compile(interrupt_before=["tools"])


@pytest.mark.parametrize("is_recorded", [False, True])
def test_what_a_person_does_at_a_breakpoint(repo, world, is_recorded):
    """A call is edited, another one is answered in place of the tool, and the last one is left there."""
    agent = repo.wrap(stopping(obedient(), world), "s", effects=world.effects())
    agent.invoke(said("add chair"))
    asked = agent.messages()[-1]
    edited = {**asked.tool_calls[0], "args": {"item": "desk"}}
    agent.update_state(None, {"messages": [AIMessage("", id=asked.id, tool_calls=[edited])]})
    agent.invoke(None)
    agent.invoke(said("add table"))
    answer = ToolMessage("we have no tables", tool_call_id=agent.messages()[-1].tool_calls[0]["id"])
    agent.update_state(None, {"messages": [answer]}, as_node="tools")
    agent.invoke(None)
    agent.invoke(said("add lamp"))
    again = agent.rerun(stopping(RecordedModel(agent), world)) if is_recorded else agent.rerun()
    require_same(agent, again)
    assert again.get_state().next == agent.get_state().next == ("tools",)
    asked, answer = again.messages()[5:7]
    assert (answer.content, answer.tool_call_id) == ("we have no tables", asked.tool_calls[0]["id"])
    assert world.items == ["desk"]


@pytest.mark.parametrize("is_recorded", [False, True])
def test_messages_that_a_caller_removes(repo, world, is_recorded):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    agent.update_state(None, {"messages": [RemoveMessage(message.id) for message in agent.messages()[1:3]]})
    agent.run("add lamp")
    again = agent.rerun(tool_node_graph(RecordedModel(agent), world.tools())) if is_recorded else agent.rerun()
    require_same(agent, again)
    assert [one.content for one in again.messages()] == [one.content for one in agent.messages()]


def test_a_session_that_begins_with_an_update(repo, world):
    agent = repo.wrap(stopping(obedient(), world), "s", effects=world.effects())
    agent.update_state(None, {"messages": [HumanMessage("add chair")]}, as_node="__start__")
    agent.invoke(None)
    middle = agent.checkpoint("middle")
    agent.invoke(None)
    require_same(agent, agent.rerun())
    again = agent.rerun(start=middle)
    require_same(agent, again)
    assert again.report.recorded_turns == 1


def test_a_middleware_that_asks_a_person(repo, world):
    asks = HumanInTheLoopMiddleware(interrupt_on={"add": True})

    def build():
        asked = [calls(call("add", item="chair")), "no chair then", calls(call("add", item="table")), "a table"]
        return create_agent(scripted(*asked), world.tools(), middleware=[asks])

    agent = repo.wrap(build(), "s", effects=world.effects())
    agent.invoke(said("a chair"))
    agent.invoke(Command(resume={"decisions": [{"type": "reject", "message": "too dear"}]}))
    agent.invoke(said("a table"))
    agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}))
    assert world.items == ["table"]
    again = agent.rerun(build())
    require_same(agent, again)
    assert "too dear" in [message.content for message in again.messages()][2]
    assert world.items == ["table"]


def test_parallel_calls_with_equal_results_stay_apart(repo):
    @tool
    def send(to: str) -> str:
        """Send a letter."""
        return "sent"

    def graph(model):
        return create_agent(model, tools=[send])

    three = calls(*(call("send", to=name) for name in ("ann", "bob", "cy")))
    agent = repo.wrap(graph(scripted(three, "done")), "s", effects={"send": "irreversible"})
    agent.run("go")
    for again in (agent.rerun(), agent.rerun(graph(RecordedModel(agent)))):
        require_same(agent, again)
        assert len({message.id for message in again.messages()}) == 6


@pytest.mark.parametrize("policy", ["record", "live"])
def test_a_tool_that_changes_only_the_state(repo, policy):
    entered = []

    @tool
    def rename(name: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command:
        """Rename the customer."""
        entered.append(name)
        return Command(update={"messages": [ToolMessage(f"now {name}", tool_call_id=tool_call_id)], "name": name})

    class Customer(MessagesState):
        name: str

    def build():
        model = scripted(calls(call("rename", name="Ann")), "done")
        builder = StateGraph(Customer).add_node("model", lambda s: {"messages": [model.invoke(s["messages"])]})
        builder.add_node("tools", ToolNode([rename])).add_edge(START, "model").add_edge("model", "tools")
        return builder.compile()

    agent = repo.wrap(build(), "s", effects={"rename": "state"})
    agent.invoke(said("I am Ann"))
    again = agent.rerun(build(), tools=policy)
    assert again.state["name"] == "Ann"
    assert (again.report.match_rate, again.report.is_same_state) == (1.0, True)
    assert entered == ["Ann"] * (2 if policy == "live" else 1)


def test_contents_artifacts_and_errors_that_the_model_saw(repo):
    class Chair:
        def __str__(self) -> str:
            return "a chair of oak"

    @tool(response_format="content_and_artifact")
    def draw(what: str) -> tuple[str, dict[str, Any]]:
        """Draw."""
        return f"drew {what}", {"pixels": (1, 2), "raw": b"png"}

    @tool
    def find(what: str) -> Any:
        """Find."""
        return Chair()

    @tool
    def fail(why: str) -> str:
        """Fail."""
        raise LookupError(why)

    def build():
        asked = calls(call("draw", what="it"), call("find", what="chair"), call("fail", why="nothing there"))
        return tool_node_graph(scripted(asked, "done"), [draw, find, fail], handle_tool_errors=True)

    agent = repo.wrap(build(), "s")
    agent.invoke(said("go"))
    again = agent.rerun(build(), name="same")
    require_same(agent, again)
    seen = [(m.content, m.artifact, m.status) for m in again.messages() if m.type == "tool"]
    assert seen == [(m.content, m.artifact, m.status) for m in agent.messages() if m.type == "tool"]
    assert seen[1][0] == "a chair of oak"
    other = agent.rerun(build(), tools={"draw": lambda _: ("drew it", [3])})
    assert [message.content for message in other.messages()] == [message.content for message in agent.messages()]
    assert (other.report.match_rate, other.report.is_same_state) == (1.0, False)


def test_errors_that_a_node_sees(repo):
    @tool
    def find(what: str) -> str:
        """Find."""
        raise {"key": KeyError, "value": ValueError, "text": TimeoutError}[what](f"no {what}")

    def look(messages):
        said = []
        for what in ("key", "value", "text"):
            try:
                find.invoke({"what": what})
            except (KeyError, ValueError, TimeoutError) as error:
                said.append(repr(error))
        return " ".join(said)

    agent = repo.wrap(replying(look), "s", effects={"find": "read_only"}, check_effects=False)
    agent.run("go")
    again = agent.rerun()
    require_same(agent, again)
    assert again.messages()[-1].content == "KeyError('no key') ValueError('no value') TimeoutError('no text')"


def test_the_tools_of_agentgit_do_not_act(repo, world):
    def build(agent_tools):
        asked = [calls(call("create_checkpoint", name="mine")), "saved", calls(call("add", item="chair")), "ordered"]
        return tool_node_graph(scripted(*asked), [*world.tools(), *agent_tools])

    session = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    tools = session.checkpoint_tools()
    agent = repo.wrap(build(tools), "s", effects=world.effects())
    agent.invoke(said("save"))
    agent.invoke(said("a chair"))
    names = [point.checkpoint_name for point in agent.checkpoints() if point.checkpoint_name]
    again = agent.rerun(build(tools))
    assert again.report.match_rate == 1, str(again.report)
    assert again.report.is_same_state
    assert [point for point in again.checkpoints() if point.checkpoint_name == "mine"] == []
    assert [point.checkpoint_name for point in agent.checkpoints() if point.checkpoint_name] == names


def test_a_cache_of_nodes_starts_empty(repo):
    """What the user's cache holds does not answer for nodes of a rerun, and a rerun adds nothing to it."""
    ran = []

    def act(state: dict[str, Any]) -> dict[str, Any]:
        ran.append(1)
        return {"answer": "thought"}

    class State(MessagesState):
        answer: str

    builder = StateGraph(State)
    builder.add_node("act", act, cache_policy=CachePolicy(key_func=lambda state: "same"))
    agent = repo.wrap(builder.add_edge(START, "act").compile(cache=InMemoryCache()), "s")
    agent.invoke(said("one"))
    agent.invoke(said("two"))
    assert len(ran) == 1
    again = agent.rerun()
    require_same(agent, again)
    assert len(ran) == 2


def test_a_session_without_automatic_checkpoints(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(), auto_checkpoint="off")
    agent.invoke(said("add chair"))
    agent.invoke(said("look"))
    again = agent.rerun(name="again")
    require_same(agent, again)
    assert again.branch.name == "again"
    assert "again" in str(agent.tree())
    with pytest.raises(Conflict, match="already exists"):
        agent.rerun(name="again")
    assert not repo.maintenance.fsck().findings
    real = agent.switch("again", sync="world")
    assert world.items == ["chair"]
    real.invoke(said("add lamp"))
    assert world.items == ["chair", "lamp"]


@pytest.mark.parametrize("policy", ["record", "live"])
def test_a_tool_that_calls_a_tool_itself(repo, policy):
    """An answered tool makes no calls, and these are not missing; the calls of one that runs are answered."""
    entered = []

    @tool
    def price(item: str) -> int:
        """Look up a price."""
        entered.append("price")
        return 40

    @tool
    def quote(item: str) -> str:
        """Quote."""
        entered.append("quote")
        return f"{price.invoke({'item': item})} euros"

    graph = replying(lambda _: quote.invoke({"item": "chair"}))
    agent = repo.wrap(graph, "s", effects={"quote": "read_only"}, check_effects=False)
    agent.invoke(said("how much"))
    assert entered == ["quote", "price"]
    report = agent.rerun(tools={"quote": policy}).report
    assert (report.status, report.not_made, report.new, report.is_same_state) == ("done", [], [], True)
    assert entered[2:] == (["quote"] if policy == "live" else [])


def test_a_function_of_a_policy_may_be_async(repo):
    @tool
    async def find(what: str) -> str:
        """Find."""
        raise AssertionError("a rerun has entered a tool")

    async def answer(asked: Any) -> str:
        await asyncio.sleep(0)
        if asked.args["what"] == "nothing":
            raise LookupError("not there")
        return f"found {asked.args['what']}"

    def build():
        asked = calls(call("find", what="it"), call("find", what="nothing"))
        return tool_node_graph(scripted(asked, "done"), [find], handle_tool_errors=True)

    async def run():
        agent = repo.wrap(build(), "s", effects={"find": "read_only"})
        with contextlib.suppress(AssertionError):
            await agent.ainvoke(said("go"))
        return await agent.arerun(build(), tools={"find": answer})

    again = asyncio.run(run())
    contents = [message.content for message in again.messages() if message.type == "tool"]
    assert contents[0] == "found it"
    assert "not there" in contents[1]
    assert [one.answered_by for one in again.report.calls] == ["function", "function"]


def test_files_stay_and_memory_is_read_in_its_order(repo, tmp_path):
    """Searches, filters and namespaces find what they found. What a node writes, or changes in place, stays there."""
    store = InMemoryStore()
    store.put(("notes",), "old", {"n": 1, "seen": 0})

    def remember(state, runtime: Runtime):
        memory, text = runtime.store, state["messages"][-1].content
        memory.get(("notes",), "old").value["seen"] += 1
        memory.put(("notes",), text, {"n": len(text)})
        found = [item.key for item in memory.search(("notes",))]
        long = [item.key for item in memory.search(("notes",), filter={"n": {"$gte": 5}})]
        names = memory.list_namespaces(max_depth=1)
        return {"messages": [("ai", f"{found} {long} {names} {memory.get(('notes',), 'old').value}")]}

    (tmp_path / "work").mkdir()
    graph = StateGraph(MessagesState).add_node("remember", remember).add_edge(START, "remember").compile(store=store)
    agent = repo.wrap(graph, "s", workspace=tmp_path / "work")
    for number, text in enumerate(("hi", "hello", "hi")):
        agent.invoke(said(text))
        agent.checkpoint(f"turn {number}")
    (tmp_path / "work" / "mine.txt").write_text("changed by a person")
    assert agent.rerun().report.is_same_state
    assert asyncio.run(agent.arerun()).report.is_same_state
    assert agent.rerun(end="turn 0").report.is_same_state  # "hello" was put later
    assert [item.value for item in store.search(("notes",))] == [{"n": 1, "seen": 0}, {"n": 2}, {"n": 5}]
    assert (tmp_path / "work" / "mine.txt").read_text() == "changed by a person"
