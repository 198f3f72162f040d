"""`messages()` returns values with the same types as `state`, and search orders merged messages."""

import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

import agentgit

LONG = st.integers(-(2**63), 2**63 - 1)  # what LangGraph's serializer can write beside values that are not plain
PLAIN = st.none() | st.booleans() | LONG | st.floats(allow_nan=False) | st.text(max_size=5)
TIMES = st.datetimes() | st.dates() | st.times() | st.timedeltas() | st.datetimes(timezones=st.just(dt.UTC))
KEYS = st.text(max_size=3) | st.integers(-9, 9) | st.booleans() | st.binary(max_size=3)
ODD = st.binary(max_size=5) | TIMES | st.decimals(allow_nan=False) | st.uuids() | st.sets(LONG, max_size=3)
VALUES = st.recursive(
    PLAIN | ODD,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
NAMED = st.dictionaries(st.text(max_size=3), VALUES, max_size=3)


def handing(*messages):
    """Compile a graph whose only node returns these messages."""
    builder = StateGraph(MessagesState).add_node("say", lambda state: {"messages": list(messages)})
    return builder.add_edge(START, "say").compile()


def shape(value):
    """Return a comparable form of a value that includes the types of all its parts."""
    if isinstance(value, dict):
        return dict, sorted(((shape(k), shape(v)) for k, v in value.items()), key=repr)
    if isinstance(value, (list, tuple)):
        return type(value), [shape(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(map(repr, value))
    return type(value), repr(value)


def shapes(messages):
    """Return the types and fields of messages, with the types of all values."""
    return [(type(one), shape(dict(one.__dict__))) for one in messages]


def test_messages_keep_the_types_of_their_values(repo):
    """`messages()` returns bytes, datetimes, Decimals, sets and non-text keys exactly as `state` does."""
    odd = {
        "when": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        "raw": b"\0\xff",
        "price": Decimal("1.10"),
        "set": {1, 2},
        7: 8,
    }
    said = [
        HumanMessage("hi", id="h", additional_kwargs={"odd": odd}),
        AIMessage([{"type": "image", "raw": b"\0"}], id="a", response_metadata={"odd": odd}, tool_calls=[
            {"name": "buy", "args": {"odd": odd}, "id": "c", "type": "tool_call"}
        ]),
        ToolMessage("ok", id="t", tool_call_id="c", artifact=odd),
    ]  # fmt: skip
    agent = repo.wrap(handing(*said), "s")
    agent.run("go")
    fresh = repo.wrap(handing(), "s")
    for one in (agent, fresh, agent.fork()):
        assert one.messages()[1:] == said
        assert shapes(one.messages()) == shapes(one.state["messages"])
    assert [one["role"] for one in agent.history()] == ["user", "user", "assistant", "tool"]


@pytest.mark.long
@settings(max_examples=60)
@given(given_=st.lists(st.tuples(NAMED, VALUES), min_size=1, max_size=3))
def test_messages_equal_the_state_for_any_values(given_):
    """For any values in a message, `messages()` and `state` return the same values of the same types."""
    said = [
        message
        for n, (named, value) in enumerate(given_)
        for message in (
            AIMessage("", id=f"a{n}", additional_kwargs=named, tool_calls=[
                {"name": "x", "args": named, "id": f"c{n}", "type": "tool_call"}
            ]),
            ToolMessage("", id=f"t{n}", tool_call_id=f"c{n}", artifact=value),
        )
    ]  # fmt: skip
    with agentgit.open(":memory:") as repo:
        agent = repo.wrap(handing(*said), "s")
        agent.run("go")
        assert shapes(agent.messages()) == shapes(agent.state["messages"])


def test_search_orders_merged_messages_by_the_time_of_the_merge(repo):
    """Search lists merged messages by the time of the merge: above earlier messages and below later ones."""
    builder = StateGraph(MessagesState).add_node("say", lambda state: {"messages": [AIMessage("ok")]})
    agent = repo.wrap(builder.add_edge(START, "say").compile(), "s")
    agent.run("word one")
    side, later = agent.fork(name="side"), agent.fork(name="later")
    side.run("word two")
    side.run("word three")
    agent.run("word four")
    agent.merge("side")
    later.run("word five")
    found = [(hit.reference.split("#")[0], hit.snippet) for hit in repo.session("s").search("word", all_branches=True)]
    assert found == [
        ("later", "word five"), ("main", "word three"), ("main", "word two"), ("main", "word four"),
        ("side", "word three"), ("side", "word two"), ("main", "word one"),
    ]  # fmt: skip
    texts = [hit.snippet for hit in repo.session("s").search("word", branch="main")]
    assert texts == ["word three", "word two", "word four", "word one"]
