"""Large files are saved, compared and restored; those above the limit are left out."""

from __future__ import annotations

import os

import pytest
from workspace_fixtures import adopt, left_out, unsaved

from agentgit import Workspace
from agentgit.workspace.diff import MAX_SHOWN


@pytest.mark.parametrize("kind", ["git", "directory"])
def test_large_files_are_compared_and_restored(tmp_path, kind):
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "other").mkdir()
    workspace = Workspace(work, tmp_path / "store", environment=kind)
    other = Workspace(tmp_path / "other", tmp_path / "other-store", environment=kind)
    data = os.urandom(1 << 10) * (MAX_SHOWN // 1024) + b"x"
    (work / "a").write_bytes(data)
    (work / "b").write_bytes(data[::-1])
    first = workspace.save()
    for name in ("a", "b"):
        (work / name).write_bytes(b"")
    assert "Files a/a and b/a differ; too large to show\n" in workspace.diff(first.id).diff_content
    assert other.restore(adopt(other, workspace, first.id).id).restored == ("a", "b")
    workspace.restore(first.id)
    for folder in (work, tmp_path / "other"):
        assert (folder / "a").read_bytes() == data
        assert (folder / "b").read_bytes() == data[::-1]
    os.utime(work / "a", (1, 1))
    assert unsaved(workspace) == ()


def test_a_file_of_50_mb_is_captured_by_default(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    for name, size in (("shop.db", 50_000_000), ("model.bin", 101_000_000)):
        with open(work / name, "wb") as file:
            file.truncate(size)
    workspace = Workspace(work, tmp_path / "store")
    first = workspace.save()
    assert left_out(workspace) == (("model.bin", "larger than 100,000,000 bytes"),)
    (work / "shop.db").unlink()
    (work / "model.bin").unlink()
    done = workspace.restore(first.id)
    assert (work / "shop.db").stat().st_size == 50_000_000
    assert done.missing == (("model.bin", "left out of the snapshot (larger than 100,000,000 bytes)"),)
