"""Rendering of trees, logs, checkpoints, lists and diffs as text, without a database or a terminal."""

from datetime import timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markup import golden
from session_trees import NOON, Story, support

from agentgit import Checkpoint, ExternalSession, InternalSession
from agentgit.checkpoints.diff import diff
from agentgit.render.records import record
from agentgit.render.svg import tree_svg
from agentgit.render.text import cells, clean, cut, format_time, visible
from agentgit.render.view import STYLES, Medium, Span, Table, plain
from agentgit.render.views import checkpoints, lists, tree
from agentgit.render.views.diff import differences
from agentgit.sessions.folded_tree import fold
from agentgit.sessions.tree import Branch, Point, Tree

NARROW = Medium(width=80)

# -- the tree


def test_a_tree_matches_the_expected_drawing():
    """The tree shows turns, names, joints, heads and the current branch, and folds a long run."""
    assert NARROW.text(tree.tree(support())) == golden("tree.txt")


def test_a_tree_without_checkpoints_is_drawn():
    empty = Tree.grow("new", [Branch(id=1, name="main", is_current=True)])
    assert str(empty) == "new: 1 branch, 0 checkpoints\n○ main  (HEAD -> main *) no checkpoints yet"
    assert str(Tree(session_name="none", roots=[])) == "none: 0 branches, 0 checkpoints"


def rerun_tree(status: str) -> Tree:
    point = Point(id=5, number=1, name="start")
    child = Branch(id=2, name="again", status=status, parent_id=1, branch_point_id=5, points=[Point(id=6, number=2)])
    return Tree(session_name="s", roots=[Branch(id=1, name="main", is_current=True, points=[point], children=[child])])


def test_a_rerun_is_drawn_apart_from_branches_that_acted():
    """It has its own sign in the text, also of a folded tree, is dashed in the picture, and both have a legend."""
    rerun, acted = rerun_tree("simulated"), rerun_tree("open")
    for drawn in (str(rerun), str(fold(rerun))):
        assert "◌ again#2" in drawn
        assert drawn.splitlines()[-1] == "◌ rerun: its calls were simulated"
    assert "◌" not in str(acted)
    assert "stroke-dasharray" in tree_svg(rerun)
    assert "rerun: its calls were simulated" in tree_svg(rerun)
    assert "stroke-dasharray" not in tree_svg(acted)
    assert "rerun:" not in tree_svg(acted)


def test_a_branch_with_an_unknown_branch_point_is_still_drawn():
    """A branch whose branch point is on no line of its parent is drawn at the parent's first checkpoint."""
    one = Story().point(1, "named", name="one")
    forest = [Branch(id=1, name="a", points=[one]), Branch(id=2, name="b", parent_id=1, branch_point_id=999)]
    assert str(Tree.grow("s", forest)).splitlines()[1:] == [
        "◆ a#1  (a) one",
        "╰─○ b  (b) no checkpoints yet",
    ]


def test_a_deep_tree_is_drawn_without_a_recursion_error():
    story = Story()
    branches = [Branch(id=1, name="b1", points=[story.point(1, "named", name="x")])]
    for n in range(2, 2001):
        left = branches[-1].points[-1].id
        points = [story.point(1, "named", name="x")]
        branches.append(Branch(id=n, name=f"b{n}", points=points, parent_id=n - 1, branch_point_id=left))
    drawn = NARROW.text(tree.tree(Tree.grow("deep", branches))).splitlines()
    assert len(drawn) == 2001
    assert max(map(cells, drawn)) <= 80


# -- the log, one checkpoint, the lists


def test_a_log_loads_no_states_and_lists_checkpoints_that_were_never_stored():
    def load() -> dict:
        raise AssertionError("the log must not read this")

    deferred = Checkpoint.deferred(load, id=1, metadata={"reference": "main#1", "tool_track_position": 3})
    assert "3 calls" in plain(checkpoints.log([deferred]))
    assert record(deferred)["reference"] == "main#1"
    assert (
        plain(checkpoints.log([Checkpoint(), Checkpoint(id=5, is_auto=True)])) == "5  auto   0 calls\n-  named  0 calls"
    )


def test_one_checkpoint_is_shown_in_full():
    facts = {"reference": "main#3", "kind": "named", "description": "all is in the cart", "restore_point": "m-1"}
    one = Checkpoint(
        id=7003, checkpoint_name="before payment", created_at=NOON + timedelta(minutes=3),
        session_state={"cart": ["chair", "chair"], "total": 120},
        metadata=facts | {"tool_track_position": 1, "state_hash": "ab" * 32, "data": {"ticket": 9}},
    )  # fmt: skip
    wants = [{"id": "c1", "name": "order", "args": {"item": "chair", "n": 2}}]
    one.conversation_history = [
        {"role": "user", "content": "order two chairs"},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes."}], "tool_calls": wants},
        {"role": "tool", "content": "order 17", "tool_call_id": "c1"},
    ]
    call = {"tool_name": "order", "args": {"item": "chair", "n": 2}, "effect": "reversible", "position": 0}
    one.tool_invocations = [
        call | {"result": {"order": 17}, "status": "done"},
        call | {"error_message": "sold out", "status": "failed", "position": 1},
    ]
    assert NARROW.text(checkpoints.checkpoint(one)) == golden("show.txt")


def test_a_long_checkpoint_shows_its_last_messages():
    long = Checkpoint(conversation_history=[{"role": "user", "content": f"message {n}"} for n in range(50)])
    drawn = plain(checkpoints.checkpoint(long))
    assert "50 messages\n  30 earlier messages not shown\n" in drawn
    assert "message 49" in drawn
    assert "message 29" not in drawn


def branch(id: int, name: str, **more) -> InternalSession:
    return InternalSession(id=id, external_session_id=1, langgraph_session_id=f"t{id}", name=name, **more)


def test_branches_are_listed_with_their_branch_points():
    branches = [
        branch(1, "main", created_at=NOON, checkpoint_count=43, tool_invocation_count=14),
        branch(2, "retry", created_at=NOON, checkpoint_count=7, is_current=True, branch_point_checkpoint_id=4),
        branch(3, "undone", created_at=NOON, checkpoint_count=1, status="partial", branch_point_checkpoint_id=5),
    ]
    assert NARROW.text(lists.branches(branches, support())) == golden("branches.txt")
    assert record(branches[1])["name"] == "retry"


def test_a_long_branch_name_does_not_hide_a_branch_point():
    branches = [branch(1, "main", created_at=NOON), branch(2, "n" * 60, created_at=NOON, branch_point_checkpoint_id=4)]
    shown = lists.branches(branches, support())
    assert NARROW.text(shown).endswith(Medium(width=200).text(shown).rpartition("  ")[2])


def test_sessions_are_listed_with_time_and_branch_count():
    some = [
        ExternalSession(id=1, user_id=1, session_name="support-42", created_at=NOON, updated_at=NOON, branch_count=5),
        ExternalSession(id=2, user_id=1, session_name="日本", created_at=NOON, updated_at=NOON, is_active=False),
    ]
    assert NARROW.text(lists.sessions(some)) == golden("sessions.txt")
    assert record(some[0])["updated_at"] == "2026-10-04T12:00:00Z"


def test_every_rendered_style_is_a_known_style():
    """Added and removed lines differ in style as well as in sign."""
    one, other = Checkpoint(checkpoint_name="x", session_state={"a": 1}), Checkpoint(session_state={"a": 2})
    changed = NARROW.lines(differences(diff(one, other)))
    assert [span.style for (span,) in changed] == ["heading", "removed", "added"]
    view = [*tree.tree(support()), *checkpoints.log([one]), *checkpoints.checkpoint(one)]
    assert {span.style for line in [*NARROW.lines(view), *changed] for span in line} <= set(STYLES)


# -- text


@pytest.mark.parametrize(
    ("raw", "harmless"),
    [
        ("plain", "plain"),
        ("two\r\nlines\tand  spaces\u00a0", "two lines and spaces"),
        ("\x1b[31mred\x9b0m\x7f", "\\x1b[31mred\\x9b0m\\x7f"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("\ud800", "\\ud800"),
        ("👩\u200d👩\u200d👧", "👩\u200d👩\u200d👧"),
    ],
)
def test_control_characters_in_a_text_are_escaped(raw, harmless):
    """Controls, escapes, direction marks and lone surrogates are written out; joined emoji stay whole."""
    assert clean(raw) == harmless


def test_a_text_of_several_lines_keeps_its_lines_and_spaces():
    assert visible("a  b\n\x1b[1mc") == "a  b\n\\x1b[1mc"


@given(st.text(max_size=80), st.integers(1, 40))
def test_a_cut_text_fits_its_width(text, width):
    """It is never wider than its place, also with wide and combining characters."""
    short = cut(clean(text), width)
    assert cells(short) <= width
    assert len(short) <= 4 * width + 1
    assert short == clean(text) or short.endswith("…")


def test_times_are_shown_in_the_requested_zone():
    assert format_time(NOON, timezone(timedelta(hours=2)), seconds=True) == "2026-10-04 14:00:00"
    assert format_time(None) == ""


def test_an_empty_column_takes_no_space():
    assert plain([Table([[Span("a"), Span(""), Span("b")]])]) == "a  b"
    assert plain([Table([])]) == ""
