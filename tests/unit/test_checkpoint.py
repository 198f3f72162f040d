"""The Checkpoint class."""

import copy
import functools
import pickle
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentgit
from agentgit import Checkpoint, InvalidInput


@dataclass
class Session:
    id: int | None = 7
    session_state: dict[str, Any] = field(default_factory=dict)
    conversation_history: list[dict[str, Any]] = field(default_factory=list)


def test_fields_have_the_documented_defaults_and_order():
    """Each checkpoint has containers of its own, and takes its fields by position, too."""
    assert list(Checkpoint().to_dict().items()) == [
        ("id", None), ("internal_session_id", 0), ("checkpoint_name", None), ("session_state", {}),
        ("conversation_history", []), ("is_auto", False), ("created_at", None), ("metadata", {}),
        ("user_id", None), ("tool_invocations", []),
    ]  # fmt: skip
    first = Checkpoint()
    for container in (first.session_state, first.metadata):
        container["a"] = 1
    for container in (first.conversation_history, first.tool_invocations):
        container.append({})
    assert Checkpoint() == Checkpoint(session_state={}, conversation_history=[], metadata={}, tool_invocations=[])
    assert Checkpoint(1, 2, "start") == Checkpoint(id=1, internal_session_id=2, checkpoint_name="start")
    assert agentgit.checkpoints.Checkpoint is Checkpoint


def test_to_dict_is_a_deep_copy_with_iso_times():
    checkpoint = Checkpoint(session_state={"cart": ["chair"]}, created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert checkpoint.to_dict()["created_at"] == "2026-01-02T03:04:05+00:00"
    checkpoint.to_dict()["session_state"]["cart"].append("table")
    assert checkpoint.session_state == {"cart": ["chair"]}


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), json, max_size=3)
whole = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(0, 2**53 - 1),
        "internal_session_id": st.integers(0, 2**53 - 1),
        "checkpoint_name": st.none() | st.text(),
        "session_state": objects,
        "conversation_history": st.lists(objects, max_size=3),
        "is_auto": st.booleans(),
        "created_at": st.none() | st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
        "metadata": objects,
        "user_id": st.none() | st.integers(0, 2**53 - 1),
        "tool_invocations": st.lists(objects, max_size=3),
    },
)


@given(whole)
def test_any_subset_of_the_fields_round_trips(data):
    checkpoint = Checkpoint.from_dict(data)
    assert Checkpoint.from_dict(checkpoint.to_dict()) == checkpoint
    assert {**Checkpoint().to_dict(), **data} == checkpoint.to_dict()


def test_from_dict_reads_what_a_newer_version_wrote():
    """None stands for a default, and fields beside all ten are ignored; beside fewer they are a mistake."""
    written = Checkpoint(checkpoint_name="start", session_state={"n": 1}).to_dict()
    assert Checkpoint.from_dict({**written, "colour": "red"}) == Checkpoint.from_dict(written)
    nothing = dict.fromkeys(written)
    assert Checkpoint.from_dict(nothing) == Checkpoint()
    with pytest.raises(InvalidInput, match="colour"):
        Checkpoint.from_dict({"checkpoint_name": "start", "colour": "red"})


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"name": "x"},
        {"created_at": "yesterday"},
        {"id": "7"},
        {"id": True},
        {"session_state": []},
        {"conversation_history": {}},
        {"conversation_history": ["hello"]},
        {"tool_invocations": [None]},
        {"is_auto": 1},
        {"metadata": "x" * 10**6},
        {"checkpoint_name": b"start"},
        {"created_at": 5},
        {7: 7},
        {"session_state": functools.reduce(lambda inner, _: {"a": inner}, range(5_000), {})},
    ],
)
def test_from_dict_refuses_unknown_fields_and_wrong_values_in_a_short_text(data):
    with pytest.raises(InvalidInput) as refused:
        Checkpoint.from_dict(data)
    assert len(str(refused.value)) < 300


def test_a_checkpoint_is_a_deep_copy_of_the_session():
    session = Session(session_state={"cart": ["chair"]}, conversation_history=[{"role": "user", "content": "hi"}])
    calls = [{"tool_name": "order", "args": {"n": 1}}]
    checkpoint = Checkpoint.from_internal_session(session, "start", True, 5, calls)
    session.session_state["cart"].append("table")
    session.conversation_history[0]["content"] = "changed"
    calls[0]["args"]["n"] = 2
    assert checkpoint.internal_session_id == 7
    assert (checkpoint.checkpoint_name, checkpoint.is_auto, checkpoint.user_id) == ("start", True, 5)
    assert checkpoint.session_state == {"cart": ["chair"]}
    assert checkpoint.conversation_history == [{"role": "user", "content": "hi"}]
    assert checkpoint.tool_invocations == [{"tool_name": "order", "args": {"n": 1}}]
    assert checkpoint.get_tool_track_position() == 1
    assert checkpoint.created_at is not None
    assert checkpoint.created_at.tzinfo is not None


def test_the_summary_has_name_kind_time_and_counts():
    """The representation has the word of the log: `named`, `before`, `after`."""
    made = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    named = Checkpoint(checkpoint_name="pay", created_at=made, conversation_history=[{}, {}], tool_invocations=[{}])
    assert named.get_summary() == "pay (Manual) - 2026-01-02 03:04:05 - 2 messages, 1 tool call"
    assert Checkpoint(is_auto=True).get_summary() == "Unnamed (Auto) - no time - 0 messages, 0 tool calls"
    assert "pay (named)" in repr(named)
    assert "Unnamed (before)" in repr(Checkpoint(is_auto=True, metadata={"kind": "before"}))


def test_the_tool_track_position_is_read_from_metadata():
    assert Checkpoint().get_tool_track_position() == 0
    assert Checkpoint(metadata={"tool_track_position": 4}).get_tool_track_position() == 4
    assert not Checkpoint().has_tool_invocations()
    assert Checkpoint(tool_invocations=[{}]).has_tool_invocations()


def deferred(calls: list[int]) -> Checkpoint:
    def load() -> dict[str, Any]:
        calls.append(1)
        return {"session_state": {"a": 1}, "conversation_history": [{}], "tool_invocations": [{}, {}]}

    return Checkpoint.deferred(load, id=3, metadata={"message_count": 1, "tool_track_position": 2})


def test_large_fields_are_fetched_once_and_only_when_read():
    calls: list[int] = []
    checkpoint = deferred(calls)
    assert checkpoint.get_summary().endswith("1 message, 2 tool calls")
    assert checkpoint.has_tool_invocations()
    assert calls == []
    assert checkpoint.session_state == {"a": 1}
    assert checkpoint.tool_invocations == [{}, {}]
    assert calls == [1]


def test_copies_of_a_deferred_checkpoint_are_complete():
    checkpoint = deferred([])
    for twin in (copy.deepcopy(checkpoint), pickle.loads(pickle.dumps(deferred([])))):  # noqa: S301  # our own bytes
        assert twin == checkpoint
        assert "_load" not in twin.__dict__
    calls: list[int] = []
    assert "2 tool calls" in repr(deferred(calls))
    assert calls == []  # the repr fetches nothing
    with pytest.raises(AttributeError, match="nothing_like_that"):
        _ = checkpoint.nothing_like_that
