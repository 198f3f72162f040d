"""Which values and messages of one branch come into another: decided from values alone (W7)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgit.checkpoints.merge import MergePlan, Taken, added, batch_of, choice, decide, extra, whole
from agentgit.errors import InvalidInput
from agentgit.render.views import diff

VALUES = st.integers(0, 2) | st.none()


def asks(*ids):
    return {"role": "assistant", "content": "", "tool_calls": [{"id": one, "name": "t", "args": {}} for one in ids]}


def answers(id):
    return {"role": "tool", "content": "ok", "tool_calls": [], "tool_call_id": id}


def says(role="user"):
    return {"role": role, "content": "hi", "tool_calls": []}


@given(VALUES, VALUES, VALUES)
def test_w7_a_value_is_lost_by_no_merge(base, ours, theirs):
    """W7: what only one side changed is kept or taken, what both changed alike stays, all else is named."""
    verdict = decide(base, ours, theirs)
    if verdict == "clash":
        assert len({base, ours, theirs}) == 3
    elif verdict == "take":
        assert ours == base != theirs
    else:
        assert theirs in (base, ours, None)


DICTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2) | st.none(), max_size=3)


@given(DICTS | st.none(), DICTS, DICTS)
def test_w7_what_was_added_to_dicts_changes_nothing_of_ours(base, ours, theirs):
    """W7: with what theirs added, ours has each key that anyone changed; where both did otherwise there is nothing."""
    more, before = extra(base, ours, theirs), base or {}
    gone = before.keys() - theirs.keys()
    mine = {key for key in ours if key not in before or ours[key] != before[key]} | (before.keys() - ours.keys())
    other = {key for key in theirs if key not in before or theirs[key] != before[key]}
    if more is None:
        assert gone or any(ours.get(key, "gone") != theirs[key] for key in mine & other)
    else:
        joined = {**ours, **more.of(theirs)}
        assert all(joined[key] == theirs[key] for key in other)
        assert all(joined.get(key) == ours.get(key) for key in mine)


def test_w7_what_is_neither_a_list_nor_a_dict_has_nothing_added():
    """W7: values of two kinds, and a list whose beginning was changed, are none that both only added to."""
    for base, ours, theirs in ((None, [1], {"a": 1}), ([1], [1, 2], [2, 1]), ({}, [1], [2]), ("a", "ab", "ac")):
        assert extra(base, ours, theirs) is None


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=8))
def test_w7_what_was_added_is_exactly_the_rest(base, later):
    """W7: without what was added, the later list is the earlier one; if it cannot be, something was changed."""
    new = added(base, later)
    rest = [item for place, item in enumerate(later) if place not in (new or ())]
    assert (sorted(rest) == sorted(base)) is (new is not None)
    assert len(added(base, [*later, *base])) == len(later)
    assert added([], later) == list(range(len(later)))


MESSAGES = st.lists(
    st.sampled_from([says(), says("assistant"), asks("a"), asks("a", "b"), answers("a"), answers("b"), answers("c")]),
    max_size=10,
)


@given(MESSAGES)
def test_w7_no_call_comes_without_its_result(messages):
    """W7: whatever is chosen from, what comes has each result behind its call, and each call its result."""
    kept, left = whole(messages)
    assert sorted([*kept, *left]) == list(range(len(messages)))
    waiting: set = set()
    for place in kept:
        message = messages[place]
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting
            waiting = {call["id"] for call in message["tool_calls"]}
    assert not waiting
    assert whole([messages[place] for place in kept])[0] == list(range(len(kept)))


def test_w7_a_choice_is_completed_to_whole_batches():
    """W7: a chosen result brings its call and the other results, a chosen call its results, nothing else."""
    talk = [says(), asks("a", "b"), answers("b"), answers("a"), says("assistant")]
    assert batch_of(talk, [2]) == batch_of(talk, [1]) == [1, 2, 3]
    assert batch_of(talk, [0, 4]) == [0, 4]
    assert batch_of(talk, []) == []


def test_w7_what_is_said_about_conflicts_must_mean_something():
    """W7: a word, a function, or a mapping to these with * for all others; anything else is refused."""
    assert choice(None, "k") is None
    assert choice({"*": "ours", "k": "theirs"}, "k") == "theirs"
    assert choice({"*": "ours"}, "k") == "ours"
    assert choice(min, "k") is min
    for wrong in ("mine", 1, {"k": "mine"}):
        with pytest.raises(InvalidInput, match="'ours', 'theirs'"):
            choice(wrong, "k")


@pytest.mark.long
def test_w7_a_plan_shows_anything_and_obeys_nobody():
    """W7: hostile names and huge values are written out, cut, and no markup on a page."""
    hostile = "<script>x</script>\x1b[31m\n" * 100
    values = [Taken(key=hostile, how="take", value=hostile * 100) for _ in range(200)]
    plan = MergePlan(kind="merge", source=hostile, into="main", values=values, messages=[says() | {"content": hostile}])
    assert "\x1b" not in str(plan)
    assert "… and 151 more" in str(plan)
    assert "<script" not in plan._repr_html_()
    assert len(diff.merge_lines(plan)) < 1000
