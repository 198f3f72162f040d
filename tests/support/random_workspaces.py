"""Random operations on a workspace, compared with manifests of the disk that are made without agentgit."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workspace_fixtures import left_out, unsaved

from agentgit import Workspace
from agentgit.workspace.values import Restored

NAMES = ("a", "b", "c", "d", "d/a", "d/b", "d/e/a", "e", "e/f", "x.log", "d/y.log", "build", "build/out", "data", "é")
MODES = (0o644, 0o600, 0o755, 0o444)
FOLDER_MODES = (0o755, 0o700, 0o555)
LIMITS = (100, 1000, 10_000)
PATTERNS: tuple[tuple[str, ...], ...] = ((), ("*.log",), ("build",), ("*.log", "d/b"))
IGNORES = (b"", b"*.log\n", b"build/\n/c\n", b"d\n")


@dataclass(frozen=True)
class Stood:
    """The former state of a path: its mode, contents and modification time."""

    mode: int
    held: bytes
    mtime: int

    @property
    def same(self) -> tuple[int, bytes]:
        """The mode and the contents, which a restore brings back."""
        return self.mode, self.held

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    def looks_like(self, other: Stood) -> bool:
        """Return True if the mode is equal and, except for directories, the size and modification time are equal."""
        plain = (self.mode, len(self.held), self.mtime), (other.mode, len(other.held), other.mtime)
        return self.mode == other.mode if self.is_folder else plain[0] == plain[1]


Manifest = dict[str, Stood]


def manifest(root: Path) -> Manifest:
    """List the paths below a directory, without what was moved aside; closed ones are opened for reading meanwhile."""
    found = {os.path.relpath(path, root): stood for path, stood in _below(root)}
    return {path: stood for path, stood in found.items() if not within(path, {".agentgit-aside"})}


def _below(folder: Path) -> Iterator[tuple[Path, Stood]]:
    with _opened(folder, stat.S_IRWXU):
        for name in sorted(os.listdir(folder)):
            path = folder / name
            found = os.lstat(path)
            yield path, Stood(found.st_mode, _held(path, found), found.st_mtime_ns)
            if stat.S_ISDIR(found.st_mode):
                yield from _below(path)


def _held(path: Path, found: os.stat_result) -> bytes:
    if stat.S_ISLNK(found.st_mode):
        return os.fsencode(os.readlink(path))
    if not stat.S_ISREG(found.st_mode):
        return b""
    with _opened(path, stat.S_IRUSR):
        return path.read_bytes()


@contextmanager
def _opened(path: Path, bits: int) -> Iterator[None]:
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    if mode & bits == bits:
        yield
        return
    os.chmod(path, mode | bits)
    yield
    if path.exists():
        os.chmod(path, mode)


def within(path: str, paths: dict[str, str] | set[str]) -> bool:
    """Return True if a path is one of `paths` or below one of them."""
    return any(path == one or path.startswith(one + "/") for one in paths)


@dataclass
class Saved:
    """A snapshot, the manifest at its time, and the paths that it left out."""

    id: str
    stood: Manifest
    left: dict[str, str]

    @property
    def holds(self) -> Manifest:
        """The paths that the snapshot should contain."""
        return {path: one for path, one in self.stood.items() if not within(path, self.left)}


class Life:
    """One workspace with a random series of operations.

    Args:
        closed: True to close files and directories to their owner; the user must not be root then.
    """

    def __init__(self, place: Path, kind: str, seed: int, *, closed: bool) -> None:
        self.place, self.kind, self.closed = place, kind, closed
        self.work, self.outside = place / "work", place / "outside"
        self.work.mkdir()
        self.outside.mkdir()
        self.random = random.Random(seed)  # noqa: S311 - a repeatable test
        self.folder_modes = FOLDER_MODES if not closed else FOLDER_MODES[:2]  # a read-only one would stop a restore
        self.saved: list[Saved] = []
        self.open()

    def open(self) -> None:
        self.workspace = Workspace(
            self.work, self.place / "store", environment=self.kind, max_checkpoints=None,
            max_file_size=self.random.choice(LIMITS), exclude_patterns=self.random.choice(PATTERNS),
        )  # fmt: skip

    def live(self, rounds: int) -> None:
        """Run random operations, and compare each restore with the disk."""
        self.save()
        for _ in range(rounds):
            for _ in range(self.random.randrange(1, 6)):
                with self.all_open():
                    self.act()
            if self.random.random() < 0.3:
                self.open()
            if self.random.random() < 0.5:
                self.save()
            else:
                self.restore(self.random.choice(self.saved))

    # -- the operations

    @contextmanager
    def all_open(self) -> Iterator[None]:
        """Open all directories, and reset the modes of those that still exist at the end."""
        folders = [path for path, one in _below(self.work) if one.is_folder]
        modes = {path: stat.S_IMODE(os.lstat(path).st_mode) for path in folders}
        for path in folders:
            os.chmod(path, 0o700)
        yield
        for path in reversed(folders):
            if path.is_dir() and not path.is_symlink() and stat.S_IMODE(os.lstat(path).st_mode) == 0o700:
                os.chmod(path, modes[path])

    def act(self) -> None:
        name = self.random.choice(NAMES)
        path = self.work / name
        doing = self.random.choice([
            self.write, self.write, self.grow, self.folder, self.link, self.pipe, self.hard, self.shared, self.gone,
            self.gone, self.mode, self.ignore,
        ])  # fmt: skip
        if doing is not self.mode:
            self.make_way(path)
        doing(path)

    def make_way(self, path: Path) -> None:
        """Remove the item at a path, replace non-directories above it, and make the parent directories."""
        for above in [*reversed([one for one in path.parents if one.is_relative_to(self.work) and one != self.work])]:
            if above.is_symlink() or (above.exists() and not above.is_dir()):
                above.unlink()
            above.mkdir(exist_ok=True)
        self.gone(path)

    def write(self, path: Path) -> None:
        path.write_bytes(bytes([self.random.randrange(97, 123)]) * self.random.randrange(50))
        path.chmod(self.random.choice(MODES))

    def grow(self, path: Path) -> None:
        """Write a file whose size is near one of the limits."""
        path.write_bytes(b"x" * (self.random.choice(LIMITS) + self.random.randrange(-1, 2)))

    def folder(self, path: Path) -> None:
        path.mkdir()
        path.chmod(self.random.choice(self.folder_modes))

    def link(self, path: Path) -> None:
        path.symlink_to(self.random.choice(("a", "d", "/etc", "..", str(self.outside))))

    def pipe(self, path: Path) -> None:
        os.mkfifo(path)

    def hard(self, path: Path) -> None:
        """Make a hard link to a file of the workspace."""
        files = [one for one in sorted(self.work.rglob("*")) if one.is_file() and not one.is_symlink()]
        if files:
            os.link(self.random.choice(files), path)

    def shared(self, path: Path) -> None:
        """Make a file that also has a hard link outside the workspace."""
        outside = self.outside / str(self.random.randrange(10**9))
        outside.write_bytes(b"shared")
        outside.chmod(self.random.choice(MODES))
        os.link(outside, path)

    def gone(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            for one in os.listdir(path):
                self.gone(path / one)
            path.rmdir()
        else:
            path.unlink(missing_ok=True)

    def mode(self, path: Path) -> None:
        if path.is_symlink() or not path.exists():
            return
        modes = [*(self.folder_modes if path.is_dir() else MODES), *([0, 0o100, 0o200] if self.closed else [])]
        path.chmod(self.random.choice(modes))

    def ignore(self, path: Path) -> None:
        at = self.work / self.random.choice((".gitignore", "d/.gitignore"))
        self.make_way(at)
        if content := self.random.choice(IGNORES):
            at.write_bytes(content)

    # -- the checks

    def save(self) -> None:
        """Take a snapshot and record the manifest."""
        stood = manifest(self.work)
        taken = self.workspace.save()
        assert manifest(self.work) == stood
        self.saved.append(Saved(taken.id, stood, dict(left_out(self.workspace))))
        assert unsaved(self.workspace) == ()

    def restore(self, wanted: Saved) -> None:
        """Restore a snapshot, and compare the plan, the report and the disk."""
        before, shared = manifest(self.work), manifest(self.outside)
        plan = self.workspace.plan_restore(wanted.id)
        assert manifest(self.work) == before
        self.workspace.save()
        left = dict(left_out(self.workspace))  # what the safety snapshot of the restore leaves out
        done = self.workspace.restore(wanted.id)
        after = manifest(self.work)
        assert {path: one.same for path, one in manifest(self.outside).items()} == {
            path: one.same for path, one in shared.items()
        }
        assert not done.conflicts, done.conflicts
        self.check_disk(wanted, before, after, left, done)
        self.check_report(wanted, before, after, left, plan, done)
        changed = set(unsaved(self.workspace))  # a `.gitignore` that the restore changed includes more paths
        assert all(within(path, left) and path not in wanted.holds for path in changed), changed

    def check_disk(
        self, wanted: Saved, before: Manifest, after: Manifest, left: dict[str, str], done: Restored
    ) -> None:
        """Check that the contents of the snapshot are restored and the paths left out are unchanged."""
        for path, one in wanted.holds.items():
            assert path in after, path
            assert after[path].same == one.same or (one.is_folder and after[path].is_folder and path in left), path
        aside = dict(done.moved_aside)
        for path, one in before.items():
            if path in aside:
                assert within(path, left)
                assert not within(path, wanted.left)
                at = Path(aside[path])
                assert _held(at, os.lstat(at)) == one.held, path
            elif (within(path, wanted.left) or within(path, left)) and not one.is_folder:
                assert after.get(path) == one, path
        named = {path for path, _ in done.left}
        for path, one in after.items():
            if path in wanted.holds or one.is_folder:
                continue
            assert within(path, wanted.left) or within(path, left) or path in named, path

    def check_report(
        self, wanted: Saved, before: Manifest, after: Manifest, left: dict[str, str], plan: Restored, done: Restored
    ) -> None:
        """Check that the plan and the report list exactly the changes that were made."""
        leaves = {path: one for path, one in wanted.holds.items() if not one.is_folder}
        held = {path: one for path, one in before.items() if not within(path, left)}
        put = {path for path, one in leaves.items() if path not in before or before[path].same != one.same}
        assert put == set(done.restored) == set(plan.restored)
        were = {path for path, one in held.items() if not one.is_folder and path not in leaves}
        gone = {path for path in were if path not in after or after[path].is_folder}
        assert gone == set(done.deleted) == set(plan.deleted)
        missing = {path for path in wanted.left if path not in after}
        assert missing == {path for path, _ in done.missing} == {path for path, _ in plan.missing}
        changed = {p for p in wanted.left if p in after and not after[p].looks_like(wanted.stood[p])}
        named = {path for path, _ in done.left}
        assert changed <= named, (changed, done.left)
        assert set(plan.left) == set(done.left)
        for path in named - changed:
            assert path in after, path
            assert path not in wanted.stood, path


def live(place: Path, kind: str, seed: int, rounds: int, *, closed: bool) -> None:
    """Run one life; an error gets a note with the seed and the options."""
    try:
        Life(place, kind, seed, closed=closed).live(rounds)
    except BaseException as error:
        error.add_note(f"seed {seed}, {kind}, closed={closed}")
        raise
