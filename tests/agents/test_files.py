"""Rollbacks of conversation, tool effects and files, together or in any combination."""

import errno
import json
import re
import shutil
import zlib
from contextlib import nullcontext
from pathlib import Path

import backend
import command_line
import faults
import points
import pytest
from file_tools import Desk, desk, home
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from scripted import call, calls, scripted, tool_node_graph
from sqlalchemy import select

import agentgit
from agentgit import (
    Corrupt,
    InvalidInput,
    NotFound,
    PlanChanged,
    RollbackIncomplete,
    Unavailable,
    Workspace,
    WorkspaceChanged,
    WorldDiverged,
    reversible,
)
from agentgit.demo import ScriptedModel

__all__ = ["desk", "home"]  # the fixtures


class Counter:
    """An environment with only the required methods."""

    def __init__(self):
        self.value, self.kept = 0, []

    def checkpoint(self):
        self.kept.append(self.value)
        return str(len(self.kept) - 1)

    def restore(self, id):
        self.value = self.kept[int(id)]


class Checked(Counter):
    """An environment that can tell that its snapshots are gone."""

    is_gone = False

    def check(self, id):
        if self.is_gone:
            raise KeyError("it is gone")


def wrapped(repo, desk, session="s", **more):
    more.setdefault("workspace", desk.root)
    return repo.wrap(desk.graph(), session, effects=desk.world.effects(), check_effects=False, **more)


@pytest.fixture
def agent(repo, desk):
    """Create an agent that has changed files and the world before and after its checkpoint `before`."""
    agent = wrapped(repo, desk)
    agent.run("write a.txt one; add chair")
    agent.checkpoint("before")
    agent.run("write a.txt two; write new/b.txt made; add table")
    return agent


NOW = {"a.txt": "two", "new/b.txt": "made"}


def test_one_rollback_restores_conversation_effects_and_files(agent, desk):
    changes = ["delete new/b.txt", "write a.txt"]
    assert sorted(map(str, agent.plan_rollback("before").files.changes)) == changes
    retry = agent.rollback("before")
    assert desk.files == {"a.txt": "one"}
    assert not (desk.root / "new").exists()
    assert desk.world.items == ["chair"]
    assert (len(retry.history()), len(agent.history())) == (5, 11)
    assert sorted(map(str, retry.report.files.changes)) == changes
    assert retry.report.files.safety
    assert "new/b.txt" in str(retry.report)
    retry.redo()
    assert desk.files == NOW
    assert sorted(desk.world.items) == ["chair", "table"]


@pytest.mark.parametrize("conversation", [True, False], ids=["conversation", "same branch"])
@pytest.mark.parametrize("tools", ["reverse", "keep"])
@pytest.mark.parametrize("files", [True, False], ids=["files", "no files"])
def test_tools_files_and_conversation_roll_back_in_any_mix(agent, desk, conversation, tools, files):
    how = {"conversation": conversation, "tools": tools, "files": files}
    if how == {"conversation": False, "tools": "keep", "files": False}:
        with pytest.raises(InvalidInput, match="Nothing would be rolled back"):
            agent.rollback("before", **how)
        return
    after = agent.rollback("before", **how)
    assert desk.files == ({"a.txt": "one"} if files else NOW)
    assert desk.world.items == (["chair"] if tools == "reverse" else ["chair", "table"])
    assert (after.branch_id != agent.branch_id) == conversation
    after.run("and now?")


def test_files_are_rewound_to_a_message_and_the_conversation_stays(agent, desk):
    said = agent.history()
    first, second = [message["id"] for message in said if message["role"] == "user"]
    changes = agent.rewind_files(second)
    assert desk.files == {"a.txt": "one"}
    assert sorted(map(str, changes.changes)) == ["delete new/b.txt", "write a.txt"]
    assert agent.history() == said
    assert desk.world.items == ["chair", "table"]
    agent.rewind_files(first)
    assert desk.files == {}
    agent.run("write c.txt on")
    assert desk.files == {"c.txt": "on"}


def test_each_user_message_is_a_restore_point_and_an_answer_is_not(repo, desk):
    """Its id is the one that the caller sets or that the stream shows."""
    agent = wrapped(repo, desk)
    agent.invoke({"messages": [HumanMessage("write a.txt one", id="mine")]})
    states = list(agent.stream({"messages": [("user", "write a.txt two")]}, stream_mode="values"))
    shown = [message.id for message in states[0]["messages"] if message.type == "human"][-1]
    agent.invoke({"messages": [HumanMessage("please", id="first"), HumanMessage("write a.txt three", id="second")]})
    agent.run("write a.txt four")
    for point, text in (("second", "two"), ("first", "two"), (shown, "one")):
        agent.rewind_files(point)
        assert desk.files == {"a.txt": text}
    agent.rewind_files("mine")
    assert desk.files == {}
    answer = next(message["id"] for message in agent.history() if message["role"] == "assistant")
    with pytest.raises(NotFound, match="restore point"):
        agent.rewind_files(answer)


def test_an_impossible_rewind_explains_why(repo, desk, agent):
    with pytest.raises(NotFound, match="restore point"):
        agent.rewind_files("nobody said that")
    plain = repo.wrap(desk.graph(), "t", check_effects=False)
    plain.invoke({"messages": [HumanMessage("hello", id="there")]})
    with pytest.raises(NotFound, match="workspace="):
        plain.rewind_files("there")


def test_changes_by_shell_commands_are_rewound(repo, desk):
    agent = wrapped(repo, desk)
    agent.run("""write n.ipynb {"cells": []}; write keep/me.txt here; shell mkdir empty""")
    before = desk.files
    agent.checkpoint("before")
    agent.run("shell mv keep kept; shell rmdir empty; shell mkdir -p x/y; shell sh -c 'echo changed > n.ipynb'")
    agent.rewind_files("before")
    assert desk.files == before
    assert (desk.root / "empty").is_dir()
    assert not (desk.root / "x").exists()


def test_a_checkpoint_of_one_session_is_restored_in_another(repo, desk, tmp_path):
    first = wrapped(repo, desk)
    first.run("write a.txt one; shell mkdir empty")
    point = first.checkpoint("start")
    other = Desk(tmp_path / "elsewhere")
    second = repo.wrap(other.graph(), "t", workspace=other.root, check_effects=False)
    second.run("write b.txt mine")
    said = second.history()
    second.rewind_files(point)
    assert other.files == {"a.txt": "one"}
    assert (other.root / "empty").is_dir()
    assert second.history() == said
    second.rewind_files("HEAD")
    assert other.files == {"b.txt": "mine"}
    assert desk.files == {"a.txt": "one"}


def test_a_custom_environment_rolls_back_with_the_conversation(repo, desk):
    """`checkpoint` and `restore` are enough; what another branch changed cannot be compared, and so diverges."""
    counter = Counter()
    agent = wrapped(repo, desk, workspace=Workspace(desk.root, environment=counter))
    agent.run("hello")
    agent.checkpoint("before")
    other = agent.fork()
    counter.value = 7
    other.run("hello")
    with pytest.raises(
        WorldDiverged, match=rf"nothing was run: perhaps files in {re.escape(str(desk.root))}\. agent\."
    ):
        agent.run("hello again")
    agent = agent.switch("main", sync="world")
    assert counter.value == 0
    counter.value = 8
    agent.run("hello again")
    agent.rollback("before")
    assert counter.value == 0


def test_a_plan_is_blocked_by_an_environment_that_no_longer_has_the_snapshot(repo, desk):
    counter = Checked()
    agent = wrapped(repo, desk, workspace=Workspace(desk.root, environment=counter))
    agent.run("add chair")
    before = agent.checkpoint("before")
    counter.value = 7
    agent.run("add table")
    counter.is_gone = True
    plan = agent.plan_rollback(before)
    assert (plan.is_admissible, plan.files.problem) == (False, "Checked.check failed: KeyError: 'it is gone'")
    with pytest.raises(Unavailable, match=r"Nothing was done\. The files cannot be restored: Checked.check failed"):
        agent.rollback(before)
    assert desk.world.items == ["chair", "table"]
    agent.rollback(before, files=False)
    assert (desk.world.items, counter.value) == (["chair"], 7)


def test_a_branch_reports_changed_files_and_switch_restores_them(agent, desk):
    retry = agent.rollback("before")
    retry.run("write c.txt other")
    with pytest.raises(WorldDiverged, match=r"a\.txt"):
        agent.run("and now?")
    agent = agent.switch("main", sync="world")
    assert desk.files == NOW
    assert sorted(desk.world.items) == ["chair", "table"]
    agent.run("write d.txt on")
    with pytest.raises(WorldDiverged):
        retry.run("and here?")
    retry = retry.switch(retry.branch.name, sync="ignore")
    retry.run("and here?")
    assert desk.files == NOW | {"d.txt": "on"}
    fork = agent.fork("before")
    assert desk.files == NOW | {"d.txt": "on"}
    fork.run("write e.txt forked")
    assert desk.files == NOW | {"d.txt": "on", "e.txt": "forked"}


def test_undo_counts_a_checkpoint_that_changed_only_files(repo, desk):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    agent.rewind_files("HEAD~1")
    assert desk.files == {}
    agent.checkpoint("empty")
    agent.undo()
    assert desk.files == {"a.txt": "one"}


def test_a_tools_file_change_can_be_undone_separately(repo, desk):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    agent.run("write a.txt two")
    stack = Workspace(desk.root).undo_stack
    assert stack.depth == 2
    stack.undo()
    assert desk.files == {"a.txt": "one"}
    stack.undo()
    assert desk.files == {}


def test_a_session_has_its_workspace_in_a_process_that_wraps_no_graph(tmp_path, desk):
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        agent = wrapped(repo, desk)
        agent.run("write a.txt one")
        assert agent.session.workspace().list(1)[0].files_changed == ("a.txt",)
        agent.run("write a.txt two")
        point = [message["id"] for message in agent.history() if message["role"] == "user"][1]
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        session = repo.session("s")
        assert [entry.message for entry in session.workspace().undo_stack.history] == ["write_file: a.txt"] * 2
        session.rewind_files(point)
        assert desk.files == {"a.txt": "one"}
        with pytest.raises(NotFound, match="has no workspace"):
            repo.session("other", create=True).workspace()


def test_a_rewind_names_the_touched_files_outside_of_the_workspace(agent, desk, tmp_path):
    outside = str(tmp_path / "elsewhere.txt")
    agent.run(f"write {outside} far; write ../beside.txt near; write c.txt three")
    plan = agent.session.plan_rewind("before")
    changes = agent.rewind_files("before")
    wanted = ["outside ../beside.txt: write_file named it", f"outside {outside}: write_file named it"]
    for found in (plan.files, changes):
        assert sorted(str(change) for change in found.changes if change.action == "outside") == sorted(wanted)
        assert "2 files outside the workspace, left unchanged" in found.summary
    assert Path(outside).read_text() == "far"
    assert desk.files == {"a.txt": "one"}
    agent.redo()
    report = agent.rollback("before").report
    assert [change.path for change in report.files.changes if change.action == "outside"] == ["../beside.txt", outside]
    assert "outside" in str(report)


def test_a_tool_does_not_run_if_its_files_cannot_be_saved(repo, desk):
    agent = wrapped(repo, desk)
    with faults.fails(points.KEEP_FILES, Unavailable("no space")), pytest.raises(Unavailable, match="no space"):
        agent.run("write a.txt one")
    assert desk.files == {}
    assert [(call.status, call.error_message) for call in agent.tool_track()] == [
        ("failed", "its tool was not run: no space")
    ]


def test_a_rollback_whose_files_cannot_be_restored_is_finished_by_resume(agent, desk, repo):
    full = OSError(errno.ENOSPC, "No space left on device")
    with faults.fails(points.BRING_FILES, full), pytest.raises(RollbackIncomplete, match="No space left") as caught:
        agent.rollback("before")
    assert desk.world.items == ["chair"]
    shutil.rmtree(desk.root)
    with pytest.raises(RollbackIncomplete, match="No such file"):
        repo.resume(caught.value.operation)
    desk.root.mkdir()
    repo.resume(caught.value.operation)
    assert desk.files == {"a.txt": "one"}
    assert repo.session("s").branch().name == "main-2"


def test_a_resumed_rollback_does_not_overwrite_what_a_turn_wrote_since(agent, desk, repo):
    desk.world.broken.add("table")
    with pytest.raises(RollbackIncomplete) as caught:
        agent.rollback("before")
    desk.world.broken.clear()
    plan, operation = None, caught.value.operation
    (desk.root / "mine.txt").write_text("mine")
    for text in ("later", "still later"):
        wrapped(repo, desk).run(f"write a.txt {text}")
        with pytest.raises(PlanChanged) as changed:
            repo.resume(operation, plan=plan)
        plan = changed.value.plan
        assert {one.path: one.action for one in plan.files.changes}.items() >= {
            ("a.txt", "write"),
            ("mine.txt", "left"),
        }
        assert desk.files == {"a.txt": text, "mine.txt": "mine", "new/b.txt": "made"}
    with faults.fails(points.BRING_FILES, OSError("full")), pytest.raises(RollbackIncomplete):
        repo.resume(operation, plan=plan)
    assert repo.resume(operation).status == "done"
    assert desk.files == {"a.txt": "one", "mine.txt": "mine"}


def test_exploration_separates_the_files_of_its_branches(repo, desk):
    agent = wrapped(repo, desk)
    agent.run("write a.txt base")
    found = agent.explore(1, ["write a.txt left", "write b.txt right"])
    assert len(found.leaves) == 2
    assert desk.files == {"a.txt": "base"}
    agent = agent.promote(found.leaves[1].name)
    assert desk.files == {"a.txt": "base", "b.txt": "right"}


def test_redo_after_an_exploration_or_a_switch_brings_no_files_of_the_branch_that_was_left(repo, desk):
    agent = wrapped(repo, desk)
    agent.run("write a.txt base")
    (desk.root / "mine.txt").write_text("mine")
    agent.explore(1, ["write a.txt left", "write mine.txt theirs"])
    side = agent.fork(name="side")
    side.run("write a.txt side")
    agent = side.switch("main", sync="world")
    for redo in (agent.redo, agent.plan_redo, agent.session.redo):
        with pytest.raises(NotFound, match="nothing to redo"):
            redo()
    assert desk.files == {"a.txt": "base", "mine.txt": "mine"}


async def test_async_rollbacks_and_rewinds_restore_the_files(agent, desk):
    retry = await agent.arollback("before")
    assert desk.files == {"a.txt": "one"}
    await retry.arun("write a.txt three")
    await retry.arewind_files("HEAD~1")
    assert desk.files == {"a.txt": "one"}


GIT = "git -c user.name=me -c user.email=me@example.org"

NOT_LOOKED_INTO = "1 excluded directory not looked into"

IN_GIT = {
    "a new branch": ("git checkout -q -b topic", r"\.git: HEAD moved from main to topic, topic created"),
    "a commit": (f"{GIT} commit -q --allow-empty -m more", r"\.git: main moved from [0-9a-f]{7} to [0-9a-f]{7}"),
    "a tag": ("git tag v1", r"\.git: tag v1 created"),
    "a stash": (f"echo more >> kept.txt && {GIT} stash -q", r"\.git: stash created"),
    "an older stash": (f"{GIT} stash drop -q stash@{{1}}", r"\.git: logs/refs/stash changed"),
    "a remote branch": ("git update-ref refs/remotes/origin/main HEAD", r"\.git: refs/remotes changed"),
    "a planted hook": ("touch .git/hooks/pre-commit", r"\.git: hooks changed"),
    "nothing": ("true", NOT_LOOKED_INTO),
}
"""What happens in the repository of a workspace, and what plan and report say of it."""


@pytest.mark.parametrize("what", IN_GIT)
def test_plan_and_report_say_what_moved_in_git_and_leave_it(repo, desk, what):
    command, told = IN_GIT[what]
    desk.shell(f"git init -q -b main && echo one > kept.txt && git add -A && {GIT} commit -q -m first")
    if what == "an older stash":
        desk.shell(f"for n in 1 2; do echo $n > kept.txt && {GIT} stash -q; done")
    agent = wrapped(repo, desk)
    agent.checkpoint("before")
    agent.run(f"shell sh -c '{command}'")
    at = desk.shell("git for-each-ref && cat .git/HEAD")
    plan = agent.plan_rollback("before")
    report = agent.rollback("before").report
    for files in (plan.files, report.files):
        assert re.match(f"Files: nothing to change; {told}", files.summary), files.summary
        assert files.summary.endswith(f"{NOT_LOOKED_INTO}."), files.summary
    assert plan.files.summary in str(plan)
    assert desk.shell("git for-each-ref && cat .git/HEAD") == at


def summary_around(repo, desk, place, command):
    """Run a command between a checkpoint and a turn that writes, and return what a rollback says of the files."""
    agent = wrapped(repo, desk)
    agent.checkpoint("before")
    place.shell(command)
    agent.run("write a.txt one")
    return agent.rollback("before").report.files.summary


def test_commits_in_a_linked_worktree_are_seen_too(repo, desk, tmp_path):
    source = Desk(tmp_path / "source")
    source.shell(f"git init -q -b main && {GIT} commit -q --allow-empty -m first")
    desk.root.rmdir()
    source.shell(f"git worktree add -q -b topic {desk.root}")
    summary = summary_around(repo, desk, desk, f"{GIT} commit -q --allow-empty -m more")
    told = rf"Files: 1 file deleted; \.git: topic moved from \w{{7}} to \w{{7}} \(left as it is\); {NOT_LOOKED_INTO}\."
    assert re.fullmatch(told, summary), summary


def test_the_repository_around_a_workspace_is_looked_at_too(repo, desk):
    around = Desk(desk.root.parent)
    around.shell(f"git init -q -b main && {GIT} commit -q --allow-empty -m first")
    summary = summary_around(repo, desk, around, f"git checkout -q -b topic && {GIT} commit -q --allow-empty -m more")
    told = r"Files: 1 file deleted; \.\./\.git: HEAD moved from main to topic, topic created \(left as it is\)\."
    assert re.fullmatch(told, summary), summary


def test_a_changed_excluded_directory_is_named_or_counted(repo, desk):
    (desk.root / ".gitignore").write_text("node_modules/\n.venv/\n")
    for name in ("node_modules/lib", ".venv/lib"):
        (desk.root / name).mkdir(parents=True)
    agent = wrapped(repo, desk)
    agent.checkpoint("before")
    agent.run("write node_modules/lib/index.js changed")
    told = "2 excluded directories not looked into"
    assert agent.plan_rollback("before").files.summary == f"Files: nothing to change; {told}."
    agent.run("shell mkdir node_modules/other; write a.txt one")
    changed = f"node_modules: changed (left as it is); {told}"
    assert agent.rewind_files("before").summary == f"Files: 1 file deleted; {changed}."
    assert (desk.root / "node_modules" / "other").is_dir()


def test_a_session_without_a_workspace_leaves_files_unchanged(repo, desk):
    agent = repo.wrap(desk.graph(), "s", effects=desk.world.effects(), check_effects=False)
    agent.run("write a.txt one")
    agent.run("write a.txt two")
    retry = agent.undo()
    assert desk.files == {"a.txt": "two"}
    assert retry.report.files is None


def test_a_checkpoint_diff_lists_the_file_changes(agent, repo):
    found = repo.session("s").diff("before", "HEAD")
    assert (found.added_files, found.modified_files, found.deleted_files) == (["new/b.txt"], ["a.txt"], [])
    assert "-one" in found.diff_content
    assert "+two" in found.diff_content
    assert "new/b.txt" in str(found)


def test_snapshots_without_a_checkpoint_are_unpinned_and_deleted_in_time(agent, repo, desk):
    workspace = Workspace(desk.root)
    assert all(one.pinned for one in workspace.list())
    agent.run("write a.txt three")
    agent.run("write a.txt four")
    repo.session("s").cleanup_auto_checkpoints(keep=0)
    kept = repo.session("s").get_checkpoint("before")
    pinned = {one.id for one in workspace.list() if one.pinned}
    assert 0 < len(pinned) < len(workspace.list())
    (desk.root / "a.txt").write_text("new")
    newest = Workspace(desk.root, max_checkpoints=1).save("new")
    assert {one.id for one in workspace.list()} == pinned | {newest.id}
    agent.rewind_files(kept, files="overwrite")
    assert desk.files == {"a.txt": "one"}


@pytest.mark.long
def test_files_are_rewound_from_the_command_line(tmp_path, desk, monkeypatch):
    """The command shows the plan, asks, and refuses to overwrite foreign changes without --force."""
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        agent = wrapped(repo, desk)
        agent.run("write a.txt one")
        agent.invoke({"messages": [HumanMessage("write a.txt two; write b.txt made", id="second")]})
    monkeypatch.chdir(tmp_path)
    run = command_line.run
    planned = [json.loads(run("plan", "s", "main#1", "--json", *words).out) for words in ((), ("--no-files",))]
    assert [plan["files"] is None for plan in planned] == [False, True]
    done = run("rewind-files", "s", "second")
    assert (done.code, desk.files) == (1, {"a.txt": "two", "b.txt": "made"})
    assert re.search(r"write +a\.txt\n +delete +b\.txt", done.out)
    (desk.root / "a.txt").write_text("by hand")
    assert run("rewind-files", "s", "second", "--yes").code == 10
    assert run("rewind-files", "s", "nothing", "--yes").code == 3
    assert run("rewind-files", "s", "second", "--yes", "--force").code == 0
    assert desk.files == {"a.txt": "by hand"}
    (desk.root / "b.txt").write_text("made")
    done = run("rewind-files", "s", "second", "--yes", "--overwrite-files", "--json")
    assert (done.code, desk.files) == (0, {"a.txt": "one"})
    assert json.loads(done.out)["safety"]


def test_a_mid_turn_checkpoint_has_the_files_of_its_batch(repo, desk):
    story = scripted(
        calls(call("write_file", path="a.txt", text="one"), call("write_file", path="b.txt", text="one")),
        calls(call("create_checkpoint", name="here")),
        calls(call("write_file", path="a.txt", text="two")),
        calls(call("shell", command="rm b.txt")),
        "done",
    )
    own = repo.wrap(desk.graph(), "s", check_effects=False).checkpoint_tools()
    graph = tool_node_graph(story, [*desk.tools(), *own])
    agent = repo.wrap(graph, "s", workspace=desk.root, check_effects=False, auto_checkpoint="tool")
    agent.run("go")
    batches = [point for point in agent.checkpoints() if point.metadata["kind"] == "tools"]
    found = [agent.rollback(point.id, tools="keep") and desk.files for point in batches]
    both = {"a.txt": "one", "b.txt": "one"}
    assert found == [both, {"a.txt": "two", "b.txt": "one"}, {"a.txt": "two"}]
    agent.rollback("here", tools="keep")
    assert desk.files == both


@pytest.mark.parametrize("is_known", [False, True], ids=["fresh", "captured before"])
def test_the_session_database_is_not_part_of_the_workspace(tmp_path, monkeypatch, is_known):
    """A database in the workspace is never captured, restored or deleted, also if a snapshot held it before."""
    desk = Desk(tmp_path / "work")
    monkeypatch.chdir(desk.root)
    with agentgit.open("agentgit.db") as repo:
        if is_known:
            repo.wrap(desk.graph(), "earlier", check_effects=False).run("hello")
            early = Workspace(".").save()
        agent = repo.wrap(desk.graph(), "s", workspace=".", check_effects=False)
        agent.run("write a.txt one")
        agent.checkpoint("before")
        agent.run("write a.txt two; shell touch b.txt")
        retry = agent.rollback("before")
        assert [change.path for change in retry.report.files.changes if change.action != "left"] == ["a.txt", "b.txt"]
        if is_known:
            Workspace(".").restore(early.id)
        retry.run("write c.txt on")
        assert len(retry.history()) == 8
        assert len(agent.history()) == 9


def _by_hand(repo, desk, tmp_path):
    (desk.root / "a.txt").write_text("theirs")


def _by_another_session(repo, desk, tmp_path):
    wrapped(repo, desk, session="t").run("write a.txt theirs")


def _by_another_database(repo, desk, tmp_path):
    with agentgit.open(tmp_path / "other.db") as other:
        wrapped(other, desk).run("write a.txt theirs")


def _by_hand_and_saved(repo, desk, tmp_path):
    _by_hand(repo, desk, tmp_path)
    Workspace(desk.root).save("mine")


@pytest.mark.parametrize("change", [_by_hand, _by_another_session, _by_another_database, _by_hand_and_saved])
def test_a_change_by_somebody_else_is_a_conflict(agent, repo, desk, tmp_path, change):
    """It stops everything before anything is touched; force leaves it, and `overwrite` keeps it in a snapshot."""
    change(repo, desk, tmp_path)
    assert agent.plan_rollback("before").files.conflicts == ["a.txt"]
    for going_back in (agent.rollback, agent.rewind_files):
        with pytest.raises(WorkspaceChanged, match=r"a\.txt"):
            going_back("before")
    assert desk.files == NOW | {"a.txt": "theirs"}
    assert desk.world.items == ["chair", "table"]
    assert [branch.name for branch in agent.session.branches()] == ["main"]
    changes = agent.rewind_files("before", force=True)
    assert desk.files == {"a.txt": "theirs"}
    Workspace(desk.root).restore(changes.safety)
    changes = agent.rollback("before", files="overwrite").report.files
    assert desk.files == {"a.txt": "one"}
    overwritten = {"a.txt", "new/b.txt"}  # the second one came back by hand, when its session had taken it away
    assert {one.path for one in changes.changes if one.action == "overwritten"} == overwritten
    Workspace(desk.root).restore(changes.safety)
    assert desk.files == NOW | {"a.txt": "theirs"}


def _lose_the_folder(desk):
    shutil.rmtree(desk.root)


def _lose_the_snapshots(desk):
    with Workspace(desk.root) as workspace:
        for one in workspace.list()[1:]:
            workspace.delete(one.id)


def _damage_what_is_stored(desk):
    for pack in Path(Workspace(desk.root).storage_dir).rglob("*.pack"):
        data = pack.read_bytes()
        if (at := data.find(zlib.compress(b"one", 1))) >= 0:
            pack.write_bytes(data[: at + 3] + bytes([data[at + 3] ^ 1]) + data[at + 4 :])


def _lose_what_is_stored(desk):
    for pack in Path(Workspace(desk.root).storage_dir).rglob("*.idx"):
        pack.unlink()


@pytest.mark.parametrize("lose", [_lose_the_folder, _lose_the_snapshots, _lose_what_is_stored, _damage_what_is_stored])
def test_unrestorable_files_stop_a_rollback_before_it_begins(agent, repo, desk, lose):
    lose(desk)
    with pytest.raises(Unavailable, match="files=False"):
        agent.rollback("before")
    assert desk.world.items == ["chair", "table"]
    assert not repo.session("s").operations()
    agent.rollback("before", files=False)
    assert desk.world.items == ["chair"]
    assert repo.session("s").branch().name == "main-2"


@pytest.mark.parametrize("lose", [_lose_the_folder, _lose_the_snapshots, _lose_what_is_stored])
def test_force_goes_on_without_files_that_cannot_be_restored(agent, desk, lose):
    """The plan says so, and nothing stops half way."""
    lose(desk)
    files = desk.files
    plan = agent.plan_rollback("before")
    assert not plan.is_admissible
    assert "not restored" in plan.forced().files.summary
    retry = agent.rollback("before", force=True, plan=plan)
    assert (desk.world.items, retry.report.status) == (["chair"], "done")
    assert retry.report.files.problem
    assert desk.files == files


def test_what_a_forced_rollback_restored_is_its_own(agent, desk):
    """It leaves the file whose contents are damaged, and a redo brings the others back."""
    _damage_what_is_stored(desk)
    retry = agent.rollback("before", force=True)
    assert desk.files == {"a.txt": "two"}
    retry.redo()
    assert desk.files == NOW


def test_a_project_that_is_moved_with_its_snapshots_keeps_them(repo, desk, tmp_path):
    project = tmp_path / "project"
    desk.root.rename(project)
    (project / "work").mkdir()
    desk.root.symlink_to(project / "work")
    wrapped(repo, desk, workspace=Workspace(project / "work", project / "snapshots")).run("write a.txt one")
    wrapped(repo, desk, workspace=Workspace(project / "work", project / "snapshots")).run("write a.txt two")
    moved = project.rename(tmp_path / "moved")
    desk.root.unlink()
    desk.root.symlink_to(moved / "work")
    agent = wrapped(repo, desk, workspace=Workspace(moved / "work", moved / "snapshots"))
    agent.rollback("main#2")
    assert desk.files == {"a.txt": "one"}


@pytest.mark.parametrize("lose", [_lose_the_folder, _lose_what_is_stored])
def test_a_redo_goes_on_without_files_that_were_lost_meanwhile(agent, desk, lose):
    retry = agent.rollback("before")
    lose(desk)
    with pytest.raises(Unavailable, match="force=True"):
        retry.redo()
    assert desk.world.items == ["chair"]
    back = retry.redo(force=True, plan=retry.plan_redo())
    assert (desk.world.items, back.branch.name) == (["chair", "table"], "main")


def test_a_rewind_of_files_decides_nothing_about_effects(agent, desk):
    agent.rewind_files("before")
    agent.redo()
    assert [one.invocation.args for one in agent.plan_rollback("before").reversals] == [{"item": "table"}]
    agent.rollback("before")
    assert (desk.world.items, desk.files) == (["chair"], {"a.txt": "one"})


def test_a_rewind_that_leads_back_to_the_files_before_another_is_no_redo_of_it(agent, desk):
    """Nor is one that changes nothing a rewind: a redo never goes on to the rollback that made the branch."""
    retry = agent.rollback("before")
    retry.run("write a.txt three")
    for ref in ("before", "before"):
        retry.rewind_files(ref)
    retry.redo()
    assert (desk.files["a.txt"], desk.world.items) == ("three", ["chair"])
    retry.rewind_files("before")
    retry.rewind_files("HEAD")
    assert desk.files["a.txt"] == "three"
    retry.redo()
    assert (desk.files["a.txt"], desk.world.items) == ("one", ["chair"])


def test_each_rewind_is_redone_once_and_the_last_one_first(agent, desk):
    agent.run("write a.txt three")
    agent.rewind_files("main~2")
    second = desk.files
    agent.rewind_files("before")
    agent.redo()
    assert desk.files == second
    agent.redo()
    assert desk.files == NOW | {"a.txt": "three"}
    with pytest.raises(NotFound, match="nothing to redo"):
        agent.redo()


def test_a_redo_takes_back_each_rewind_after_it_has_taken_back_a_rollback(repo, desk):
    agent = wrapped(repo, desk)
    for text in ("one", "two", "three"):
        agent.run(f"write a.txt {text}")
    for ref, text in (("main~1", "two"), ("main#2", "one")):
        agent.rewind_files(ref)
        assert desk.files == {"a.txt": text}
    agent = agent.rollback("main#1")
    assert desk.files == {}
    for text in ("one", "two", "three"):
        agent = agent.redo()
        assert (agent.branch.name, desk.files) == ("main", {"a.txt": text})
    with pytest.raises(NotFound, match="nothing to redo"):
        agent.redo()


@pytest.mark.parametrize("force", [False, True])
def test_a_rollback_whose_files_are_lost_meanwhile_offers_no_other_snapshot(repo, desk, force):
    """It offers what leads on there; a restore of the workspace offers another snapshot."""
    lose = reversible(lambda args, result: _damage_what_is_stored(desk))
    agent = repo.wrap(desk.graph(), "s", effects=desk.world.effects(add=lose), check_effects=False, workspace=desk.root)
    start = agent.run("write a.txt one") and agent.head
    agent.run("write a.txt two; add chair")
    if force:
        _damage_what_is_stored(desk)
        told = str(agent.rollback(start, force=True).report)
    else:
        with pytest.raises(RollbackIncomplete) as stopped:
            agent.rollback(start)
        told = str(stopped.value)
        assert re.search(r"\. repo\.resume\(\d+, force=True\) skips what still cannot be done\.", told)
    assert "are lost" in told
    assert "another snapshot" not in told
    with pytest.raises(Corrupt, match="restores another snapshot"):
        Workspace(desk.root).restore(_first_snapshot(desk))


def _first_snapshot(desk):
    """Return the oldest snapshot with the file `a.txt`."""
    return next(one.id for one in reversed(Workspace(desk.root).list()) if "a.txt" in one.files_changed)


def test_a_request_that_died_is_resumed_by_the_same_request(agent, desk, repo):
    """It says where it stands, and not that nothing was done."""
    plan, item = agent.plan_rollback("before"), {"item": "table"}
    with faults.fails(points.UNDO_CALL, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        agent.rollback("before", request_id="r", plan=plan)
    with pytest.raises(RollbackIncomplete, match="unknown whether it was reversed") as stopped:
        agent.rollback("before", request_id="r", plan=plan)
    assert (desk.world.items, stopped.value.operation) == (["chair", "table"], repo.session("s").operations()[0].id)
    (call,) = [one for one in agent.tool_track() if one.args == item]
    repo.resolve(call, "did_not_happen")
    assert agent.rollback("before", request_id="r", plan=plan).report.status == "done"
    assert (desk.world.items, desk.files) == (["chair"], {"a.txt": "one"})


def test_a_branch_with_lost_files_can_be_continued(repo, desk):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    agent.fork().run("write a.txt two")
    _lose_the_snapshots(desk)
    with pytest.raises(WorldDiverged, match="There is no snapshot"):
        agent.run("and now?")
    with pytest.raises(Unavailable, match="ignore"):
        agent = agent.switch("main", sync="world")
    agent.switch("main", sync="ignore").run("write b.txt on")
    assert desk.files == {"a.txt": "two", "b.txt": "on"}


def asking_once(agent_tool, **args):
    """Build a graph whose model calls a tool once in each turn."""

    def rule(messages):
        return calls(call(agent_tool.name, **args)) if messages[-1].type == "human" else AIMessage("done")

    return tool_node_graph(ScriptedModel(rule=rule), [agent_tool])


@pytest.mark.parametrize("path", [".", "", "dir", "dir/", "a\0b", "x" * 300, "a.txt/b", "../out", "/etc/passwd"])
def test_a_tool_runs_and_answers_whatever_path_a_model_names(repo, desk, path):
    (desk.root / "dir").mkdir()
    (desk.root / "a.txt").write_text("one")

    @tool
    def edit_file(path: str) -> str:
        """Edit a file."""
        return "there is no such file"

    agent = repo.wrap(asking_once(edit_file, path=path), "s", workspace=desk.root, check_effects=False)
    agent.run("go")
    assert [one.result for one in agent.tool_track()] == ["there is no such file"]


def test_a_directory_moved_by_a_tool_can_be_moved_back(repo, desk):
    desk_file = desk.root / "dir" / "f.txt"
    desk_file.parent.mkdir()
    desk_file.write_text("one")

    @tool
    def move_file(source: str, destination: str) -> str:
        """Move a file."""
        return shutil.move(desk.root / source, desk.root / destination).name

    graph = asking_once(move_file, source="dir", destination="other")
    repo.wrap(graph, "s", workspace=desk.root, check_effects=False).run("go")
    assert desk.files == {"other/f.txt": "one"}
    Workspace(desk.root).undo_stack.undo()
    assert desk.files == {"dir/f.txt": "one"}


def test_a_workspace_tool_of_any_name_can_be_undone(repo, desk):
    @tool
    def publish(output_file: str) -> str:
        """Publish a report."""
        return f"published {(desk.root / output_file).write_text('two')}"

    (desk.root / "a.txt").write_text("one")
    graph = asking_once(publish, output_file="a.txt")
    repo.wrap(graph, "s", effects={"publish": "workspace"}, workspace=desk.root).run("go")
    assert desk.files == {"a.txt": "two"}
    assert Workspace(desk.root).undo_stack.undo()[0].message == "publish: a.txt"
    assert desk.files == {"a.txt": "one"}


def test_a_path_relative_to_the_process_is_saved_too(repo, desk, monkeypatch):
    monkeypatch.chdir(desk.root.parent)

    @tool
    def write_file(path: str) -> str:
        """Write a file."""
        return f"wrote {Path(path).write_text('two')}"

    (desk.root / "a.txt").write_text("one")
    graph = asking_once(write_file, path="work/a.txt")
    repo.wrap(graph, "s", workspace="work", check_effects=False).run("go")
    assert desk.files == {"a.txt": "two"}
    Workspace("work").undo_stack.undo()
    assert desk.files == {"a.txt": "one"}


def test_a_tool_declared_read_only_leaves_nothing_to_undo(repo, desk):
    """A tool's declared effect takes precedence over its name, also if only `wrap` declares it."""

    @tool
    def replace(path: str) -> str:
        """Show what replacing would do."""
        return "nothing"

    graph = asking_once(replace, path="a.txt")
    repo.wrap(graph, "s", effects={"replace": "read_only"}, workspace=desk.root).run("go")
    assert Workspace(desk.root).undo_stack.depth == 0


def test_a_failing_environment_is_reported_like_any_other(repo, desk, monkeypatch):
    """If the environment raises, the turn that ran is recorded, and a rollback can be resumed."""

    class Fragile(Counter):
        def checkpoint(self):
            if desk.world.items:
                raise ZeroDivisionError("no such machine")
            return super().checkpoint()

        def restore(self, id):
            raise ZeroDivisionError("no such machine")

    agent = wrapped(repo, desk, workspace=Workspace(desk.root, environment=Fragile()))
    agent.checkpoint("before")
    agent.run("add chair")
    assert [one.status for one in agent.tool_track()] == ["done"]
    with pytest.raises(Unavailable, match=r"Fragile\.checkpoint failed: ZeroDivisionError: no such machine"):
        agent.run("hello")
    with pytest.raises(RollbackIncomplete, match=r"Fragile\.restore failed") as stopped:
        agent.rollback("before")
    assert desk.world.items == []
    monkeypatch.setattr(Fragile, "restore", Counter.restore)
    assert repo.resume(stopped.value.operation).status == "done"


@pytest.mark.parametrize("goes_on", [False, True], ids=["at once", "after a turn"])
def test_a_session_rewinds_the_files_of_a_moved_workspace(repo, desk, agent, goes_on):
    moved = Desk(desk.root.rename(desk.root.with_name("moved")))
    agent = wrapped(repo, moved)
    if goes_on:
        agent.run("write c.txt on")
    (moved.root / "a.txt").write_text("by hand")
    with pytest.raises(WorkspaceChanged, match=r"a\.txt"):
        agent.rewind_files("before")
    (moved.root / "a.txt").write_text("two")
    agent.rewind_files("before")
    assert moved.files == {"a.txt": "one"}


def test_a_snapshot_stays_pinned_while_any_database_needs_it(agent, repo, desk, tmp_path):
    with agentgit.open(tmp_path / "other.db") as other:
        second = wrapped(other, desk)
        shared = second.checkpoint("theirs")
        second.run("write a.txt three")
        second.checkpoint("later")
        other.session("s").delete_checkpoint(shared)
        other.session("s").cleanup_auto_checkpoints(keep=0)
    snapshots = backend.table("workspace_snapshot").c
    with backend.reading(repo) as transaction:
        newest = transaction.execute(select(snapshots.snapshot).order_by(snapshots.id.desc())).scalars().first()
    assert Workspace(desk.root).get(newest).pinned


@pytest.mark.parametrize("auto", ["off", 2])
def test_a_message_without_a_restore_point_names_the_setting(repo, desk, auto):
    agent = wrapped(repo, desk, auto_checkpoint=auto)
    agent.checkpoint("before")
    agent.invoke({"messages": [HumanMessage("write a.txt one", id="mine")]})
    with pytest.raises(NotFound, match="auto_checkpoint is 'turn'"):
        agent.rewind_files("mine")
    agent.rewind_files("before")
    assert desk.files == {}


def _fail_on_the_way(desk):
    return faults.fails(points.BRING_FILES, OSError(errno.ENOSPC, "No space left on device"))


@pytest.mark.parametrize("lose", [_lose_the_snapshots, _lose_what_is_stored, _damage_what_is_stored, _fail_on_the_way])
@pytest.mark.parametrize("verb", ["rollback", "switch"])
def test_the_calls_whose_files_cannot_be_restored_are_listed_as_kept(repo, desk, lose, verb):
    effects = desk.world.effects(write_file="workspace")
    agent = repo.wrap(desk.graph(), "s", effects=effects, check_effects=False, workspace=desk.root)
    start = agent.run("write a.txt one") and agent.head
    if verb == "switch":
        agent.fork(name="left").run("write a.txt two; write b.txt two")
    else:
        agent.run("write a.txt two; write b.txt two")
    files = desk.files
    with lose(desk) or nullcontext():
        plan = agent.plan_rollback(start) if verb == "rollback" else agent.plan_switch("main")
        if lose is _fail_on_the_way:
            with pytest.raises(RollbackIncomplete, match=r"no file was restored: .*No space left") as stopped:
                agent.rollback(start) if verb == "rollback" else agent.switch("main", sync="world")
            report = repo.resume(stopped.value.operation, force=True)
        else:
            assert _paths(plan.kept) == _paths(plan.forced().kept) == ["a.txt", "b.txt"]
            done = (
                agent.rollback(start, force=True, plan=plan)
                if verb == "rollback"
                else agent.switch("main", sync="world", force=True)
            )
            report = done.report
    assert _paths(report.kept) == ["a.txt", "b.txt"]
    if lose is _damage_what_is_stored:
        assert {item.reason for item in report.kept} == {"not all files can be restored"}
    else:
        assert "no file was restored" in str(report)
        assert desk.files == files


def _paths(items):
    return sorted(item.invocation.args["path"] for item in items)


def test_a_rollback_that_died_in_an_undo_is_not_said_to_have_restored_files(agent, repo, desk):
    with faults.fails(points.UNDO_CALL, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        agent.rollback("before")
    (call,) = [one for one in agent.tool_track() if one.args == {"item": "table"}]
    repo.resolve(call, "did_not_happen")
    assert agent.plan_rollback("before").is_admissible
    agent.rollback("before")
    assert (desk.world.items, desk.files) == (["chair"], {"a.txt": "one"})


def test_a_turn_after_its_storage_was_lost_names_the_step_that_leads_on(repo, desk, agent):
    shutil.rmtree(Workspace(desk.root).storage_dir)
    with pytest.raises(Unavailable, match=r"open the workspace \(wrap the graph\) again"):
        agent.run("write a.txt on")
    wrapped(repo, desk).run("write a.txt on")
    assert desk.files["a.txt"] == "on"


def test_a_directory_in_the_place_of_stored_contents_is_named(agent, desk):
    packs = sorted(Path(Workspace(desk.root).storage_dir).rglob("*.pack"))
    for pack in packs:
        pack.unlink()
        pack.mkdir()
    with pytest.raises(Unavailable) as refused:
        agent.rollback("before")
    assert any(str(pack) in str(refused.value) for pack in packs)
