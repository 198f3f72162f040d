"""`RecordedModel`: an unchanged graph gets the recorded replies; the first request that differs is named."""

import asyncio
import operator
from typing import Annotated, TypedDict

import pytest
from chains import replying
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel
from scripted import GRAPHS, World, call, calls, obedient, saying, scripted, tool_node_graph

import agentgit
from agentgit.demo import ScriptedModel
from agentgit.testing import RecordedModel

TEXTS = ("add chair; charge 5", "look", "thanks")


def content(messages):
    return [(m.type, m.content, m.name, getattr(m, "tool_calls", None), m.id * (m.type == "ai")) for m in messages]


class SilentModel(ScriptedModel):
    """A scripted model that does not report its tools, as some fakes do."""

    def bind_tools(self, tools, **kwargs):
        return self


def chatting(model, prompt="Be brief.", before=lambda messages: messages):
    return replying(lambda messages: model.invoke([SystemMessage(prompt), *before(messages)]))


def changed(graph, *texts):
    def run():
        messages = []
        for text in texts:
            messages = graph.invoke({"messages": [*messages, ("user", text)]})["messages"]

    with pytest.raises(agentgit.PromptChanged) as caught:
        run()
    return caught.value


@pytest.fixture
def recorded(repo):
    agent = repo.wrap(chatting(scripted("hello", "fine", "bye")), session="recorded")
    for text in ("hi", "how are you?", "bye"):
        agent.run(text)
    return agent


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream"])
@pytest.mark.parametrize("kind", GRAPHS)
def test_an_unchanged_graph_gets_the_recorded_replies(repo, kind, way):
    world = World()
    agent = repo.wrap(GRAPHS[kind](obedient(), world.tools()), session="recorded", effects=world.effects())
    for text in TEXTS:
        agent.run(text)
    model, other = RecordedModel(agent), World()
    again = repo.wrap(GRAPHS[kind](model, other.tools()), session="again", effects=other.effects())
    for text in TEXTS:
        value = {"messages": [("user", text)]}
        if way == "invoke":
            again.invoke(value)
        elif way == "ainvoke":
            asyncio.run(again.ainvoke(value))
        else:
            assert [*again.stream(value, stream_mode="messages")]
    assert content(again.messages()) == content(agent.messages())
    assert sorted(map(str, other.log)) == sorted(map(str, world.log))  # tools of one step run in any order
    assert model.has_requests
    assert model.remaining == 0
    model.check_complete()


def test_replies_keep_their_ids_and_usage(repo):
    reply = AIMessage(
        "so be it",
        id="ai-1",
        tool_calls=[call("look", "call-1", where="here", depth=2)],
        usage_metadata={"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
        response_metadata={"model_name": "m", "finish_reason": "stop"},
    )

    class Exact(ScriptedModel):
        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            return ChatResult(generations=[ChatGeneration(message=reply.model_copy())])

    agent = repo.wrap(chatting(Exact()), session="recorded")
    agent.run("hi")
    recorded = agent.messages()[-1]
    prompt = [SystemMessage("Be brief."), HumanMessage("hi")]
    assert RecordedModel(agent).invoke(prompt) == recorded
    chunks = [*RecordedModel(agent).stream(prompt)]
    assert len(chunks) > 1
    total = sum(chunks[1:], chunks[0])
    for name in ("content", "id", "tool_calls", "usage_metadata", "response_metadata"):
        assert getattr(total, name) == getattr(recorded, name)


def test_the_first_request_that_differs_is_named_with_a_diff(recorded):
    """Messages are numbered from the first one after the system prompt."""
    for options, texts, place, said in [
        ({"prompt": "Be kind."}, ["hi"], ("system prompt", "", 1), "-system: Be brief.\n+system: Be kind."),
        ({"prompt": "Be kind."}, ["hi"], ("system prompt", "", 1), "Model call 1 of 3 (turn 1, after 'hi') has"),
        ({}, ["hi", "and you?"], ("message", "3", 2), "-user: how are you?\n+user: and you?"),
        ({"before": lambda messages: [*messages, HumanMessage("Now.")]}, ["hi"], ("message", "2", 1), "+user: Now."),
        ({"before": lambda messages: messages[::-1]}, ["hi", "how are you?"], ("message order", "1", 2), ""),
        ({}, ["hi", "how are you?", "bye", "wait"], ("calls", "", 4), "once more than the 3 recorded calls"),
    ]:
        error = changed(chatting(RecordedModel(recorded), **options), *texts)
        assert (error.part, error.name, error.call) == place
        assert said in str(error)


def test_a_call_that_is_left_out_is_noticed(recorded):
    """A graph that leaves out a call is refused at the next call; `check_complete` notices those at the end."""
    model = RecordedModel(recorded)
    graph = chatting(model)
    graph.invoke({"messages": [("user", "hi")]})
    said = [("user", "hi"), ("ai", "hello"), ("user", "how are you?"), ("ai", "fine"), ("user", "bye")]
    with pytest.raises(agentgit.PromptChanged) as caught:
        graph.invoke({"messages": said})
    assert (caught.value.part, caught.value.call) == ("call order", 2)
    assert model.remaining == 2
    with pytest.raises(agentgit.PromptChanged, match="fewer model calls") as caught:
        model.check_complete()
    assert (caught.value.part, caught.value.call) == ("calls", 2)


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return "sunny"


@tool("weather")
def weather_in_days(city: str, days: int = 1) -> str:
    """Return the weather of a city."""
    return "sunny"


@tool
def news() -> str:
    """Return the news."""
    return "none"


@pytest.mark.parametrize(
    ("tools", "name", "line"),
    [([weather_in_days], "weather", '"days": {'), ([weather, news], "news", '"description": "Return the news."')],
)
def test_a_changed_tool_is_named_with_a_diff_of_its_schema(repo, tools, name, line):
    agent = repo.wrap(chatting(ScriptedModel(replies=["hello"]).bind_tools([weather])), session="recorded")
    agent.run("hi")
    assert chatting(RecordedModel(agent).bind_tools([weather])).invoke({"messages": [("user", "hi")]})
    error = changed(chatting(RecordedModel(agent).bind_tools(tools)), "hi")
    assert (error.part, error.name) == ("tool", name)
    assert line in error.diff
    error = changed(chatting(RecordedModel(agent)), "hi")
    assert (error.part, error.name) == ("tool", "weather")
    error = changed(chatting(RecordedModel(agent).bind_tools([weather], tool_choice="weather")), "hi")
    assert error.part == "tool choice"


def test_a_model_that_did_not_report_its_tools_is_compared_without_them_and_a_warning_says_so(repo):
    """A changed tool schema that cannot be noticed is not passed over in silence."""

    def weather(city: str) -> str:
        """Return the weather."""
        return city

    agent = repo.wrap(chatting(SilentModel(replies=["hello"]).bind_tools([weather])), session="recorded")
    agent.run("hi")
    with pytest.warns(UserWarning, match="reported no tools, so tools are not compared"):
        model = RecordedModel(agent).bind_tools([weather])
    assert agent.rerun(chatting(model)).report.is_same


def test_tools_in_the_form_of_a_provider_are_equal_to_the_tools(repo):
    """A tool is compared by its name, description and schema, in whatever form a provider's model sends it."""
    function = convert_to_openai_tool(weather)["function"]
    sent = {"name": "weather", "description": function["description"], "input_schema": function["parameters"]}
    agent = repo.wrap(chatting(scripted("hello").bind(tools=[sent])), session="recorded")
    agent.run("hi")
    assert chatting(RecordedModel(agent).bind_tools([weather])).invoke({"messages": [("user", "hi")]})


class Order(BaseModel):
    """An order."""

    item: str
    amount: int


class LargeOrder(BaseModel):
    """An order."""

    item: str
    amount: float


def ordering(model, schema=Order):
    def order(messages):
        made = model.with_structured_output(schema).invoke(messages)
        return AIMessage(f"{made.amount} {made.item}", id=f"a-{len(messages)}")

    return replying(order)


class JsonModel(ScriptedModel):
    """A model that asks for structured output with a response format, and replies with JSON."""

    def with_structured_output(self, schema, **kwargs):
        form = {"type": "json_schema", "json_schema": {"name": "Order", "schema": schema.model_json_schema()}}
        return self.bind(response_format=form) | (lambda message: schema.model_validate_json(message.content))


@pytest.mark.parametrize(
    "model",
    [
        ScriptedModel(replies=[calls(call("Order", item="chair", amount=2))]),
        JsonModel(replies=['{"item": "chair", "amount": 2}']),
    ],
    ids=["tool", "json"],
)
def test_structured_output_is_recorded_although_the_state_does_not_have_it(repo, model):
    agent = repo.wrap(ordering(model), session="recorded")
    assert agent.run("two chairs") == "2 chair"
    again = ordering(RecordedModel(agent)).invoke({"messages": [("user", "two chairs")]})
    assert again["messages"][-1].content == "2 chair"
    assert changed(ordering(RecordedModel(agent), LargeOrder), "two chairs").part == "response format"
    raw = RecordedModel(agent).with_structured_output(Order, include_raw=True).invoke([HumanMessage("two chairs")])
    assert raw["parsed"] == Order(item="chair", amount=2)
    assert raw["parsing_error"] is None


class Votes(TypedDict):
    questions: list[str]
    answers: Annotated[list[str], operator.add]


def voting(model, *, by="node"):
    builder = StateGraph(Votes)
    if by == "node":
        builder.add_node("ask", lambda state: {"answers": [m.content for m in model.batch(state["questions"])]})
        return builder.add_edge(START, "ask").compile()
    builder.add_node("ask", lambda state: {"answers": [model.invoke(state["question"]).content]})
    builder.add_conditional_edges(START, lambda state: [Send("ask", {"question": q}) for q in state["questions"]])
    return builder.compile()


@pytest.mark.parametrize("by", ["node", "send"])
def test_parallel_calls_are_matched_whatever_their_order(repo, by):
    questions = [f"question {n}" for n in range(8)]
    model = ScriptedModel(rule=lambda messages: AIMessage(f"re: {messages[-1].content}"))
    agent = repo.wrap(voting(model, by=by), session="recorded")
    agent.invoke({"questions": questions, "answers": []})
    model = RecordedModel(agent)
    again = voting(model, by=by).invoke({"questions": questions[::-1], "answers": []})
    assert again["answers"] == [f"re: {question}" for question in reversed(questions)]
    model.check_complete()
    with pytest.raises(agentgit.PromptChanged):
        voting(RecordedModel(agent), by=by).invoke({"questions": [*questions[1:], "another"], "answers": []})


def asking(model):
    def ask(messages):
        first = model.invoke([SystemMessage("Plan."), *messages])
        answer = interrupt(first.content)
        return model.invoke([SystemMessage(f"Do it: {answer}."), *messages])

    return replying(ask)


@pytest.mark.parametrize("between", ["same process", "new process", "fork"])
def test_calls_before_a_question_are_kept(repo, between):
    """A node that runs again after an answer calls its model again; both calls are recorded, the first one at once."""
    agent = repo.wrap(asking(scripted("plan A", "plan A", "done")), session="recorded")
    agent.invoke({"messages": [("user", "go")]})
    assert RecordedModel(agent).remaining == 1
    if between == "new process":
        agent = repo.wrap(asking(ScriptedModel(replies=["plan A"])), session="recorded")
    elif between == "fork":
        agent = agent.fork(name="other")
    agent.invoke(Command(resume="yes"))
    model = RecordedModel(agent)
    assert model.remaining == 3
    again = repo.wrap(asking(model), session="again")
    again.invoke({"messages": [("user", "go")]})
    again.invoke(Command(resume="yes"))
    assert content(again.messages()) == content(agent.messages())
    model.check_complete()


def test_calls_of_a_turn_that_failed_are_kept_but_no_attempt_without_a_reply(repo):
    broken = ["the node", "the model"]

    def rule(messages):
        if "the model" in broken:
            raise RuntimeError(broken.pop())
        return AIMessage(f"re: {messages[-1].content}")

    def fail(messages):
        reply = model.invoke(messages)
        if broken:
            raise RuntimeError(broken.pop())
        return reply

    model = ScriptedModel(rule=rule).with_retry(wait_exponential_jitter=False)
    agent = repo.wrap(replying(fail), session="s")
    with pytest.raises(RuntimeError, match="the node"):
        agent.run("one")
    agent.run("two")
    recorded = RecordedModel(agent)
    assert recorded.remaining == 2
    assert recorded.invoke([HumanMessage("one")]).content == "re: one"


def test_a_branch_has_the_calls_up_to_its_branch_point(recorded):
    """A rollback or a fork begins with the calls on the path to it, and records its own after them."""
    other = recorded.rollback("HEAD~1")
    assert RecordedModel(other).remaining == 2
    assert RecordedModel(other.session, branch="main").remaining == 3
    assert RecordedModel(recorded, start="main~1").remaining == 1
    assert RecordedModel(recorded, end="main~1").remaining == 2


def test_calls_that_a_tool_makes_may_be_left_out(repo):
    """A rerun answers tool calls from the record, so the model calls that tools made need not be made again."""
    inner = ScriptedModel(rule=lambda messages: AIMessage("inner"))

    @tool
    def think() -> str:
        """Think."""
        return str(inner.invoke("deep thought").content)

    agent = repo.wrap(tool_node_graph(scripted(call("think"), "done"), [think]), session="recorded")
    agent.run("go")
    model = RecordedModel(agent)
    assert model.remaining == 2
    assert agent.rerun(tool_node_graph(model, [think])).report.is_same
    model.check_complete()
    model = RecordedModel(agent)
    model.invoke([HumanMessage("go")])
    assert model.invoke("deep thought").content == "inner"


def test_what_a_middleware_redacts_is_not_in_the_record(repo):
    from langchain.agents import create_agent
    from langchain.agents.middleware import PIIMiddleware

    def graph(model):
        redact = PIIMiddleware("email", strategy="redact", apply_to_input=True, apply_to_output=True)
        return create_agent(model, [weather], system_prompt="Be brief.", middleware=[redact])

    model = ScriptedModel(replies=[calls(call("weather", city="Rome")), "I write to b@x.org"])
    agent = repo.wrap(graph(model), session="s", effects={"weather": "read_only"})
    assert agent.run("I am a@x.org") == "I write to [REDACTED_EMAIL]"
    recorded = RecordedModel(agent)
    assert agent.rerun(graph(recorded)).report.is_same_state
    recorded.check_complete()
    plain = create_agent(RecordedModel(agent), [weather], system_prompt="Be brief.")
    replies = plain.invoke({"messages": [("user", "I am [REDACTED_EMAIL]")]})["messages"]
    assert replies[-1].content == "I write to [REDACTED_EMAIL]"


class StreamingModel(BaseChatModel):
    @property
    def _llm_type(self):
        return "streaming"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        raise AssertionError("it streams")

    def _stream(self, messages, stop=None, run_manager=None, **kwargs):
        for word in ("so ", "it ", "is"):
            yield ChatGenerationChunk(message=AIMessageChunk(word))


def test_a_stream_in_a_node_is_recorded(repo):
    def graph(model):
        return replying(lambda messages: AIMessage("".join(one.text for one in model.stream(messages)), id="a"))

    agent = repo.wrap(graph(StreamingModel()), session="s")
    assert agent.run("hi") == "so it is"
    assert graph(RecordedModel(agent)).invoke({"messages": [("user", "hi")]})["messages"][-1].content == "so it is"


def test_a_thread_without_requests_is_compared_by_its_messages(repo):
    from langgraph.checkpoint.memory import InMemorySaver

    world, saver = World(), InMemorySaver()
    graph = tool_node_graph(obedient(), world.tools(), saver)
    for text in TEXTS:
        graph.invoke({"messages": [("user", text)]}, {"configurable": {"thread_id": "t"}})
    session = repo.import_langgraph(saver, threads=["t"])
    session = repo.session("t")
    with pytest.warns(UserWarning, match="requests of branch main were not recorded"):
        model = RecordedModel(session)
    assert not model.has_requests
    again = tool_node_graph(model, World().tools())
    messages = []
    for text in TEXTS:
        messages = again.invoke({"messages": [*messages, ("user", text)]})["messages"]
    assert [m.content for m in messages] == [m["content"] for m in session.get_checkpoint("HEAD").conversation_history]
    with pytest.warns(UserWarning, match="were not recorded"):
        error = changed(tool_node_graph(RecordedModel(session), World().tools()), "add table")
    assert error.part == "message"
    assert "only messages were compared" in str(error)


def test_ids_of_tool_calls_are_compared_by_what_they_name(repo):
    agent = repo.wrap(chatting(saying("ok")), session="s")
    asked = calls(call("look", "a"), call("look", "b"))
    answers = [ToolMessage("1", tool_call_id="a"), ToolMessage("2", tool_call_id="b")]
    agent.invoke({"messages": [HumanMessage("hi"), asked, *answers]})
    renamed = calls(call("look", "x"), call("look", "y"))
    prompt = [SystemMessage("Be brief."), HumanMessage("hi"), renamed]
    same = [ToolMessage("1", tool_call_id="x"), ToolMessage("2", tool_call_id="y")]
    assert RecordedModel(agent).invoke([*prompt, *same]).content == "ok"
    crossed = [ToolMessage("1", tool_call_id="y"), ToolMessage("2", tool_call_id="x")]
    with pytest.raises(agentgit.PromptChanged) as caught:
        RecordedModel(agent).invoke([*prompt, *crossed])
    assert caught.value.part == "message"


def test_handlers_of_other_models_are_called_as_before(repo):
    seen = []

    class Handler(BaseCallbackHandler):
        def on_chat_model_start(self, serialized, messages, **kwargs):
            seen.append(len(messages[0]))

    agent = repo.wrap(chatting(scripted("hello")), session="s")
    agent.invoke({"messages": [("user", "hi")]}, {"callbacks": [Handler()]})
    assert seen == [2]
