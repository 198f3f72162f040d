"""Prompts are compared by content, whatever ids they have and however a provider writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool

from agentgit.testing.prompts import MessageContent, Prompt, comparable_options, different_option

TEXTS = st.sampled_from(["a", "b", "a b", ""])
NAMES = st.sampled_from(["look", "add"])


@st.composite
def conversations(draw):
    """Draw messages; tools answer the calls that the messages make."""
    messages = [SystemMessage(draw(TEXTS))] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(0, 3))):
        messages.append(HumanMessage(draw(TEXTS)))
        wanted = [
            {"name": draw(NAMES), "args": {"n": draw(st.integers(0, 1))}, "id": f"{turn}-{number}"}
            for number in range(draw(st.integers(0, 2)))
        ]
        messages.append(AIMessage(draw(TEXTS), tool_calls=wanted))
        messages += [ToolMessage(draw(TEXTS), tool_call_id=one["id"]) for one in draw(st.permutations(wanted))]
    return messages


def renamed(messages):
    """Return the messages with other ids and times."""
    changed = []
    for number, message in enumerate(messages):
        update = {"id": f"m{number}", "response_metadata": {"created": number}}
        if isinstance(message, AIMessage):
            update["tool_calls"] = [{**call, "id": "x" + call["id"]} for call in message.tool_calls]
        if isinstance(message, ToolMessage):
            update["tool_call_id"] = "x" + message.tool_call_id
        changed.append(message.model_copy(update=update))
    return changed


@given(conversations())
def test_ids_and_times_make_no_difference(messages):
    """The same conversation with other ids is the same prompt, and each message has the same content."""
    assert Prompt.of(messages, None).difference(Prompt.of(renamed(messages), None)) is None
    for old, new in zip(messages, renamed(messages), strict=True):
        assert MessageContent.of(old).digest == MessageContent.of(new).digest


@given(conversations(), conversations())
def test_a_difference_is_found_in_both_directions(old, new):
    """Two prompts differ in both directions or in none, in the same part, and the diff shows lines of both."""
    there, back = (Prompt.of(one, None).difference(Prompt.of(other, None)) for one, other in ((old, new), (new, old)))
    assert (there is None) == (back is None)
    if there is not None and back is not None:
        assert (there.part, there.name) == (back.part, back.name)
        assert there.diff.startswith("--- recorded")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "base64": "QUJD", "mime_type": "image/png"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
        {"type": "image", "source_type": "base64", "data": "QUJD", "mime_type": "image/png"},
    ],
)
def test_images_are_compared_by_their_data(block):
    """LangChain reports an image in another form than the model receives; its data decide."""
    reported = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJE"}}
    prompt = Prompt.of([HumanMessage([block])], None)
    found = prompt.difference(Prompt.of([HumanMessage([reported])], None))
    assert found is None
    assert prompt.difference(Prompt.of([HumanMessage([other])], None)) is not None


def test_the_choice_of_a_tool_is_compared_by_its_meaning():
    @tool
    def look(at: str) -> str:
        """Look."""
        return at

    def options(choice):
        return comparable_options({"tools": [convert_to_openai_tool(look)], "tool_choice": choice})

    assert different_option(options("any"), options("required")) is None
    assert different_option(options("look"), options({"type": "function", "function": {"name": "look"}})) is None
    assert different_option(options("look"), options({"type": "tool", "name": "look"})) is None
    assert different_option(options(None), options({"type": "auto"})) is None
    found = different_option(options(None), options("any"))
    assert found is not None
    assert found.part == "tool choice"


def test_a_long_text_is_compared_in_full_and_shown_in_part():
    found = Prompt.of([HumanMessage("x" * 9_000)], None).difference(Prompt.of([HumanMessage("x" * 9_001)], None))
    assert found is not None
    assert len(found.diff) < 200
