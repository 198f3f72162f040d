"""Values as text: the tree, the log, one checkpoint, lists, a diff. No database, no terminal."""

import json
from datetime import timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees_to_show import HOSTILE, NOON, Story, support

from agentgit import Checkpoint, ExternalSession, InternalSession
from agentgit.checkpoints.diff import diff
from agentgit.render import records, show
from agentgit.render.text import ASCII, STYLES, Span, cells, clean, clock, cut, plain, table, visible
from agentgit.render.views import diff as diffs
from agentgit.render.views import log, tree
from agentgit.render.views.lists import branch_lines, session_lines
from agentgit.sessions.tree import Branch, Tree

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8").rstrip("\n")


# -- the tree


def test_a_tree_is_one_picture():
    """D4: the tree shows turns, names, joints, heads and the current branch, and folds a long run."""
    assert tree.draw(support(), width=80) == golden("tree.txt")


def test_a_tree_can_show_every_checkpoint_and_its_time():
    """D4: nothing is folded when all is asked for, and times stand in their own column."""
    assert plain(tree.lines(support(), width=90, every=True, times=True)) == golden("tree-all-times.txt")


def test_a_tree_can_be_drawn_in_ascii():
    """Where an output has no box characters, the lanes have the same shape."""
    drawn = tree.draw(support(), width=80)
    assert drawn.translate(ASCII) == golden("tree-ascii.txt")
    assert drawn.translate(ASCII).isascii()


def test_a_tree_without_checkpoints_says_so():
    """A session that was only just made has a branch and nothing on it."""
    empty = Tree.grow("new", [Branch(id=1, name="main", is_current=True)])
    assert tree.draw(empty) == "new: 1 branch, 0 checkpoints\n○ main  (HEAD -> main *) no checkpoints yet"
    assert tree.draw(Tree(session_name="none", roots=[])) == "none: 0 branches, 0 checkpoints"


def test_a_branch_that_left_before_its_parent_began_hangs_at_the_first():
    """A branch point that lies on no line of the parent does not lose the branch."""
    one = Story().point(1, "named", name="one")
    forest = [Branch(id=1, name="a", points=[one]), Branch(id=2, name="b", parent_id=1, branch_point_id=999)]
    assert tree.draw(Tree.grow("s", forest)).splitlines()[1:] == [
        "◆ a#1  (a) one",
        "╰─○ b  (b) no checkpoints yet",
    ]


def test_every_branch_and_every_name_is_in_the_picture():
    """Folding hides turns only: heads, names and joints are always there."""
    drawn = tree.draw(support())
    for shown in ("main#43", "retry#7", "undone#1", "in-red#4", "empty", "before payment", "retry#4", "main#5"):
        assert shown in drawn


def test_a_deep_tree_is_drawn_without_a_recursion_error():
    """Two thousand branches, each on the one before, still fit the width."""
    story = Story()
    branches = [Branch(id=1, name="b1", points=[story.point(1, "named", name="x")])]
    for n in range(2, 2001):
        left = branches[-1].points[-1].id
        points = [story.point(1, "named", name="x")]
        branches.append(Branch(id=n, name=f"b{n}", points=points, parent_id=n - 1, branch_point_id=left))
    drawn = tree.draw(Tree.grow("deep", branches), width=80).splitlines()
    assert len(drawn) == 2001
    assert max(map(cells, drawn)) <= 80


def test_hostile_names_cannot_leave_their_place_in_a_tree():
    """Escapes, line ends and marks of direction in names and titles are written out, and no line is too wide."""
    story = Story()
    points = [story.point(1, "before", HOSTILE), story.point(2, "named", HOSTILE, HOSTILE)]
    grown = Tree.grow(HOSTILE, [Branch(id=1, name=HOSTILE, status=HOSTILE, points=points)])
    assert_harmless(tree.draw(grown, width=80), lines=3, width=None)
    points = [story.point(1, "named", HOSTILE, HOSTILE)]
    grown = Tree.grow(HOSTILE, [Branch(id=1, name=HOSTILE, points=points)])
    assert_harmless(tree.draw(grown, width=80), lines=2, width=80)


def assert_harmless(text: str, *, lines: int, width: int | None) -> None:
    """Fail if a terminal could obey any of it."""
    assert len(text.split("\n")) == lines
    assert all(c.isprintable() or c in "\n\u200c\u200d" for c in text)
    text.encode("utf-8")
    if width:
        assert max(map(cells, text.split("\n"))) <= width


# -- the log, one checkpoint, the lists


def checkpoint(number: int, kind: str, description: str | None, name: str | None = None, **more) -> Checkpoint:
    facts = {"reference": f"main#{number}", "kind": kind, "description": description, "message_count": number}
    return Checkpoint(
        id=7000 + number,
        checkpoint_name=name,
        is_auto=kind != "named",
        created_at=NOON + timedelta(minutes=number),
        metadata=facts | {"tool_track_position": number // 2, "state_hash": "ab" * 32, "restore_point": None} | more,
    )


def test_a_log_has_one_line_per_checkpoint_the_newest_first():
    """A6: automatic and named checkpoints stand in one list, each with its place, time, kind and title."""
    path = [
        checkpoint(1, "before", "order two chairs"),
        checkpoint(2, "after", "Two chairs are ordered."),
        checkpoint(3, "named", "all is in the cart", "before payment"),
    ]
    assert log.draw_log(path, width=80) == golden("log.txt")


def test_a_log_does_not_read_the_content():
    """A log of deferred checkpoints never loads a state."""

    def load() -> dict:
        raise AssertionError("the log must not read this")

    deferred = Checkpoint.deferred(load, id=1, metadata={"reference": "main#1", "tool_track_position": 3})
    assert "3 calls" in log.draw_log([deferred])
    assert records.of_checkpoint(deferred)["reference"] == "main#1"


def test_a_log_of_hand_made_checkpoints_is_readable():
    """A1: a checkpoint that was never stored has no place, and is drawn all the same."""
    assert log.draw_log([Checkpoint(), Checkpoint(id=5, is_auto=True)]) == "5  auto   0 calls\n-  named  0 calls"


def test_one_checkpoint_is_shown_in_full():
    """D1: state, conversation and tool invocations of a checkpoint, with the facts about it."""
    one = checkpoint(3, "named", "all is in the cart", "before payment", data={"ticket": 9}, restore_point="m-1")
    one.session_state = {"cart": ["chair", "chair"], "total": 120}
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
    assert show.draw_checkpoint(one, width=80) == golden("show.txt")


def test_a_long_checkpoint_shows_its_end():
    """Of a long conversation the last messages are shown, and how many there are in all."""
    long = Checkpoint(conversation_history=[{"role": "user", "content": f"message {n}"} for n in range(50)])
    drawn = show.draw_checkpoint(long)
    assert "50 messages, the last 20" in drawn
    assert "message 49" in drawn
    assert "message 29" not in drawn


def test_hostile_content_cannot_leave_its_line():
    """Escapes and line ends in any field of a checkpoint are written out, in the log and when it is shown."""
    one = checkpoint(1, "after", HOSTILE, HOSTILE, reference=HOSTILE, data=HOSTILE, restore_point=HOSTILE)
    one.session_state = {HOSTILE: HOSTILE}
    one.conversation_history = [
        {"role": "user", "content": HOSTILE, "tool_calls": [{"name": HOSTILE, "args": HOSTILE}]}
    ]
    one.tool_invocations = [{"tool_name": HOSTILE, "args": {"x": HOSTILE}, "result": HOSTILE, "status": HOSTILE}]
    assert_harmless(log.draw_log([one]), lines=1, width=100)
    assert_harmless(show.draw_checkpoint(one, width=100), lines=16, width=None)
    other = Checkpoint(session_state={"x": HOSTILE}, conversation_history=[{"role": HOSTILE, "content": HOSTILE}])
    assert_harmless(plain(diffs.lines(diff(one, other), width=80)), lines=9, width=80)


def branch(id: int, name: str, **more) -> InternalSession:
    return InternalSession(id=id, external_session_id=1, langgraph_session_id=f"t{id}", name=name, **more)


def test_branches_are_listed_with_their_branch_points():
    """D2: each branch is there with where it left, the current one marked, an unfinished rollback named."""
    branches = [
        branch(1, "main", created_at=NOON, checkpoint_count=43, tool_invocation_count=14),
        branch(2, "retry", created_at=NOON, checkpoint_count=7, is_current=True, branch_point_checkpoint_id=4),
        branch(3, "undone", created_at=NOON, checkpoint_count=1, status="partial", branch_point_checkpoint_id=5),
    ]
    assert plain(branch_lines(branches, support(), width=80)) == golden("branches.txt")
    assert records.of_branch(branches[1])["name"] == "retry"


def test_d4_a_long_name_hides_no_branch_point():
    """D4: where a branch left is whole in the list, also beside a branch whose name is long."""
    branches = [branch(1, "main", created_at=NOON), branch(2, "n" * 60, created_at=NOON, branch_point_checkpoint_id=4)]
    shown = plain(branch_lines(branches, support(), width=80))
    assert shown.endswith(plain(branch_lines(branches, support(), width=200)).rpartition("  ")[2])


def test_sessions_are_listed():
    """D5: a person's sessions with the time of their last move and their number of branches."""
    some = [
        ExternalSession(id=1, user_id=1, session_name="support-42", created_at=NOON, updated_at=NOON, branch_count=5),
        ExternalSession(id=2, user_id=1, session_name="日本", created_at=NOON, updated_at=NOON, is_active=False),
    ]
    assert plain(session_lines(some, width=80)) == golden("sessions.txt")
    assert records.of_session(some[0])["updated_at"] == "2026-10-04T12:00:00Z"


def test_records_are_json():
    """A program gets a tree as a flat list of branches, which JSON can carry however deep the tree is."""
    data = json.loads(json.dumps(records.of_tree(support())))
    assert [b["name"] for b in data["branches"]] == ["main", "retry", "in-red", "empty", "undone"]
    assert data["branches"][1]["points"][0]["kind"] == "branch"


def test_w6_a_drawn_diff_has_a_style_for_each_sign():
    """W6: added and removed lines can be told apart by colour as well as by sign."""
    a, b = Checkpoint(session_state={"a": 1}), Checkpoint(session_state={"a": 2})
    assert [span.style for (span,) in diffs.lines(diff(a, b))] == ["heading", "removed", "added"]


def test_every_style_has_a_name_that_is_known():
    """A face can know all styles beforehand."""
    lines = [
        *tree.lines(support()),
        *log.lines([checkpoint(1, "named", "x", "y")]),
        *show.lines(checkpoint(1, "x", "y")),
    ]
    assert {span.style for line in lines for span in line} <= set(STYLES)


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
def test_text_is_made_harmless(raw, harmless):
    """Controls, escapes, marks of direction and lone surrogates are written out; joined emoji stay whole."""
    assert clean(raw) == harmless


def test_text_of_several_lines_keeps_them():
    """A text that may have lines and spaces keeps both, and nothing else that a terminal obeys."""
    assert visible("a  b\n\x1b[1mc") == "a  b\n\\x1b[1mc"


@given(st.text(max_size=80), st.integers(1, 40))
def test_a_cut_text_fits(text, width):
    """No clean text is wider than its place after a cut, wide and combining characters included."""
    short = cut(clean(text), width)
    assert cells(short) <= width
    assert len(short) <= 4 * width + 1
    assert short == clean(text) or short.endswith("…")


def test_times_are_shown_in_the_zone_that_is_asked_for():
    """A time is shown in UTC, or in the zone of the person who looks; no time is nothing."""
    assert clock(NOON, timezone(timedelta(hours=2)), seconds=True) == "2026-10-04 14:00:00"
    assert clock(None) == ""


def test_a_column_without_anything_takes_no_place():
    """A table shows what there is."""
    assert plain(table([[Span("a"), Span(""), Span("b")]], width=20)) == "a  b"
    assert table([], width=20) == []
