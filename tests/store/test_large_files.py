"""Large files are hashed, stored, compared and restored in parts, with little memory."""

from __future__ import annotations

import os
import textwrap
import tracemalloc

import processes
import pytest
from process_memory import traced_memory
from workspace_fixtures import adopt, left_out, unsaved

from agentgit import Workspace
from agentgit.workspace.packs import IN_MEMORY

SIZE = 100_000_000
LITTLE = 40_000_000
"""The limit for the memory that Python allocates during the whole test, in bytes."""


def sparse(path, ends: bytes, size: int = SIZE) -> None:
    with open(path, "wb") as file:
        file.write(ends)
        file.seek(size - len(ends))
        file.write(ends)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["git", "directory"])
def test_a_large_file_needs_little_memory(tmp_path, kind):
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "other").mkdir()
    workspace = Workspace(work, tmp_path / "store", environment=kind, max_file_size=2 * SIZE)
    other = Workspace(tmp_path / "other", tmp_path / "other-store", environment=kind, max_file_size=2 * SIZE)
    sparse(work / "big", b"one")
    with traced_memory():
        first = workspace.save()
        sparse(work / "big", b"two")
        assert unsaved(workspace) == ("big",)
        assert workspace.diff(first.id).diff_content == "Files a/big and b/big differ; too large to show\n"
        second = workspace.save()
        assert "too large to show" in workspace.diff(first.id, second.id).diff_content
        assert workspace.plan_restore(first.id).restore == ("big",)
        assert workspace.restore(first.id).restored == ("big",)
        assert other.restore(adopt(other, workspace, first.id).id).restored == ("big",)
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    for path in (work / "big", tmp_path / "other" / "big"):
        with open(path, "rb") as file:
            assert file.read(3) == b"one"
            file.seek(SIZE - 3)
            assert file.read() == b"one"
    assert unsaved(workspace) == ()


GIT = """
    import os, resource, sys
    from agentgit import Workspace
    work, store = sys.argv[1:]
    workspace = Workspace(work, store, max_file_size=10**9)
    first = workspace.save()
    os.unlink(os.path.join(work, "big"))
    workspace.restore(first.id)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(most < max(own, 100_000) + 60_000, most, own)
"""


@pytest.mark.long
def test_git_needs_little_memory_for_a_large_file(tmp_path):
    (tmp_path / "work").mkdir()
    sparse(tmp_path / "work" / "big", b"one", 300_000_000)
    done = processes.run(textwrap.dedent(GIT), tmp_path / "work", tmp_path / "store")
    assert done.stdout.startswith("True"), (done.stdout, done.stderr)


@pytest.mark.parametrize("size", [IN_MEMORY - 1, IN_MEMORY, IN_MEMORY + 1, IN_MEMORY + (1 << 20)])
@pytest.mark.parametrize("kind", ["git", "directory"])
def test_files_around_the_in_memory_limit_are_restored(tmp_path, kind, size):
    work = tmp_path / "work"
    work.mkdir()
    workspace = Workspace(work, tmp_path / "store", environment=kind)
    data = os.urandom(1 << 10) * (size // 1024) + b"x" * (size % 1024)
    (work / "a").write_bytes(data)
    (work / "b").write_bytes(data[::-1])
    first = workspace.save()
    for name in ("a", "b"):
        (work / name).write_bytes(b"")
    workspace.restore(first.id)
    assert (work / "a").read_bytes() == data
    assert (work / "b").read_bytes() == data[::-1]
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
