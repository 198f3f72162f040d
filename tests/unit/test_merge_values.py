"""The values and messages that a merge takes from another branch, decided from values alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgit.checkpoints.merge import (
    MergedValue,
    MergePlan,
    added_positions,
    complete_batches,
    decide,
    find_additions,
    find_choice,
    select,
)
from agentgit.errors import InvalidInput

VALUES = st.integers(0, 2) | st.none()


def asks(*ids):
    return {"role": "assistant", "content": "", "tool_calls": [{"id": one, "name": "t", "args": {}} for one in ids]}


def answers(id):
    return {"role": "tool", "content": "ok", "tool_calls": [], "tool_call_id": id}


def says(role="user"):
    return {"role": role, "content": "hi", "tool_calls": []}


@given(VALUES, VALUES, VALUES)
def test_a_merge_loses_no_value(base, ours, theirs):
    """A change of theirs is taken if ours is unchanged, a removal is ignored, and different changes conflict."""
    verdict = decide(base, ours, theirs)
    if verdict == "clash":
        assert len({base, ours, theirs}) == 3
    elif verdict == "take":
        assert ours == base != theirs
    else:
        assert theirs in (base, ours, None)


DICTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2) | st.none(), max_size=3)


@given(DICTS | st.none(), DICTS, DICTS)
def test_a_merge_of_dicts_keeps_the_changes_of_both_sides(base, ours, theirs):
    """Ours with the additions of theirs has every change of both; contradictory changes have no additions."""
    more, before = find_additions(base, ours, theirs), base or {}
    gone = before.keys() - theirs.keys()
    mine = {key for key in ours if key not in before or ours[key] != before[key]} | (before.keys() - ours.keys())
    other = {key for key in theirs if key not in before or theirs[key] != before[key]}
    if more is None:
        assert gone or any(ours.get(key, "gone") != theirs[key] for key in mine & other)
    else:
        joined = {**ours, **select(theirs, more)}
        assert all(joined[key] == theirs[key] for key in other)
        assert all(joined.get(key) == ours.get(key) for key in mine)


def test_values_that_were_not_only_extended_have_no_additions():
    """Texts, values of two types and a list with a changed beginning have no additions."""
    for base, ours, theirs in ((None, [1], {"a": 1}), ([1], [1, 2], [2, 1]), ({}, [1], [2]), ("a", "ab", "ac")):
        assert find_additions(base, ours, theirs) is None


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=8))
def test_added_items_are_exactly_the_rest_of_the_later_list(base, later):
    """Without its added items the later list has the items of the earlier one, else the result is None."""
    new = added_positions(base, later)
    rest = [item for place, item in enumerate(later) if place not in (new or ())]
    assert (sorted(rest) == sorted(base)) is (new is not None)
    assert len(added_positions(base, [*later, *base])) == len(later)
    assert added_positions([], later) == list(range(len(later)))


MESSAGES = st.lists(
    st.sampled_from([says(), says("assistant"), asks("a"), asks("a", "b"), answers("a"), answers("b"), answers("c")]),
    max_size=10,
)


@given(MESSAGES)
def test_merged_messages_keep_calls_and_results_together(messages):
    """The kept part of any messages has each result after its call, and a result for each call."""
    kept = complete_batches(messages)
    assert kept == sorted({*kept} & {*range(len(messages))})
    waiting: set = set()
    for place in kept:
        message = messages[place]
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting
            waiting = {call["id"] for call in message["tool_calls"]}
    assert not waiting
    assert complete_batches([messages[place] for place in kept]) == list(range(len(kept)))


def test_an_invalid_conflict_choice_is_refused():
    assert find_choice(None, "k") is None
    assert find_choice({"*": "ours", "k": "theirs"}, "k") == "theirs"
    assert find_choice({"*": "ours"}, "k") == "ours"
    for wrong in ("mine", 1, min, {"k": "mine"}):
        with pytest.raises(InvalidInput, match="'ours', 'theirs'"):
            find_choice(wrong, "k")


def test_a_merge_plan_cuts_huge_values_and_long_lists():
    values = [MergedValue(key="k" * 1000, how="take", value="v" * 10**5) for _ in range(200)]
    plan = MergePlan(kind="merge", source="x", into="main", values=values, messages=[])
    assert "… and 150 more" in str(plan)
    assert len(str(plan)) < 50_000
