"""Files that a person changes while no turn runs are the person's: nothing that a session does takes them back."""

from __future__ import annotations

import os
import re
import shutil
import socket
from pathlib import Path
from subprocess import CalledProcessError

import backend
import faults
import points
import processes
import pytest
from file_tools import desk, home
from file_trees import picture
from stubborn_tools import Next

import agentgit
from agentgit import (
    Conflict,
    NotFound,
    PlanChanged,
    RollbackIncomplete,
    Workspace,
    WorkspaceChanged,
    WorldDiverged,
)

__all__ = ["desk", "home"]  # fixtures that the tests use


def wrapped(repo, desk, session="s", **options):
    """Wrap the graph of a desk with its directory as the workspace."""
    options = {"workspace": desk.root, **options}
    return repo.wrap(desk.graph(), session, effects=desk.world.effects(), check_effects=False, **options)


@pytest.fixture
def agent(repo, desk):
    """Create an agent after two turns, between which a person changed one file and wrote another one."""
    (desk.root / "mine.txt").write_text("at first")
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    (desk.root / "mine.txt").write_text("edited")
    (desk.root / "new.txt").write_text("written")
    agent.run("write a.txt two; write b.txt two")
    return agent


MINE = {"mine.txt": "edited", "new.txt": "written"}


def of_action(changes, action):
    return {one.path: one.why for one in changes.changes if one.action == action}


@pytest.mark.parametrize("to", ["main#2", "main#1"])
@pytest.mark.parametrize("verb", ["rollback", "rewind_files"])
def test_what_changed_between_turns_stays_and_plan_and_report_say_so(agent, desk, to, verb):
    plan = agent.plan_rollback(to).files
    changes = agent.rewind_files(to) if verb == "rewind_files" else agent.rollback(to).report.files
    assert desk.files == MINE | ({"a.txt": "one"} if to == "main#2" else {})
    for said in (plan, changes):
        assert of_action(said, "left") == dict.fromkeys(MINE, "somebody else changed it while no turn ran")
        assert said.conflicts == []
        assert "2 files left unchanged" in said.summary


def test_going_back_and_forth_leaves_what_a_person_made(agent, desk):
    (desk.root / "late.txt").write_text("late")
    back = agent.undo()
    assert desk.files == MINE | {"a.txt": "one", "late.txt": "late"}
    (desk.root / "later.txt").write_text("later")
    forth = back.redo()
    both = MINE | {"late.txt": "late", "later.txt": "later"}
    assert desk.files == both | {"a.txt": "two", "b.txt": "two"}
    assert forth.switch("main-2", sync="world")
    assert desk.files == both | {"a.txt": "one"}
    (desk.root / "new.txt").unlink()
    forth.rollback("main#1", force=True)
    assert desk.files == {path: text for path, text in both.items() if path != "new.txt"}


def test_a_checkpoint_by_hand_takes_nothing_back_either(repo, desk):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    before = agent.checkpoint("before")
    (desk.root / "mine.txt").write_text("edited")
    agent.checkpoint("after")
    (desk.root / "mine.txt").write_text("edited again")
    agent.rollback(before)
    assert desk.files == {"a.txt": "one", "mine.txt": "edited again"}


@pytest.mark.parametrize("first", ["turn", "person"])
def test_a_file_that_both_changed_is_a_conflict(repo, desk, first):
    """Force leaves it; overwriting keeps the person's version in the safety snapshot, which the report names."""
    agent = wrapped(repo, desk)
    agent.run("write a.txt one; write b.txt one")
    start = agent.checkpoint("start")
    if first == "person":
        (desk.root / "a.txt").write_text("mine")
    agent.run("write a.txt two; write b.txt two; add chair")
    if first == "turn":
        (desk.root / "a.txt").write_text("mine")
    text = desk.files["a.txt"]
    assert agent.plan_rollback(start).files.conflicts == ["a.txt"]
    with pytest.raises(WorkspaceChanged, match=r"both a turn and somebody else have changed a\.txt"):
        agent.rollback(start)
    assert desk.world.items == ["chair"]
    forced = agent.rollback(start, force=True).report.files
    assert desk.files == {"a.txt": text, "b.txt": "one"}
    assert list(of_action(forced, "conflict")) == ["a.txt"]
    agent.switch("main", sync="world", force=True)
    shown = agent.plan_rollback(start, files="overwrite")
    (desk.root / "a.txt").write_text("newer")
    with pytest.raises(PlanChanged) as changed:
        agent.rollback(start, files="overwrite", plan=shown)
    assert desk.files["a.txt"] == "newer"
    (desk.root / "a.txt").write_text(text)
    plan = agent.plan_rollback(start, files="overwrite")
    assert (plan.identity, list(of_action(plan.files, "overwritten"))) == (shown.identity, ["a.txt"])
    assert changed.value.plan.identity != plan.identity
    report = agent.rollback(start, files="overwrite", plan=plan).report.files
    assert desk.files == {"a.txt": "one", "b.txt": "one"}
    named = re.fullmatch("snapshot (.*) has the other's version", of_action(report, "overwritten")["a.txt"])[1]
    assert (named == report.safety) == (first == "turn")
    Workspace(desk.root).restore(named, paths=["a.txt"])
    assert desk.files["a.txt"] == "mine"


def test_what_a_turn_deleted_or_replaced_of_a_person_is_named_with_the_snapshot_that_has_it(repo, desk):
    """Also where a rollback changes nothing, because the file was not there, or is as it was."""
    agent = wrapped(repo, desk)
    for name in ("mine", "same"):
        (desk.root / f"{name}.txt").write_text("first")
    start = agent.run("write z.txt 1") and agent.head
    for name in ("mine", "same", "new"):
        (desk.root / f"{name}.txt").write_text("precious")
    agent.run("shell rm mine.txt new.txt && printf first > same.txt")
    plan = agent.plan_rollback(start)
    assert (plan.is_admissible, plan.files.conflicts) == (False, ["mine.txt"])
    overwriting = agent.plan_rollback(start, files="overwrite")
    named = of_action(overwriting.files, "overwritten")["mine.txt"]
    with pytest.raises(WorkspaceChanged, match=r"have changed mine\.txt"):
        agent.rollback(start)
    forced = agent.rollback(start, force=True).report.files
    assert desk.files == {"same.txt": "first", "z.txt": "1"}
    told = of_action(forced, "conflict") | of_action(forced, "left")
    assert told.keys() == {"mine.txt", "new.txt", "same.txt"}
    assert overwriting.is_admissible
    assert named in told["mine.txt"]
    for name, why in told.items():
        Workspace(desk.root).restore(re.search("snapshot (.*) has the other's version", why)[1], paths=[name])
        assert desk.files[name] == "precious"


@pytest.mark.parametrize(
    ("first", "turns", "action"),
    [
        ([], ["delete p.txt"], "left"),
        ([], ["write p.txt agent", "delete p.txt; write z.txt z"], "left"),
        (["write p.txt agent"], ["write p.txt agent"], "conflict"),
        (["write p.txt agent"], ["delete p.txt"], "left"),
    ],
)
def test_the_version_of_a_person_is_named_although_the_turns_ended_where_they_began(repo, desk, first, turns, action):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    start = agent.checkpoint("start")
    for orders in first:
        agent.run(orders)
    (desk.root / "p.txt").write_text("precious")
    for orders in turns:
        agent.run(orders)
    was = desk.files
    why = of_action(agent.plan_rollback(start).files, action)["p.txt"]
    if action == "conflict":
        with pytest.raises(WorkspaceChanged, match=r"have changed p\.txt"):
            agent.rollback(start)
        assert desk.files == was
    agent = agent.rollback(start, files="overwrite").redo()
    assert of_action(agent.plan_rollback(start).files, action) == {"p.txt": why}
    Workspace(desk.root).restore(re.search("snapshot (.*) has the other's version", why)[1], paths=["p.txt"])
    assert desk.files["p.txt"] == "precious"


def test_a_version_of_a_person_that_a_redo_brought_back_is_still_the_persons(repo, desk):
    agent = wrapped(repo, desk)
    start = agent.run("write a.txt one") and agent.head
    agent.run("write a.txt two")
    (desk.root / "a.txt").write_text("mine")
    agent = agent.rollback(start, files="overwrite").redo()
    with pytest.raises(WorkspaceChanged, match=r"have changed a\.txt"):
        agent.rollback(start)
    assert desk.files == {"a.txt": "mine"}


def test_an_earlier_text_of_a_turn_is_the_persons_if_a_person_brings_it_back_and_the_turns_after_an_undo(repo, desk):
    agent = wrapped(repo, desk)
    start = agent.run("write a.txt one") and agent.head
    agent.run("write a.txt two")
    agent.run("write a.txt three")
    agent = agent.undo()
    assert desk.files == {"a.txt": "two"}
    assert agent.plan_rollback(start).files.conflicts == []
    agent = agent.redo()
    (desk.root / "a.txt").write_text("two")
    with pytest.raises(WorkspaceChanged, match=r"have changed a\.txt"):
        agent.rollback(start)
    report = agent.rollback(start, files="overwrite").report.files
    assert of_action(report, "overwritten") == {"a.txt": f"snapshot {report.safety} has the other's version"}
    assert desk.files == {"a.txt": "one"}


def test_a_person_who_brings_back_what_a_rollback_would_is_in_no_conflict(repo, desk):
    agent = wrapped(repo, desk)
    start = agent.run("write a.txt one") and agent.head
    agent.run("write a.txt two")
    (desk.root / "a.txt").write_text("one")
    agent.run("write a.txt three")
    agent.rollback(start)
    assert desk.files == {"a.txt": "one"}


def test_what_somebody_changed_before_a_point_with_the_same_files_does_not_count_after_it(repo, desk):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    (desk.root / "p.txt").write_text("mine")
    agent.run("delete p.txt")
    point = agent.checkpoint("point")
    agent.run("write p.txt agent")
    agent.rollback(point)
    assert desk.files == {"a.txt": "one"}


def test_a_conflict_that_was_overwritten_is_none_for_a_later_rollback(repo, desk):
    """What a rollback brought back has the past that it had."""
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    start = agent.checkpoint("start")
    agent.run("write a.txt two")
    middle = agent.checkpoint("middle")
    agent.run("write b.txt more")
    (desk.root / "a.txt").write_text("mine")
    agent.run("write a.txt three")
    agent.rewind_files(middle, files="overwrite")
    assert agent.plan_rollback(start).files.conflicts == []
    agent.rollback(start)
    assert desk.files == {"a.txt": "one"}


def _save_by_rename(path, text):
    (path.parent / ".saving").write_text(text)
    (path.parent / ".saving").rename(path)


@pytest.mark.parametrize("save", [lambda path, text: path.write_text(text), _save_by_rename], ids=["write", "rename"])
@pytest.mark.parametrize("opened", ["the same", "again"])
def test_it_does_not_matter_how_a_file_is_saved_and_which_process_goes_back(repo, desk, save, opened):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    save(desk.root / "mine.txt", "edited")
    agent.run("write a.txt two")
    save(desk.root / "late.txt", "late")
    if opened == "again":
        with agentgit.open(backend.url(repo)) as other:
            other.session("s").rollback("main#2")
    else:
        agent.rollback("main#2")
    assert desk.files == {"a.txt": "one", "mine.txt": "edited", "late.txt": "late"}


def test_a_formatter_that_runs_after_each_turn_makes_conflicts_of_what_it_changed_only(repo, desk):
    agent = wrapped(repo, desk)
    for text in ("one", "two", "three"):
        agent.run(f"write a.txt {text}; write b.txt {text}")
        (desk.root / "a.txt").write_text(text.upper())
    with pytest.raises(WorkspaceChanged, match=r"a\.txt"):
        agent.undo()
    agent.undo(force=True)
    assert desk.files == {"a.txt": "THREE", "b.txt": "two"}


def test_another_session_in_the_same_directory_is_somebody_else(repo, desk):
    one, two = wrapped(repo, desk), wrapped(repo, desk, "t")
    start = one.checkpoint("start")
    one.run("write a.txt one")
    two.run("write b.txt two")
    one.run("write c.txt one")
    one.rollback(start)
    assert desk.files == {"b.txt": "two"}
    two.rollback("main#1")
    assert desk.files == {}


@pytest.mark.parametrize("edited_at", ["before", "between"])
def test_what_a_person_made_before_a_session_had_the_directory_is_a_conflict_at_a_point_of_another(
    repo, desk, edited_at
):
    first, second = wrapped(repo, desk, "first"), wrapped(repo, desk, "second")
    first.run("write a.txt one")
    point = first.checkpoints()[-1].id
    if edited_at == "between":
        second.run("hello")
    (desk.root / "mine.txt").write_text("mine")
    (desk.root / "a.txt").write_text("edited")
    second.run("write b.txt two")
    (desk.root / "late.txt").write_text("late")
    plan = second.session.plan_rewind(point)
    left = {"mine.txt", "a.txt", "late.txt"}
    assert {*of_action(plan.files, "conflict"), *of_action(plan.files, "left")} == left
    if not plan.is_admissible:
        with pytest.raises(WorkspaceChanged):
            second.rewind_files(point, plan=plan)
    second.rewind_files(point, plan=plan, force=True)
    assert desk.files == {"mine.txt": "mine", "a.txt": "edited", "late.txt": "late"}


def test_a_file_in_the_place_of_a_directory_and_below_it_is_not_torn_apart(repo, desk):
    agent = wrapped(repo, desk)
    agent.run("write d/x.txt one; write e one")
    start = agent.checkpoint("start")
    agent.run("shell rm -r d e && mkdir e && echo -n two > e/y.txt")
    (desk.root / "d").write_text("mine")
    (desk.root / "e" / "z.txt").write_text("mine")
    agent.rollback(start, force=True)
    assert desk.files == {"d": "mine", "e/z.txt": "mine"}


def test_a_file_that_a_turn_changed_comes_back_although_a_person_deleted_its_directory(repo, desk):
    """That replaces nothing; what only the person deleted stays away."""
    agent = wrapped(repo, desk)
    agent.run("write d/e/a.txt one; write d/e/b.txt one; write d/c.txt one")
    start = agent.checkpoint("start")
    agent.run("write d/e/a.txt two")
    shutil.rmtree(desk.root / "d")
    assert of_action(agent.plan_rollback(start).files, "write") == {"d/e/a.txt": "somebody else had deleted it"}
    report = agent.rollback(start).report.files
    assert (desk.files, report.conflicts) == ({"d/e/a.txt": "one"}, [])


def test_the_mode_and_the_absence_of_a_directory_are_a_persons_too(repo, desk):
    agent = wrapped(repo, desk)
    agent.run("write d/key one; write e/f/g.txt one; shell mkdir -p h/i")
    start = agent.checkpoint("start")
    agent.run("write d/key two; shell rmdir h/i")
    (desk.root / "d").chmod(0o700)
    (desk.root / "h").rmdir()
    shutil.rmtree(desk.root / "e")
    agent.rollback(start)
    assert (desk.root / "d").stat().st_mode & 0o777 == 0o700
    assert desk.files == {"d/key": "one"}
    assert (desk.root / "h" / "i").is_dir()


def test_another_storage_of_the_same_directory_makes_nobody_a_writer(repo, desk, tmp_path):
    """As where a session is wrapped with a storage of its own, and served with that of the directory."""
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    agent.run("write a.txt two")
    other = wrapped(repo, desk, workspace=Workspace(desk.root, tmp_path / "other"))
    (desk.root / "mine.txt").write_text("mine")
    changes = other.plan_rollback("main#2", files="overwrite").files.changes
    assert {(one.action, one.path) for one in changes} == {("write", "a.txt"), ("left", "mine.txt")}
    other.rollback("main#2")
    assert desk.files == {"a.txt": "one", "mine.txt": "mine"}


@pytest.mark.parametrize("gone", ["the objects", "the directory"])
def test_a_plan_that_cannot_restore_the_files_is_blocked_and_goes_on_without_them(repo, desk, gone):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    start = agent.checkpoint("start")
    agent.run("write a.txt two; add chair")
    if gone == "the objects":
        shutil.rmtree(Path(Workspace(desk.root).storage_dir) / "git" / "objects" / "pack")
    else:
        desk.root.rename(desk.root.with_name("elsewhere"))
    plan = agent.plan_rollback(start)
    assert (plan.is_admissible, plan.is_forcible) == (False, True)
    assert plan.summary.endswith("Blocked by the files.")
    assert "no blockers" not in plan.summary
    with pytest.raises(agentgit.Unavailable, match="files=False"):
        agent.rollback(start)
    assert desk.world.items == ["chair"]
    assert agent.plan_rollback(start, files=False).is_admissible
    agent.rollback(start, files=False)
    assert desk.world.items == []


def test_a_plan_is_blocked_if_the_storage_cannot_keep_what_a_rollback_replaces(repo, desk, home, tmp_path):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    agent.run("write a.txt two; add chair")
    (refs,) = tmp_path.glob("**/refs/agentgit")
    shutil.rmtree(refs)
    assert "No such file" in agent.plan_rollback("main#2").files.problem
    with pytest.raises(agentgit.Unavailable, match="Nothing was done"):
        agent.rollback("main#2")
    assert desk.world.items == ["chair"]
    assert agent.rollback("main#2", files=False).report.status == "done"


def test_what_a_turn_that_died_left_is_nobodys_for_sure(repo, desk):
    """Its files are in conflict, as are those that a person wrote after it; force leaves both."""
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    start = agent.checkpoint("start")
    died = processes.run(DIES, backend.address(repo), desk.root, "shell die")
    assert died.returncode == 9, died.stderr
    (desk.root / "mine.txt").write_text("mine")
    again = wrapped(repo, desk)
    again.run("write c.txt on")
    assert again.plan_rollback(start).files.conflicts == ["a.txt", "mine.txt"]
    again.rollback(start, force=True)
    assert desk.files == {"a.txt": "half", "mine.txt": "mine"}


DIES = """
import os, sys
import agentgit
from file_tools import Desk
url, root, text = sys.argv[1:]
desk = Desk(__import__("pathlib").Path(root))
repo = agentgit.open(url)
agent = repo.wrap(desk.graph(), "s", workspace=root, effects=desk.world.effects(), check_effects=False)
desk.shell = lambda command: ((desk.root / "a.txt").write_text("half"), os._exit(9))
agent.run(text)
"""


BROKEN_OFF = "write a.txt one then write a.txt two; write b.txt two then write c.txt three; shell "


def test_a_turn_that_broke_off_leaves_a_point_with_the_files_from_before_its_open_calls(repo, desk):
    """The checkpoint stands before the message whose calls have no result, and so do its files."""
    agent = wrapped(repo, desk)
    with pytest.raises(CalledProcessError):
        agent.run(BROKEN_OFF + "false")
    assert desk.files == {"a.txt": "two", "b.txt": "two", "c.txt": "three"}
    (desk.root / "mine.txt").write_text("mine")
    by_hand = agent.checkpoint("by hand")
    agent.run("hello")
    for point in (by_hand, agent.checkpoints()[-2]):
        agent.rewind_files(point, files="overwrite")
        assert desk.files == {"a.txt": "two", "b.txt": "two", "mine.txt": "mine"}
        (desk.root / "c.txt").write_text("three")


def test_a_turn_that_was_killed_leaves_a_point_with_the_files_from_before_its_open_calls(repo, desk):
    died = processes.run(DIES, backend.address(repo), desk.root, BROKEN_OFF + "die")
    assert died.returncode == 9, died.stderr
    agent = wrapped(repo, desk)
    agent.run("hello")
    before = agent.checkpoints()[-2]
    why = set(of_action(agent.plan_rollback(before).files, "conflict").values())
    assert {text.partition(";")[0] for text in why} == {"a turn changed it, and perhaps so did somebody else"}
    agent.rollback(before, files="overwrite")
    assert desk.files == {"a.txt": "two", "b.txt": "two"}


def test_each_point_inside_a_turn_has_the_files_that_its_next_calls_found(repo, desk):
    app = repo.graph(
        desk.graph(), effects=desk.world.effects(), check_effects=False, workspace=desk.root, confirm="never"
    )
    thread = {"configurable": {"thread_id": "t"}}
    app.invoke(
        {"messages": [("user", "write a.txt one then write a.txt two; write b.txt two then write c.txt three")]}, thread
    )
    points = [one.config for one in app.get_state_history(thread) if one.next == ("tools",)]
    found = []
    for point in points:
        app.invoke({"messages": [("user", "hello")]}, point)
        found.append(desk.files)
    assert found == [{"a.txt": "two", "b.txt": "two"}, {"a.txt": "one"}, {}]


def test_snapshots_that_tell_a_persons_changes_are_kept_as_long_as_somebody_can_go_back(repo, desk):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    start = agent.checkpoint("start")
    for number in range(3):
        agent.run(f"write a.txt {number}")
        (desk.root / f"mine{number}.txt").write_text("mine")
    agent.run("write a.txt last")
    repo.session("s").cleanup_auto_checkpoints(keep=0)
    repo.maintenance.gc()
    agent.rollback(start)
    assert desk.files == {"a.txt": "one"} | {f"mine{number}.txt": "mine" for number in range(3)}


def _between_the_turns(agent, desk):
    return agent


def _after_a_switch(agent, desk):
    agent.fork(name="aside").run("write a.txt aside")
    return agent.switch("main", "world")


def _after_a_rollback(agent, desk):
    return agent.rollback("main#3").redo()


def _after_a_saved_edit(agent, desk):
    agent.checkpoint("by hand")
    (desk.root / "late.txt").write_text("late")
    return agent


def _after_an_old_version(agent, desk):
    (desk.root / "b.txt").write_text("two")  # as the turn before had it
    return agent


HOWS = [_between_the_turns, _after_a_switch, _after_a_rollback, _after_a_saved_edit, _after_an_old_version]


@pytest.mark.parametrize("change", HOWS)
@pytest.mark.parametrize("steps", [1, 2])
def test_undo_goes_on_to_the_start_past_what_a_person_made(agent, desk, change, steps):
    """Each step takes back a turn: what others changed makes no step of its own."""
    agent.run("write a.txt three; write b.txt three")
    (desk.root / "last.txt").write_text("last")
    agent = change(agent, desk)
    mine = {name: text for name, text in desk.files.items() if name not in ("a.txt", "b.txt")}
    states = [{"a.txt": "two", "b.txt": "two"}, {"a.txt": "one"}, {}]
    for left in states[steps - 1 :: steps]:
        agent = agent.undo(steps, files="overwrite")
        assert desk.files == mine | left
        assert sum(one["role"] == "user" for one in agent.history()) == len(states) - 1 - states.index(left)
    with pytest.raises(NotFound):
        agent.undo(steps)


def test_the_first_point_of_a_branch_has_what_a_person_made_before(agent, desk):
    agent = agent.undo()
    agent.run("write new.txt robot")
    agent.rollback("main-2#1")
    assert desk.files == MINE | {"a.txt": "one"}


def _at_once(agent):
    return agent


def _saved_by_hand(agent):
    agent.checkpoint("by hand")
    return agent


def _gone_on(agent):
    agent = agent.switch("main", "ignore")
    agent.run("hello")
    return agent


@pytest.mark.parametrize(("since", "steps"), [(_at_once, 1), (_saved_by_hand, 1), (_gone_on, 2)])
def test_an_undo_takes_back_no_files_of_another_branch_unasked(agent, repo, desk, since, steps):
    agent.fork(name="aside").run("write c.txt theirs")
    agent = since(agent)
    with pytest.raises(WorldDiverged, match=r"other branches did: c\.txt"):
        agent.undo(steps)
    assert "c.txt" in desk.files
    agent.undo(steps, plan=agent.plan_undo(steps))
    assert "c.txt" not in desk.files


def test_a_redo_takes_nothing_back_of_another_branch_unasked(agent, desk):
    back = agent.undo()
    back.fork(name="aside").run("write c.txt theirs; add lamp")
    with pytest.raises(WorldDiverged, match=r"other branches did: add.*lamp.*; c\.txt"):
        back.redo()
    assert desk.files["c.txt"] == "theirs"
    assert desk.world.items == ["lamp"]
    back.redo(plan=back.plan_redo())
    assert desk.files == MINE | {"a.txt": "two", "b.txt": "two"}


@pytest.mark.parametrize("steps", [1, 2])
def test_an_undo_without_files_takes_back_turns_only(agent, desk, steps):
    agent.run("write a.txt three")
    files = desk.files
    for left in range(3 - steps, -1, -steps):
        agent = agent.undo(steps, files=False)
        assert sum(one["role"] == "user" for one in agent.history()) == left
        assert desk.files == files


SINCE_A_REWIND = {
    "nothing": lambda agent: None,
    "a fork": lambda agent: agent.fork(name="aside"),
    "a checkpoint": lambda agent: agent.checkpoint("by hand"),
    "a switch": lambda agent: agent.switch("main-2", "note"),
}


@pytest.mark.parametrize("since", SINCE_A_REWIND)
def test_a_redo_takes_back_a_rewind_until_the_next_turn(agent, desk, since):
    agent = agent.undo()
    agent.run("write a.txt three; add lamp")
    agent.rewind_files("main#1")
    SINCE_A_REWIND[since](agent)
    assert agent.redo().branch.name == "main-2"
    assert desk.files == MINE | {"a.txt": "three"}
    assert desk.world.items == ["lamp"]
    agent.rewind_files("main#1")
    agent.run("hello")
    assert agent.redo().branch.name == "main"


@pytest.mark.parametrize("options", [{"tools": "keep"}, {"conversation": False}])
def test_a_way_past_a_conflict_keeps_the_options_of_the_call(agent, desk, options):
    agent.run("write a.txt three; add lamp")
    (desk.root / "a.txt").write_text("mine")
    with pytest.raises(WorkspaceChanged) as refused:
        agent.rollback("main#3", **options)
    assert refused.value.next == (Next("force_files"), Next("add_overwrite"))
    assert "files='overwrite' restores them" in str(refused.value)
    branch = agent.rollback("main#3", **options, files="overwrite").branch.name
    assert (branch, desk.world.items) == (("main-2", ["lamp"]) if "tools" in options else ("main", []))
    assert desk.files["a.txt"] == "one"


def test_what_the_running_turn_changed_is_the_turns_in_a_plan_too(agent, desk):
    for _ in agent.stream({"messages": [("user", "write a.txt three")]}):
        if desk.files["a.txt"] == "three":
            plan = agent.plan_undo()
            break
    assert of_action(plan.files, "conflict") == {}
    assert "a.txt" in of_action(plan.files, "write")


def test_a_file_below_which_a_person_has_written_stays_and_nothing_promises_to_overwrite_it(agent, desk):
    (desk.root / "b.txt").unlink()
    agent.run("shell rm a.txt")
    (desk.root / "a.txt").mkdir()
    (desk.root / "a.txt" / "inside").write_text("mine")
    with pytest.raises(WorkspaceChanged) as refused:
        agent.undo()
    assert refused.value.next == (Next("force_files"),)
    why = of_action(agent.plan_rollback("main#5", files="overwrite").files, "conflict")
    assert why["a.txt"] == "a file that somebody else made stands above or below it"
    agent.undo(force=True)
    assert desk.files["a.txt/inside"] == "mine"


def _pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _socket(path):
    path.unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch, socket.socket(socket.AF_UNIX) as made:
        patch.chdir(path.parent)  # the path of a socket must be short
        made.bind(path.name)


def _large(path):
    path.write_text("mine" * 1000)


def _ignored(path):
    (path.parent / ".gitignore").write_text("out*\n")
    path.write_text("mine")


def _ignored_directory(path):
    (path.parent / ".gitignore").write_text("out/\n")
    path.mkdir()
    (path / "mine").write_text("mine")


def _below_an_ignored_directory(path):
    (path.parent.parent / ".gitignore").write_text("d/\n")
    path.parent.mkdir()
    path.write_text("mine")


UNHELD = [
    ("out", "delete out", _pipe),
    ("out", "write out two", _pipe),
    ("out", "write out two", _socket),
    ("out", "delete out", _large),
    ("out", "delete out", _ignored),
    ("out", "delete out", _ignored_directory),
    ("d/out", "shell rm -r d", _below_an_ignored_directory),
]


@pytest.mark.parametrize(("path", "orders", "replace"), UNHELD)
def test_what_a_person_puts_in_the_place_of_a_turns_file_is_a_conflict_although_no_snapshot_holds_it(
    repo, desk, path, orders, replace
):
    agent = repo.wrap(
        desk.graph(),
        "s",
        effects=desk.world.effects(),
        check_effects=False,
        workspace=Workspace(desk.root, max_file_size=1000),
    )
    start = agent.run(f"write {path} one") and agent.head
    agent.run(f"{orders}; add chair")
    replace(desk.root / path)
    was = picture(desk.root)
    why = {path: "something that no snapshot holds is in its place"}
    assert of_action(agent.plan_rollback(start).files, "conflict") == why
    with pytest.raises(WorkspaceChanged, match=f"something that no snapshot holds is in the place of {path}"):
        agent.rollback(start)
    assert (picture(desk.root), desk.world.items) == (was, ["chair"])
    assert of_action(agent.rewind_files(start, force=True), "conflict") == why
    assert picture(desk.root) == was
    plan = agent.plan_rollback(start, files="overwrite").files
    report = agent.rollback(start, files="overwrite").report.files
    assert of_action(plan, "write") == of_action(report, "write") == {path: ""}
    assert list(of_action(plan, "aside")) == [path]
    assert (desk.root / path).read_text() == "one"
    place = of_action(report, "aside")[path if path in of_action(report, "aside") else f"{path}/mine"]
    assert os.path.lexists(place.removeprefix("now at "))


@pytest.mark.parametrize("verb", ["rollback", "switch", "rewind_files"])
def test_a_confirmed_plan_with_which_a_person_now_interferes_is_another_plan(agent, desk, verb):
    plans = {"rollback": agent.plan_rollback, "rewind_files": agent.session.plan_rewind, "switch": agent.plan_switch}
    if verb == "switch":
        agent.fork(name="aside").run("write a.txt aside")
    to = "main" if verb == "switch" else "main#2"
    plan = plans[verb](to)
    (desk.root / "a.txt").write_text("mine")
    with pytest.raises(PlanChanged) as changed:
        getattr(agent, verb)(to, plan=plan)
    assert changed.value.plan.files.conflicts == ["a.txt"]
    assert desk.files["a.txt"] == "mine"
    with pytest.raises(WorkspaceChanged):
        getattr(agent, verb)(to, plan=changed.value.plan)


def _where_an_undo_raises():
    return faults.fails(points.UNDO_CALL, ValueError("the shop is closed")), RollbackIncomplete


def _where_a_file_cannot_be_written():
    return faults.full_for({b"b.txt"}), RollbackIncomplete


def _where_it_dies():
    return faults.fails(points.BRING_FILES, KeyboardInterrupt()), KeyboardInterrupt


@pytest.mark.parametrize("stop", [_where_an_undo_raises, _where_a_file_cannot_be_written, _where_it_dies])
@pytest.mark.parametrize("verb", ["resume", "rollback"])
def test_a_new_file_that_a_person_makes_while_a_rollback_has_stopped_is_the_persons(repo, desk, stop, verb):
    agent = wrapped(repo, desk)
    start = agent.run("write a.txt one; write b.txt one") and agent.head
    agent.run("write a.txt two; write b.txt two; add chair")
    cause, error = stop()
    with cause, pytest.raises(error):
        agent.rollback(start)
    (desk.root / "new.txt").write_text("mine")
    mine = {"new.txt": "somebody else changed it while no turn ran"}
    if verb == "resume" or stop is not _where_an_undo_raises:
        files = repo.resume(repo.session("s").operations()[0]).files
    else:  # it has restored no file yet, so another rollback may
        assert of_action(agent.plan_rollback(start).files, "left") == mine
        files = agent.rollback(start).report.files
    assert (of_action(files, "left"), files.conflicts) == (mine, [])
    assert desk.files == {"a.txt": "one", "b.txt": "one", "new.txt": "mine"}


def _rewind(agent):
    agent.rewind_files("main#2")


def _roll_the_world_back(agent):
    agent.rollback("main#2", conversation=False)


@pytest.mark.parametrize("go_back", [_rewind, _roll_the_world_back])
def test_an_undo_takes_back_no_files_that_another_agent_brought_back_on_the_branch(repo, desk, go_back):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    agent.run("write a.txt two")
    go_back(wrapped(repo, desk))
    for verb in (agent.undo, agent.redo) if go_back is _rewind else (agent.undo,):
        with pytest.raises(Conflict, match="moved since this agent last saw it"):
            verb()
    assert desk.files == {"a.txt": "one"}
    agent.switch("main").undo()
    assert desk.files == {"a.txt": "two"}


@pytest.mark.parametrize("go_back", [_rewind, _roll_the_world_back])
def test_an_undo_takes_back_the_files_that_the_agent_itself_brought_back(repo, desk, go_back):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    agent.run("write a.txt two")
    go_back(agent)
    agent = agent.undo()
    assert desk.files == {"a.txt": "two"}
    agent.undo()
    assert desk.files == {"a.txt": "one"}


def test_an_undo_takes_back_its_own_turn_after_another_agent_brought_files_back(repo, desk):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    agent.run("write a.txt two")
    _rewind(wrapped(repo, desk))
    agent.run("write b.txt three")
    agent.undo()
    assert desk.files == {"a.txt": "one"}
