"""What a person changes while a restore of a session's files is killed half way stays the person's."""

from __future__ import annotations

import signal
import textwrap

import backend
import processes
import pytest
from file_tools import desk, home

import agentgit
from agentgit import Workspace, WorkspaceChanged

__all__ = ["desk", "home"]  # fixtures that the tests use

KINDS, ACTS = ("changed", "dropped", "made"), ("write", "delete", "directory", "nothing")
"""What a turn did to a file, and what a person does to it after the kill."""

BEFORE = {f"{kind}-{act}": "one" for kind in ("changed", "dropped") for act in ACTS} | {"aside.txt": "one"}
AFTER = {f"{kind}-{act}": "two" for kind in ("changed", "made") for act in ACTS} | {"aside.txt": "one"}

WRITTEN = {f"{kind}-write": "mine" for kind in KINDS} | {f"{kind}-directory/in": "mine" for kind in KINDS}
"""The files of a person at paths that a turn changed, too."""

ALONE = {"aside.txt": "mine", "new.txt": "mine"}

VERBS = {
    "rollback": lambda agent: agent.rollback("start", request_id="r"),
    "overwrite": lambda agent: agent.rollback("start", request_id="r", files="overwrite"),
    "rewind": lambda agent: agent.rewind_files("start"),
    "redo": lambda agent: agent.redo(),
    "switch": lambda agent: agent.switch("main", sync="world"),
}

POINTS = {
    "before the restore": ("BRING_FILES", 1),
    "at its first removal": ("REPLACE_FILE", 1),
    "at a removal": ("HIDE_FILE", 3),
    "at a file": ("CREATE_FILE", 4),
    "while a file has no name": ("NAME_FILE", 2),
    "near the end": ("REPLACE_FILE", 11),
    "before the publication": ("PUBLISH_OPERATION", 1),
}
"""The points at which the process is killed, each with the number of the visit."""

DYING = """
    import sys
    from pathlib import Path
    import agentgit, faults, points
    import test_restores_killed as story
    from file_tools import Desk
    url, root, verb, point, time = sys.argv[1:]
    agent = story.wrapped(agentgit.open(url), Desk(Path(root)))
    with faults.killed(getattr(points, point), time=int(time)):
        story.VERBS[verb](agent)
"""


def wrapped(repo, desk):
    return repo.wrap(desk.graph(), "s", effects=desk.world.effects(), check_effects=False, workspace=desk.root)


def live(repo, desk, verb):
    """Run the turns before a verb; return the files to which it goes back, and those that it leaves."""
    agent = wrapped(repo, desk)
    agent.run("; ".join(f"write {path} one" for path in BEFORE))
    agent.checkpoint("start")
    orders = [f"write {path} two" for path in AFTER if path != "aside.txt"]
    agent.run("; ".join([*orders, *(f"delete {path}" for path in BEFORE.keys() - AFTER.keys())]))
    if verb not in ("redo", "switch"):
        return BEFORE, AFTER
    agent.rollback("start")
    return AFTER, BEFORE


def interfere(desk, files):
    for path, text in files.items():
        file = desk.root / path
        if file.parent.is_file():
            file.parent.unlink()
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    for kind in KINDS:
        (desk.root / f"{kind}-delete").unlink(missing_ok=True)


def with_persons(files):
    return {path: text for path, text in files.items() if f"{path}/in" not in WRITTEN} | WRITTEN | ALONE


def conflicts_with(files):
    """Return the paths of a person's files that are in conflict if these files are restored."""
    directories = {f"{kind}-directory" for kind in KINDS} & files.keys()
    return sorted(directories | {f"{kind}-write" for kind in KINDS})


def of_action(changes, action):
    return {one.path for one in changes.changes if one.action == action}


def by_resume(repo, desk, verb):
    return repo.resume(repo.session("s").operations()[0]).files


def by_the_same_request(repo, desk, verb):
    if verb not in ("rollback", "overwrite"):
        return by_resume(repo, desk, verb)
    return VERBS[verb](
        repo.wrap(
            desk.graph(), "s", branch="main", effects=desk.world.effects(), check_effects=False, workspace=desk.root
        )
    ).report.files


def after_another_use(repo, desk, verb):
    """Recover the branch, and use the workspace, which finishes its own restore; then the person goes on."""
    repo.session("s").recover(branch="main")
    Workspace(desk.root).initialize()
    interfere(desk, dict.fromkeys(ALONE, "mine"))
    return by_resume(repo, desk, verb)


@pytest.mark.each_value_once
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("finish", [by_resume, by_the_same_request, after_another_use])
def test_what_a_person_changes_after_a_restore_was_killed_is_in_no_later_restore(repo, desk, point, verb, finish):
    """It is named when the restore is finished, it blocks the way back, and force leaves it where it is."""
    wanted, left = live(repo, desk, verb)
    died = processes.run(textwrap.dedent(DYING), backend.address(repo), desk.root, verb, *POINTS[point])
    assert died.returncode == -signal.SIGKILL, died.stderr
    interfere(desk, WRITTEN | ALONE)
    with agentgit.open(backend.url(repo)) as again:
        files = finish(again, desk, verb)
        assert sorted(of_action(files, "conflict")) == conflicts_with(wanted)
        assert of_action(files, "left") >= ALONE.keys()
        assert desk.files == with_persons(wanted)
        agent = wrapped(again, desk)
        branch = {"redo": "main-2", "switch": "main-2"}.get(verb, "main")
        is_rewind = verb == "rewind"
        plan = agent.plan_redo() if is_rewind else agent.plan_switch(branch)
        assert sorted(plan.files.conflicts) == conflicts_with(left)
        with pytest.raises(WorkspaceChanged):
            agent.redo() if is_rewind else agent.switch(branch, sync="world")
        assert desk.files == with_persons(wanted)
        agent.redo(force=True) if is_rewind else agent.switch(branch, sync="world", force=True)
        assert desk.files == with_persons(left)
