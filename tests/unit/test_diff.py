"""The difference of two checkpoints, computed from their values alone."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgit import Checkpoint, Diff
from agentgit.checkpoints.diff import Change, diff


def said(role: str, content: object, id: str = "", **more) -> dict:
    return {"role": role, "content": content, "id": id, "tool_calls": [], "tool_call_id": None, **more}


def called(id: int, name: str = "order", result: object = "ok", **more) -> dict:
    return {"id": id, "tool_name": name, "args": {"item": "chair"}, "result": result, "error_message": None} | more


def talk(*messages: dict) -> Checkpoint:
    return Checkpoint(conversation_history=list(messages))


def test_a_diff_of_files_alone_is_not_empty_and_lists_them():
    found = Diff(from_id=1, to_id=2, added_files=["new"], modified_files=["changed"], deleted_files=["gone"])
    assert not found.is_empty
    assert str(found) == "files\n- gone\n+ new\n~ changed"


def test_state_changes_have_a_path_and_a_kind():
    a = Checkpoint(session_state={"cart": ["chair", "table"], "who": {"name": "Ann", "a/b~c": 1}, "old": None})
    b = Checkpoint(session_state={"cart": ["sofa"], "who": {"name": "Ann", "a/b~c": 2}, "new": None})
    assert diff(a, b).state == [
        Change("/cart/0", "chair", "sofa", "changed"),
        Change("/cart/1", "table", None, "removed"),
        Change("/who/a~1b~0c", 1, 2, "changed"),
        Change("/old", None, None, "removed"),
        Change("/new", None, None, "added"),
    ]


@pytest.mark.parametrize(("a", "b", "differ"), [(1, True, True), (1, 1.0, False), (float("nan"),) * 2 + (False,)])
def test_values_are_compared_by_their_json_meaning(a, b, differ):
    """True differs from 1, 1 equals 1.0, and NaN equals NaN."""
    assert bool(diff(Checkpoint(session_state={"v": a}), Checkpoint(session_state={"v": b})).state) is differ


@pytest.mark.long
def test_states_nested_deeper_than_the_stack_are_compared():
    deep: dict = {"end": 1}
    other: dict = {"end": 2}
    for _ in range(100_000):
        deep, other = {"d": deep}, {"d": other}
    (change,) = diff(Checkpoint(session_state=deep), Checkpoint(session_state=other)).state
    assert change.path.endswith("/d/end")


def test_messages_before_the_branch_point_are_common():
    """Later ones are removed and added, as is an edited one in the middle, and one with another id is another one."""
    start, last = [said("user", "order two chairs", "1"), said("assistant", "done", "2")], said("user", "bye", "3")
    found = diff(talk(*start, last), talk(*start, said("user", "rather a sofa", "4"), said("assistant", "done", "5")))
    assert found.common_messages == 2
    assert [m["content"] for m in found.removed_messages] == ["bye"]
    assert [m["content"] for m in found.added_messages] == ["rather a sofa", "done"]
    edited = diff(talk(*start, last), talk(start[0], said("assistant", "sold out", "2"), last))
    assert edited.common_messages == 2
    assert [m["content"] for m in edited.removed_messages + edited.added_messages] == ["done", "sold out"]
    assert diff(talk(said("user", "hi", "1")), talk(said("user", "hi", "2"))).common_messages == 0


def test_a_replayed_call_equals_the_call_it_replays():
    """A replayed call with the same result is common with the recorded one, also through another branch."""
    a = Checkpoint(tool_invocations=[called(1), called(2)])
    seen_from_elsewhere = Checkpoint(tool_invocations=[called(1, replay_of=1), called(3)])
    ran_again = Checkpoint(tool_invocations=[called(5, replay_of=1), called(6, replay_of=2, result="sold out")])
    for b, removed, added in ((seen_from_elsewhere, [2], [3]), (ran_again, [2], [6])):
        found = diff(a, b)
        assert found.common_calls == 1
        assert [c["id"] for c in found.removed_calls] == removed
        assert [c["id"] for c in found.added_calls] == added


def test_calls_that_replay_each_other_are_still_compared():
    circle = Checkpoint(tool_invocations=[called(1, replay_of=2), called(2, replay_of=1)])
    assert diff(circle, circle).is_empty


def test_calls_without_ids_are_compared_by_content():
    """Hand-made checkpoints have calls without ids, which are compared by content."""
    a, b = Checkpoint(tool_invocations=[{"name": "x"}]), Checkpoint(tool_invocations=[{"name": "x"}, {"name": "y"}])
    found = diff(a, b)
    assert (found.common_calls, found.added_calls) == (1, [{"name": "y"}])


def test_a_diff_reads_as_text():
    asks = said("assistant", "", "3", tool_calls=[{"id": "c", "name": "order", "args": {"item": "table"}}])
    a = Checkpoint(
        metadata={"reference": "main#7"},
        session_state={"total": 12},
        conversation_history=[asks],
        tool_invocations=[called(1), called(2, error_message="sold out", result=None)],
    )
    b = Checkpoint(
        metadata={"reference": "retry#4"},
        session_state={"total": 15},
        conversation_history=[said("user", [{"type": "text", "text": "rather a sofa"}], "4")],
        tool_invocations=[called(1, replay_of=1), called(3, result={"order": 8})],
    )
    assert str(diff(a, b)).splitlines() == [
        "main#7 -> retry#4",
        "state",
        "- /total  12",
        "+ /total  15",
        "messages (0 in common)",
        "- assistant: -> order(item='table')",
        "+ user: rather a sofa",
        "tool calls (1 in common)",
        "- order(item='chair') failed: sold out",
        "+ order(item='chair') -> {'order': 8}",
    ]


def test_equal_checkpoints_have_an_empty_diff():
    same = Checkpoint(session_state={"a": [1, {"b": 2}]}, conversation_history=[said("user", "hi")])
    found = diff(same, Checkpoint.from_dict(same.to_dict()))
    assert found.is_empty
    assert str(found) == "no difference"


def test_a_diff_can_be_written_as_json():
    found = diff(Checkpoint(id=1, session_state={"a": 1}), Checkpoint(id=2, conversation_history=[said("user", "hi")]))
    data = json.loads(json.dumps(found.to_dict()))
    assert data["state"] == [{"path": "/a", "before": 1, "after": None, "kind": "removed"}]
    assert data["added_messages"][0]["content"] == "hi"
    assert (data["from_id"], data["to_id"], data["added_files"], data["diff_content"]) == (1, 2, [], "")
    assert set(data) == {
        "from_id", "to_id", "from_reference", "to_reference", "state", "common_messages", "removed_messages",
        "added_messages", "removed_tokens", "added_tokens", "common_calls", "removed_calls", "added_calls",
        "removed_pending", "added_pending", "added_files", "modified_files", "deleted_files", "diff_content",
    }  # fmt: skip


def test_long_conversations_are_compared_exactly():
    shared = [said("user", f"message {n}", str(n)) for n in range(10_000)]
    found = diff(talk(*shared, said("user", "a", "x")), talk(*shared, said("user", "b", "y")))
    assert found.common_messages == 10_000
    assert len(found.removed_messages) == len(found.added_messages) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
STATES = st.dictionaries(st.text(max_size=2), JSON, max_size=3)


@given(STATES, STATES)
def test_a_reversed_diff_swaps_added_and_removed(a, b):
    there = diff(Checkpoint(session_state=a), Checkpoint(session_state=b)).state
    back = diff(Checkpoint(session_state=b), Checkpoint(session_state=a)).state
    mirror = {"added": "removed", "removed": "added", "changed": "changed"}
    assert {(c.path, mirror[c.kind]) for c in there} == {(c.path, c.kind) for c in back}
    assert bool(there) == (json.dumps(a, sort_keys=True) != json.dumps(b, sort_keys=True))


@given(st.lists(st.integers(0, 4), max_size=8), st.lists(st.integers(0, 4), max_size=8))
def test_removed_and_added_messages_keep_their_order(a, b):
    """Without the removed and added messages both conversations are equal; a shared beginning is common."""
    left, right = ([said("user", n, f"{n}.{at}") for at, n in enumerate(side)] for side in (a, b))
    for side in (left, right):
        for one in side:
            one["id"] = one["id"].split(".")[0] if one["content"] < 3 else one["id"]
    found = diff(talk(*left), talk(*right))
    gone, new = list(found.removed_messages), list(found.added_messages)
    rests = []
    for side, only in ((left, gone), (right, new)):
        rest = []
        for one in side:
            if only and one is only[0]:
                only.pop(0)
            else:
                rest.append(one)
        rests.append(rest)
    assert gone == new == []
    assert rests[0] == rests[1]
    assert len(rests[0]) == found.common_messages
    shared = next((n for n, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), min(len(left), len(right)))
    assert found.common_messages >= shared


def test_repetitive_conversations_are_compared_quickly():
    same = [said("user", "ok", None) for _ in range(3_000)]
    other = [one for n in range(1_500) for one in (said("user", "ok", None), said("user", str(n), None))]
    began = time.thread_time()  # CPU time of this thread, which other load on the machine does not change
    assert diff(talk(*same), talk(said("user", "hi", None), *same)).common_messages == 3_000
    assert diff(talk(*same), talk(*other)).common_messages == 1_500
    assert time.thread_time() - began < 5  # a comparison of all with all takes minutes
