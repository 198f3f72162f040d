"""A message that was encoded before is not encoded again, and is never mistaken for another one."""

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agentgit.saver.codec import Codec


@pytest.fixture
def codec():
    class Counting(Codec):
        encoded = 0

        def encode_leaf(self, value):
            self.encoded += 1
            return super().encode_leaf(value)

    return Counting(JsonPlusSerializer(allowed_msgpack_modules=None))


def test_a_long_conversation_is_encoded_once(codec):
    talk = [HumanMessage(f"message {n}", id=str(n)) for n in range(200)]
    codec.encode(talk)
    again = [HumanMessage(f"message {n}", id=str(n)) for n in range(200)]
    first = codec.encode([*again, AIMessage("new", id="x")]).body
    assert codec.encoded == 201
    assert first[:200] == codec.encode(talk).body


EDITS = {
    "content": lambda m: setattr(m, "content", "other"),
    "part": lambda m: m.content[0].update(text="other"),
    "kwargs": lambda m: m.additional_kwargs.update(a=1),
    "nested": lambda m: m.response_metadata["usage"].update(tokens=2),
    "type of a number": lambda m: m.response_metadata["usage"].update(tokens=True),
    "float": lambda m: m.response_metadata["usage"].update(tokens=1.0),
    "tool call": lambda m: m.tool_calls[0]["args"].update(x=2),
    "name": lambda m: setattr(m, "name", "me"),
    "extra": lambda m: setattr(m, "more", "extra"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_message_edited_in_place_is_encoded_again(codec, edit):
    def message():
        return AIMessage(
            [{"type": "text", "text": "hi"}], id="1", response_metadata={"usage": {"tokens": 1}},
            tool_calls=[{"name": "t", "args": {"x": 1}, "id": "c"}],
        )  # fmt: skip

    edited = message()
    before = codec.encode([edited]).body
    edit(edited)
    after = codec.encode([edited]).body
    assert after != before
    assert after == Codec(codec.serde).encode([edited]).body
    assert codec.encode([message()]).body == before


def test_message_classes_with_equal_fields_are_distinguished(codec):
    class Mine(HumanMessage):
        """A subclass that plain JSON cannot restore."""

    same = [HumanMessage("x", id="1"), SystemMessage("x", id="1")]
    found = codec.encode(same).body
    assert found[0] != found[1]
    assert codec.encode([*same, Mine("x", id="1")]).body[2] not in found


def test_messages_with_non_json_values_are_encoded_every_time(codec):
    """A message with non-JSON values is never cached, because marshal writes bytes and bytearray alike."""
    one, other = (ToolMessage("x", tool_call_id="c", id="1", artifact=kind(b"ab")) for kind in (bytes, bytearray))
    for message in (one, other, one):
        assert codec.encode([message]).body == Codec(codec.serde).encode([message]).body
    assert codec.encoded == 3
