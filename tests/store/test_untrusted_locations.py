"""A storage or directory that only a row names is not opened, and git runs no hook of a storage."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

import agentgit
from agentgit.demo import build
from agentgit.errors import Unavailable

EFFECTS = {"create_order": "idempotent"}


class Place:
    """A session with files, and a foreign storage that its rows are made to name."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.work, self.victim = folder, folder / "work", folder / "victim"
        self.evil, self.ran = folder / "evil", folder / "ran"
        self._prepare(monkeypatch)
        monkeypatch.setenv("AGENTGIT_HOME", str(folder / "home"))
        with agentgit.open(folder / "a.db") as repo:
            agent = repo.wrap(build(str(folder / "shop.db")), session="s", effects=EFFECTS, workspace=self.work)
            for text in ("one", "two"):
                (self.work / "a.txt").write_text(text)
                agent.run("order two chairs")

    def _prepare(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Create a storage with another home, which claims to have the snapshots of the foreign directory."""
        monkeypatch.setenv("AGENTGIT_HOME", str(self.folder / "their-home"))
        theirs = self.folder / "theirs"
        for folder in (theirs, self.victim):
            folder.mkdir()
        (theirs / ".profile").write_text("evil")
        (self.victim / ".profile").write_text("good")
        with agentgit.Workspace(theirs, self.evil) as workspace:
            self.snapshot = workspace.save().id
        hook = self.evil / "git" / "hooks" / "reference-transaction"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {self.ran}\n")
        hook.chmod(0o755)
        place = [str(self.evil), "git", str(self.victim), self.victim.stat().st_ino]
        with sqlite3.connect(self.evil / "catalog.db") as catalog:
            catalog.execute("UPDATE state SET value = ? WHERE name = 'place'", (json.dumps(place),))

    def name(self, **settings: Any) -> None:
        """Make all snapshot rows name the foreign storage, with some settings changed."""
        said = {
            "workspace": str(self.victim), "storage": str(self.evil), "environment": "git", "max_checkpoints": 100,
            "exclude_patterns": [], "max_file_size": 10**8, "holder": "1", **settings,
        }  # fmt: skip
        with sqlite3.connect(self.folder / "a.db") as db:
            written = (self.snapshot, json.dumps(said).encode())
            assert db.execute("UPDATE workspace_snapshot SET snapshot = ?, settings = ?", written).rowcount == 2

    def expect_untouched(self) -> None:
        """Assert that no hook ran and that the foreign directory is unchanged."""
        assert not self.ran.exists()
        assert (self.victim / ".profile").read_text() == "good"
        assert sorted(os.listdir(self.victim)) == [".profile"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


@pytest.mark.parametrize("settings", [{}, {"surprise": 1}])
def test_a_storage_that_only_a_row_names_is_opened_by_no_verb(place: Place, settings: dict[str, Any]) -> None:
    place.name(**settings)
    with agentgit.open(place.folder / "a.db") as repo:
        session = repo.session("s")
        plan = session.plan_rollback("main#1")
        assert plan.files is not None
        assert "has no snapshots that this user took" in plan.files.problem
        with pytest.raises(Unavailable, match="has no snapshots that this user took"):
            session.rollback("main#1")
        forced = session.rollback("main#1", force=True).files
        assert forced is not None
        assert "has no snapshots that this user took" in forced.problem
        repo.maintenance.gc()
        session.export(place.folder / "s.jsonl", branch="main", files=True)
        assert "has no snapshots that this user took" in str(session.delete().left)
    exported = (place.folder / "s.jsonl").read_text()
    assert "evil" not in exported.replace(str(place.evil), "")
    assert "nobody there has opened its storage" in exported
    place.expect_untouched()


def test_a_known_storage_is_not_opened_for_another_directory(place: Place) -> None:
    with sqlite3.connect(place.folder / "a.db") as db:
        known = json.loads(db.execute("SELECT settings FROM workspace_snapshot LIMIT 1").fetchone()[0])
    place.name(storage=known["storage"])
    place.work.rename(place.folder / "elsewhere")
    with (
        agentgit.open(place.folder / "a.db") as repo,
        pytest.raises(Unavailable, match="has no snapshots that this user took"),
    ):
        repo.session("s").rewind_files("main#1")
    place.expect_untouched()


@pytest.mark.long
def test_a_wrapped_session_does_not_use_a_storage_that_a_row_names(place: Place) -> None:
    place.name(workspace=str(place.folder / "gone"))
    with agentgit.open(place.folder / "a.db") as repo:
        repo.wrap(build(str(place.folder / "shop.db")), session="s", effects=EFFECTS, workspace=place.work)
        with pytest.raises(Unavailable, match="has no snapshots that this user took"):
            repo.session("s").rewind_files("main#1")
    place.expect_untouched()
    assert (place.work / "a.txt").read_text() == "two"


def test_git_runs_no_hook_and_contacts_no_remote_of_the_storage(tmp_path: Path) -> None:
    work, ran = tmp_path / "work", tmp_path / "ran"
    work.mkdir()
    (work / "a.txt").write_text("one")
    workspace = agentgit.Workspace(work, tmp_path / "store")
    first = workspace.save()
    (work / "a.txt").write_text("two")
    second = workspace.save()
    git = tmp_path / "store" / "git"
    hook = git / "hooks" / "reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
    hook.chmod(0o755)
    for name, value in (
        ("core.repositoryformatversion", "1"), ("extensions.partialClone", "origin"), ("remote.origin.url", str(git)),
        ("remote.origin.promisor", "true"), ("remote.origin.uploadpack", f"touch {ran}; false"),
    ):  # fmt: skip
        subprocess.run(["git", "config", "--file", str(git / "config"), name, value], check=True)  # noqa: S603, S607  # ours
    workspace.restore(first.id)
    assert not ran.exists()
    for pack in (git / "objects" / "pack").iterdir():
        pack.unlink()
    with pytest.raises(agentgit.AgentGitError):
        agentgit.Workspace(work, tmp_path / "store").restore(second.id)
    assert not ran.exists()
