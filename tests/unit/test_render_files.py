"""Rendering of file snapshots, differences, restore plans and restores as text."""

from datetime import UTC, datetime

from agentgit.render.view import plain
from agentgit.render.views import files
from agentgit.workspace.values import FileCheckpoint, Restored, WorkspaceDiff

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def styles(lines):
    return [line[0].style for line in lines]


def test_each_snapshot_is_listed_on_one_line():
    named = FileCheckpoint("a" * 32, "before", "all is well", NOON, change_count=3)
    safety = FileCheckpoint("b" * 32, None, "before a restore", NOON, kind="safety")
    assert plain(files.snapshots([named, safety])).splitlines() == [
        "aaaaaaaaaa  2026-01-02 12:00  manual  3 changed  before - all is well",
        "bbbbbbbbbb  2026-01-02 12:00  safety  0 changed  before a restore",
    ]


def test_a_diff_has_a_style_for_each_sign():
    text = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n same\n"
    diff = WorkspaceDiff("a", None, added_files=("n",), modified_files=("x",), deleted_files=("o",), diff_content=text)
    lines = files.difference(diff)
    assert plain(lines).startswith("added  n\nmodified  x\ndeleted  o\n--- a/x\n+++ b/x\n")
    assert styles(lines)[3:] == ["heading", "heading", "changed", "removed", "added", ""]
    assert plain(files.difference(WorkspaceDiff("a", "b"))) == "no difference"


def test_a_restore_report_lists_moved_and_conflicting_files():
    """Files moved aside or in conflict are listed with a reason or place, with the safety snapshot."""
    done = Restored(
        "a", "b" * 32, restored=("x",), deleted=("y",), created_directories=("d",), deleted_directories=("e",),
        moved_aside=(("z", "/aside/z"),),
        conflicts=(("c", "changed during the restore"),),
    )  # fmt: skip
    assert plain(files.restored(done)).splitlines() == [
        "restored  x", "deleted  y", "deleted  e", "created  d", "moved aside  z -> /aside/z",
        "conflict  c: changed during the restore", "The previous files are in snapshot bbbbbbbbbb.",
    ]  # fmt: skip
    assert plain(files.restored(Restored("a"))) == "There was nothing to restore."
    plan = Restored("a", restored=("x",), deleted=("y",), changed=("x",))
    assert plain(files.plan(plan)).splitlines() == [
        "restore  x", "delete  y", "changed since the last snapshot  x", "1 file to restore, 1 to delete",
    ]  # fmt: skip
    assert plain(files.plan(Restored("a"))) == "There is nothing to restore."
    undone = Restored("a", "b", message="edit x", restored=("x",), deleted=("y",), left=(("z", "changed since"),))
    shown = "undone  edit x", "restored  x", "deleted  y", "left  z: changed since"
    assert plain(files.undone([undone])).splitlines() == [*shown, "The previous files are in snapshot b."]
    assert plain(files.undone([])) == "There is nothing to undo."
