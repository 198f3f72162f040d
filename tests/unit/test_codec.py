"""Values of every kind round-trip exactly through the codec, and hostile bytes run no code."""

import dataclasses
import datetime
import enum
import json
import math
import os
import sys
import uuid
from decimal import Decimal
from typing import NamedTuple

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_to_dict,
)
from langgraph.checkpoint.serde.jsonplus import EXT_CONSTRUCTOR_SINGLE_ARG, JsonPlusSerializer
from langgraph.types import Send
from pydantic import BaseModel, SecretStr

from agentgit.errors import InvalidInput
from agentgit.saver.codec import Codec, make_codec
from agentgit.saver.delta_reducer import encode
from agentgit.saver.serializer import StrictSerializer
from agentgit.store.objects.blobs import Leaf, leaf
from agentgit.store.objects.plain_values import show, show_message, show_state


class Colour(enum.Enum):
    RED = "red"


class Text(str, enum.Enum):  # noqa: UP042  # the old way is what JSON takes for plain text
    """An enum whose members are strings."""

    A = "a"


class Plan(BaseModel):
    steps: list[str] = []
    colour: Colour = Colour.RED


@dataclasses.dataclass
class Cart:
    items: list
    owner: Plan | None = None


class Point(NamedTuple):
    x: int
    y: int


def strict():
    return make_codec(StrictSerializer())


def back(value, codec=None):
    return strict().decode((codec or strict()).encode(value).body)


def same(one, other):
    """Return whether two values are equal and of equal types at every level; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (one == other and math.copysign(1, one * other) >= 0)
    return one == other


any_text = st.text(alphabet=st.characters(exclude_categories=()), max_size=8)  # lone surrogates and U+0000 too
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), any_text),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(any_text, inner, max_size=5)),
    max_leaves=20,
)


@given(plain | st.lists(st.one_of(plain, st.binary(max_size=4), st.decimals(allow_nan=False), st.uuids()), max_size=30))
def test_any_value_round_trips_exactly(value):
    """Values, order and types are kept, also where JSON would change them, in plain and in mixed lists."""
    assert same(back(value), value)


@pytest.mark.parametrize(
    "value",
    [
        b"bytes", bytearray(b"array"), Decimal("1.10"), {1, 2}, frozenset({"a"}), {1: "a", (2,): "b"},
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC), datetime.date(2026, 1, 2),
        datetime.timedelta(days=1, microseconds=1), uuid.UUID(int=7), Colour.RED, Plan(steps=["a"]),
        Cart(["chair"], Plan()), Point(1, 2), Send("node", {"x": 1}), [Send("node", Plan())], math.nan, -0.0,
        [math.nan, math.inf, -math.inf, 1.0], 2**63, -(2**70), "\x00", "\ud800", {"\udfff": "\x00"}, [], {}, "",
        {"a": Text.A},
    ],
    ids=repr,
)  # fmt: skip
def test_every_kind_of_value_round_trips(value):
    assert same(back(value), value)


messages = st.builds(
    lambda kind, **fields: kind(**fields),
    st.sampled_from([HumanMessage, AIMessage, SystemMessage]),
    content=st.one_of(
        any_text, st.lists(st.one_of(any_text, st.dictionaries(any_text, plain, max_size=3)), max_size=3)
    ),
    id=st.one_of(st.none(), any_text),
    name=st.one_of(st.none(), any_text),
    additional_kwargs=st.dictionaries(any_text, plain, max_size=3),
    response_metadata=st.dictionaries(any_text, plain, max_size=3),
)


@pytest.mark.long
@given(st.lists(messages, max_size=6))
def test_messages_round_trip_exactly(conversation):
    """Each keeps its type, and its fields and extras in the same order, in the form of `messages_to_dict`."""
    found = back(conversation)
    assert [type(message) for message in found] == [type(message) for message in conversation]
    assert same([message.__dict__ for message in found], [message.__dict__ for message in conversation])
    for message in conversation:
        stored = strict().encode_leaf(message)
        assert stored.type != "message" or json.loads(stored.data) == messages_to_dict([message])[0]
        assert show_message(stored)["type"] == message.type


SPECIAL = [
    AIMessage(
        "", tool_calls=[{"name": "t", "args": {"b": 1, "a": [None]}, "id": "c"}], invalid_tool_calls=[],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}, id="m",
    ),
    ToolMessage("done", tool_call_id="c", artifact={"rows": [1, 2]}, status="error", name="t"),
    ToolMessage("done", tool_call_id="c", artifact={Decimal(1)}),
    ToolMessage([{"type": "text", "text": "hi"}], tool_call_id="c", artifact=Plan(steps=["x"])),
    HumanMessage("hi", unknown_field={"kept": True}),
    AIMessageChunk("part", id="m"),
    HumanMessage([{"type": "image_url", "image_url": {"url": "data:,"}}, "and text"]),
]  # fmt: skip


@pytest.mark.parametrize("message", SPECIAL, ids=lambda message: type(message).__name__)
def test_special_messages_round_trip(message):
    """Tool calls, artifacts, extras and chunks round-trip, and can be copied, dumped and compared."""
    (found,) = back([message])
    assert found == message
    assert found.model_copy(deep=True) == message
    assert found.model_dump() == message.model_dump()
    assert found.__pydantic_extra__ == message.__pydantic_extra__


def test_a_message_edited_in_place_is_stored_as_edited():
    """An edit in place changes the hash, and removed tool calls do not return from the provider's fields."""
    message = AIMessage(
        "",
        tool_calls=[{"name": "t", "args": {}, "id": "c"}],
        additional_kwargs={
            "tool_calls": [{"id": "c", "function": {"name": "t", "arguments": "{}"}, "type": "function"}]
        },
    )
    before = strict().encode_leaf(message)
    message.tool_calls = []
    after = strict().encode_leaf(message)
    assert before.hash != after.hash
    assert strict().decode(after).tool_calls == []


def test_small_items_share_a_leaf_and_large_items_do_not():
    """A vector of 1,536 numbers is a few leaves; a list of long texts has one leaf each."""
    assert 10 < len(strict().encode([0.123456789 + n for n in range(1536)]).body) < 40
    assert len(strict().encode(["x" * 1000] * 7).body) == 7


@given(st.lists(st.one_of(st.text(max_size=400), st.integers(), st.binary(max_size=5)), max_size=40), st.data())
def test_appending_to_a_list_keeps_its_earlier_leaves(values, data):
    """A longer list begins with the leaves of the shorter one, except for the last leaf."""
    cut = data.draw(st.integers(0, len(values)))
    short, long = strict().encode(values[:cut]).body, strict().encode(values).body
    assert short[:-1] == long[: max(0, len(short) - 1)]


@pytest.mark.parametrize(
    "value", [object(), {"f": print}, [lambda: None], (n for n in [])], ids=lambda v: type(v).__name__
)
def test_a_value_that_cannot_be_stored_raises_invalid_input(value):
    with pytest.raises(InvalidInput, match=r"cannot be stored.*serde"):
        strict().encode(value)


def test_a_recursive_or_very_deep_value_is_refused():
    loop: list = []
    loop.append(loop)
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for value in (loop, {"a": loop}, deep):
        with pytest.raises(InvalidInput):
            strict().encode({"x": value})


class Loud:
    """A class that is no data type, and raises an error if an instance is built."""

    def __init__(self, *args, **kwargs):
        raise AssertionError("called by stored bytes")


def named(module, name, argument):
    """Return a leaf that asks for a call, in the format of LangGraph's msgpack."""
    payload = ormsgpack.packb((module, name, argument))
    return leaf("msgpack", ormsgpack.packb(ormsgpack.Ext(EXT_CONSTRUCTOR_SINGLE_ARG, payload)))


@pytest.mark.parametrize(
    ("module", "name"),
    [("os", "system"), ("subprocess", "Popen"), ("builtins", "eval"), ("antigravity", "x"), (__name__, "Loud")],
)
def test_decoding_hostile_bytes_runs_no_code(module, name, tmp_path):
    """Stored bytes that name a function, a class that is no data type or a module neither call nor import it."""
    bait = f"touch {tmp_path / 'hit'}"
    assert strict().decode(named(module, name, bait)) == bait
    assert not (tmp_path / "hit").exists()
    assert "antigravity" not in sys.modules


def test_a_serializer_of_langgraph_that_the_user_passes_decides_itself():
    """It has the allowlist that the user gave it, and not the types that this process knows."""
    body = strict().encode(Cart(["x"])).body
    own = JsonPlusSerializer(allowed_msgpack_modules=None)
    assert make_codec(own).decode(body) == {"items": ["x"], "owner": None}
    assert make_codec(own.with_msgpack_allowlist([(__name__, "Cart")])).decode(body) == Cart(["x"])


class Reversing:
    """A custom serializer that reverses the bytes and never writes the same bytes twice."""

    def __init__(self):
        self.inner = JsonPlusSerializer(allowed_msgpack_modules=True)

    def dumps_typed(self, obj):
        kind, data = self.inner.dumps_typed(obj)
        return f"{kind}+backwards", os.urandom(4) + data[::-1]

    def loads_typed(self, data):
        return self.inner.loads_typed((data[0].removesuffix("+backwards"), data[1][4:][::-1]))


def test_a_custom_serializer_encodes_every_value():
    codec = make_codec(Reversing())
    value = {"messages": [HumanMessage("a secret")], "plan": Plan(steps=["secret"])}
    for one in (value, [HumanMessage("a secret"), "secret"], "secret", ["secret"] * 3, None, 1):
        body = codec.encode(one).body
        parts = list(body.values()) if isinstance(body, dict) else [body]
        leaves = [x for part in parts for x in (part if isinstance(part, list) else [part])]
        assert all(b"secret" not in x.data for x in leaves)
        assert make_codec(Reversing()).decode(body) == one


def test_a_custom_serializer_keeps_the_leaves_of_a_list():
    talk = [HumanMessage(f"message {n}") for n in range(5)]
    codec = make_codec(Reversing())
    first = codec.encode(talk).body
    assert codec.encode([*talk, AIMessage("yes")]).body[:5] == first
    restarted = make_codec(Reversing())
    assert restarted.encode(restarted.decode(first)).body == first


def test_values_stored_before_a_custom_serializer_are_still_read():
    codec = make_codec(Reversing())
    assert codec.decode(strict().encode([HumanMessage("hi"), {1}]).body) == [HumanMessage("hi"), {1}]
    with pytest.raises(InvalidInput, match="serde"):
        strict().decode(codec.encode("x").body)


def test_stored_values_are_shown_as_plain_data():
    cart = strict().encode(Cart(["chair"], Plan(steps=["a"]))).body
    assert show(cart) == {"items": ["chair"], "owner": {"steps": ["a"], "colour": "red"}}
    assert show(strict().encode([{1}, 2, b"x", [Send("n", 1)]]).body) == [[1], 2, "eA==", [["n", 1]]]
    sealed = make_codec(Reversing()).encode("x").body
    assert "only the serializer that wrote them" in show(sealed)
    assert show_message(strict().encode_leaf(AIMessageChunk("part")))["data"]["content"] == "part"
    body = strict().encode({"messages": [HumanMessage("hi")], "left": 1}).body
    assert show_state({"__previous__": body}, "__previous__")[0] == {"__previous__": {"left": 1}}


def test_a_pydantic_secret_is_not_stored_as_plain_data():
    body = strict().encode({"key": SecretStr("hush")}).body
    assert isinstance(body, Leaf)
    assert body.type == "msgpack"


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_encoding_of_a_dict_does_not_depend_on_the_earlier_one(data):
    codec = Codec(JsonPlusSerializer())
    item = st.one_of(st.integers(-9, 10**15), st.text(max_size=400), st.builds(HumanMessage, st.text(max_size=9)))
    files = {str(n): value for n, value in enumerate(data.draw(st.lists(item, max_size=30)))}
    more = {**files, "new": "x" * 900}
    assert encode(codec, more, encode(codec, files)).encoded == encode(codec, more).encoded
