"""Random lives of a directory that two sessions share with a person, who edits between and during turns."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from file_tools import Desk

import agentgit
from agentgit import Conflict, NotFound, WorkspaceChanged, WorldDiverged

PERSON = "person"

SESSIONS = ("s", "t")

OWN_FILES = {"s": ["s1", "d/s2"], "t": ["t1", "d/t2"]}
"""Files that only the turns of one session write."""

SHARED_FILES = ["a", "b", "d/c", "e/f"]
"""Files that everybody writes."""


class Life:
    """One directory with its writers, and who wrote each file that is there last.

    Args:
        url: The database.
        root: The directory.
        seed: The seed of the random choices.
    """

    def __init__(self, url: str, root: Path, seed: int) -> None:
        self.url, self.desk, self.random, self.made = url, Desk(root), random.Random(seed), 0  # noqa: S311  # not a secret
        self.session_names = {name: f"{name} {seed}" for name in SESSIONS}
        self.writer: dict[str, str] = {}
        self.maker: dict[str, str] = {}
        """Who has made each text."""
        self.returners: dict[tuple[str, str | None], set[str]] = {}
        """Who has brought each text back to a path: a session may take away again what it brought back itself."""
        self.foreign: dict[str, set[str]] = {name: set() for name in SESSIONS}
        """The paths that somebody else than the session has ever changed."""
        self.points: dict[str, dict[int, dict[str, str]]] = {name: {} for name in SESSIONS}
        """The files at each checkpoint of each session."""
        self.edit_during_turn: Callable[[], None] | None = None
        self.open()

    def open(self) -> None:
        """Open the repository, as a new process does."""
        self.repo = agentgit.open(self.url)

    def agent(self, name: str) -> Any:
        desk = self.desk
        return self.repo.wrap(
            desk.graph(),
            self.session_names[name],
            effects=desk.world.effects(),
            check_effects=False,
            workspace=desk.root,
        )

    def step(self) -> None:
        """Make one random step, and check what became of the files of others."""
        self.random.choice([self.edit, self.edit, self.turn, self.turn, self.go_back, self.go_back, self.open_again])()

    # -- the person

    def edit(self, path: str | None = None) -> None:
        """Write a file, in place or by a rename, or delete one, as a person."""
        path = path or self.random.choice(SHARED_FILES)
        file = self.desk.root / path
        how = self.random.choice(["write", "rename", "delete"])
        if how == "delete":
            file.unlink(missing_ok=True)
            self.changed(path, PERSON)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        target = file if how == "write" else file.parent / ".saving"
        target.write_text(self.text(PERSON))
        target.rename(file)
        self.changed(path, PERSON)

    def text(self, writer: str, said: str | None = None) -> str:
        """Return a new text of a writer."""
        self.made += 1
        text = f"{said or writer}{self.made}"
        self.maker[text] = writer
        return text

    def changed(self, path: str, writer: str) -> None:
        """Note who has written or deleted a file."""
        self.writer[path] = writer
        for name in SESSIONS:
            if name != writer:
                self.foreign[name].add(path)

    # -- the sessions

    def turn(self) -> None:
        """Run a turn that writes files, during which a person may edit another one."""
        name = self.random.choice(SESSIONS)
        paths = self.random.sample([*OWN_FILES[name], *SHARED_FILES], 2)
        before = self.desk.files
        orders = [f"write {path} {self.text(name)}" for path in paths]
        if self.random.random() < 0.3:
            text, path = self.text(name, "during"), self.random.choice(["d/c", "a"])
            orders.append(f"shell mkdir -p d && echo -n {text} > {path}")
        agent = self.agent(name)
        try:
            agent.run("; ".join(orders))
        except (WorldDiverged, Conflict):
            assert self.desk.files == before, "a turn that did not run changed files"
            return
        for path in self.desk.files.keys() | before.keys():
            if self.desk.files.get(path) != before.get(path):
                self.changed(path, name)
        self.points[name][agent.head.id] = self.desk.files
        if self.random.random() < 0.3:
            self.edit(self.random.choice([path for path in paths if path in SHARED_FILES] or SHARED_FILES))

    def go_back(self) -> None:
        """Roll back, undo, redo, switch or rewind files, and check what that did to the files."""
        name = self.random.choice(SESSIONS)
        if not self.points[name]:
            return
        agent, before = self.agent(name), self.desk.files
        to = self.random.choice(list(self.points[name]))
        options: dict[str, Any] = self.random.choice([{}, {"force": True}, {"files": "overwrite"}])
        force = {"force": options.get("force", False)}
        branch = self.random.choice(self.repo.session(self.session_names[name]).branches()).name
        verb, go = self.random.choice(
            [
                ("rollback", lambda: agent.rollback(to, **options).report.files),
                ("rewind_files", lambda: agent.rewind_files(to, **options)),
                ("undo", lambda: agent.undo(**force).report.files),
                ("redo", lambda: agent.redo(**force).report.files),
                ("switch", lambda: agent.switch(branch, sync="world", **force).report.files),
            ]
        )
        try:
            changes = go()
        except (WorkspaceChanged, WorldDiverged, Conflict, NotFound):
            assert self.desk.files == before, "what was refused has changed files"
            return
        after = self.desk.files
        gone = {path: text for path, text in before.items() if after.get(path) != text}
        overwritten = {one.path for one in changes.changes if one.action == "overwritten"} if changes else set()
        for path, text in gone.items():  # a text that another session took away and brought back is still its writer's
            is_own = name in {self.writer[path], self.maker[text], *self.returners.get((path, text), ())}
            assert is_own or path in overwritten, f"{verb} took {path} of {self.writer[path]}"
        if gone:
            self.require_kept(changes.safety, gone)
        if verb in ("rollback", "rewind_files"):
            wanted = self.points[name][to]
            for path in (after.keys() | wanted.keys()) - self.foreign[name]:
                assert after.get(path) == wanted.get(path), f"{verb} did not restore {path}"
        for path in before.keys() | after.keys():
            if before.get(path) != after.get(path):
                self.writer[path] = name
                self.returners.setdefault((path, after.get(path)), set()).add(name)
                for other in set(SESSIONS) - {name}:
                    self.foreign[other].add(path)

    def require_kept(self, safety: str, gone: dict[str, str]) -> None:
        """Check that a snapshot has the files that are gone."""
        with agentgit.Workspace(self.desk.root) as workspace:
            content = workspace.diff("", safety, paths=list(gone)).diff_content
        for path, text in gone.items():
            assert f"+{text}\n" in content, f"no snapshot has {text} of {path}"

    def open_again(self) -> None:
        self.repo.close()
        self.open()


def live(url: str, root: Path, seed: int, steps: int) -> None:
    """Make random steps in one directory, and check the database at the end."""
    life = Life(url, root, seed)
    try:
        for _ in range(steps):
            life.step()
        assert life.repo.maintenance.fsck(3).findings == ()
    finally:
        life.repo.close()
