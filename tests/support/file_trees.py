"""Unusual file trees: initial contents, changes, and a picture to compare trees."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec

P = ParamSpec("P")
Act = Callable[[Path], object]
"""A function that changes a file tree; the functions below return one."""


def picture(root: Path) -> dict[bytes, tuple[int, bytes | None]]:
    """Return each path with its mode and contents, except paths in `.git`."""
    found: dict[bytes, tuple[int, bytes | None]] = {}
    for parent, folders, names in os.walk(os.fsencode(root)):
        folders[:] = [name for name in folders if name != b".git"]
        for name in folders + names:
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            data = None
            if stat.S_ISLNK(mode):
                data = os.readlink(path)
            elif stat.S_ISREG(mode):
                data = Path(os.fsdecode(path)).read_bytes()
            found[os.path.relpath(path, os.fsencode(root))] = (mode, data)
    return found


def later(change: Callable[Concatenate[Path, P], object]) -> Callable[P, Act]:
    """Turn a function that changes a tree into one that takes its other arguments, and returns the act."""
    return lambda *arguments, **named: lambda root: change(root, *arguments, **named)


@later
def write(root: Path, name: str | bytes, data: bytes = b"data\n", mode: int = 0o644) -> None:
    path = os.path.join(os.fsencode(root), os.fsencode(name))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


@later
def folder(root: Path, name: str, mode: int = 0o755) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name).chmod(mode)


@later
def link(root: Path, name: str, to: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).symlink_to(to)


@later
def gone(root: Path, name: str | bytes) -> None:
    path = os.path.join(os.fsencode(root), os.fsencode(name))
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(os.fsdecode(path))
    else:
        os.unlink(path)


@later
def mode(root: Path, name: str, bits: int) -> None:
    (root / name).chmod(bits)


@later
def move(root: Path, name: str, to: str) -> None:
    (root / name).rename(root / to)


@later
def git(root: Path, at: str, *arguments: str) -> None:
    """Run the user's git in a directory."""
    words = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    subprocess.run(words, cwd=root / at, check=True, capture_output=True)  # noqa: S603


@later
def listening(root: Path, name: str) -> None:
    """Make a socket."""
    with contextlib.chdir(root), socket.socket(socket.AF_UNIX) as made:  # its path would be too long
        made.bind(name)


@later
def both(root: Path, *acts: Act) -> None:
    for one in acts:
        one(root)


CASES: dict[str, tuple[Act, Act]] = {
    "a file that changed": (write("a"), write("a", b"other")),
    "a file that went": (write("a"), gone("a")),
    "a file that came": (write("a"), write("b")),
    "the last file that went": (write("d/a"), gone("d")),
    "an empty workspace": (both(), write("a")),
    "an empty file": (write("a", b""), write("a", b"not empty")),
    "the same size": (write("a", b"one"), write("a", b"two")),
    "CRLF": (write("a", b"1\r\n2\r\n"), write("a", b"1\n2\n")),
    "binary": (write("a", bytes(range(256))), write("a", bytes(256))),
    "a byte order mark": (write("a", b"\xef\xbb\xbfa"), write("a", b"a")),
    "a name that is no UTF-8": (write(b"\xff\xfe", b"1"), both(gone(b"\xff\xfe"), write(b"\xfe", b"2"))),
    "a name with a line end": (write("a\nb", b"1"), write("a\nb", b"2")),
    "a name with quotes": (write("a\"b'c", b"1"), gone("a\"b'c")),
    "a name with a backslash": (write("a\\nb", b"1"), write("a\\nb", b"2")),
    "a name with a tab and spaces": (write(" a\t b ", b"1"), gone(" a\t b ")),
    "a name like an option": (write("-rf", b"1"), write("-rf", b"2")),
    "a name with a glob": (both(write("*"), write("b")), gone("*")),
    "a name with a colon": (write(":(top)a", b"1"), write(":(top)a", b"2")),
    "a long name": (write("n" * 255), gone("n" * 255)),
    "a deep path": (write("/".join("d" * 60) + "/a"), gone("d")),
    "accents in both forms": (both(write("é"), write("e\u0301")), both(gone("é"), write("e\u0301", b"2"))),
    "names that differ in case": (both(write("A"), write("a", b"2")), both(gone("A"), write("a", b"3"))),
    "an executable": (write("a", mode=0o755), mode("a", 0o644)),
    "a secret": (write("a", mode=0o600), mode("a", 0o644)),
    "a secret that changed": (write("a", mode=0o600), write("a", b"2", 0o600)),
    "only to be read": (write("a", mode=0o444), both(gone("a"), write("a", b"2"))),
    "setuid": (write("a", mode=0o4755), mode("a", 0o755)),
    "a directory of one's own": (both(write("d/a"), mode("d", 0o700)), mode("d", 0o755)),
    "a directory that is opened": (both(write("d/a"), mode("d", 0o755)), mode("d", 0o777)),
    "a directory with odd bits that went": (both(write("d/a"), mode("d", 0o750)), gone("d")),
    "an empty directory": (folder("d/e"), gone("d")),
    "an empty directory that came": (write("a"), folder("d/e")),
    "an empty directory that was filled": (folder("d"), write("d/a")),
    "a directory that was emptied": (write("d/a"), gone("d/a")),
    "an empty directory with odd bits that was filled": (folder("d", 0o700), write("d/a")),
    "a directory that moved": (both(write("d/a"), write("d/e/b")), move("d", "f")),
    "a link": (link("l", "nowhere"), both(gone("l"), link("l", "elsewhere"))),
    "a link that went": (link("l", "nowhere"), gone("l")),
    "a link out of the workspace": (link("l", "/etc/passwd"), gone("l")),
    "a link that leads to itself": (link("l", "l"), both(gone("l"), write("l"))),
    "a file became a link": (write("a"), both(gone("a"), link("a", "b"))),
    "a link became a file": (link("a", "b"), both(gone("a"), write("a"))),
    "a file became a directory": (write("a"), both(gone("a"), write("a/b/c"))),
    "a directory became a file": (both(write("a/b/c"), write("a/d")), both(gone("a"), write("a"))),
    "a directory became a link": (both(write("a/b"), write("c/b", b"2")), both(gone("a"), link("a", "c"))),
    "a link became a directory": (both(write("c/b"), link("a", "c")), both(gone("a"), write("a/b", b"3"))),
    "an empty directory became a file": (folder("d"), both(gone("d"), write("d"))),
    "a file became an empty directory": (write("d"), both(gone("d"), folder("d"))),
    "two files that swapped": (
        both(write("a", b"1"), write("b", b"2")),
        both(move("a", "c"), move("b", "a"), move("c", "b")),
    ),
    "an ignore file that changed": (
        both(write(".gitignore", b"*.log\n"), write("a")),
        both(write(".gitignore", b""), write("a", b"2")),
    ),
    "a nested repository": (
        both(write("n/a"), git("n", "init", "-q"), git("n", "add", "a"), git("n", "commit", "-qm", "1")),
        write("n/a", b"2"),
    ),
    "a nested repository without a commit": (both(write("n/a"), git("n", "init", "-q")), gone("n/a")),
    "a submodule": (both(write("s/.git", b"gitdir: ../../elsewhere\n"), write("s/a")), write("s/a", b"2")),
    "a repository of its own": (both(write("a"), git(".", "init", "-q"), git(".", "add", "a")), write("a", b"2")),
    "attributes that change bytes": (
        both(write(".gitattributes", b"* text eol=crlf ident\n"), write("a", b"$Id$\n")),
        write("a", b"2\r\n"),
    ),
    "names of the storage": (
        both(write("tree.json"), write("files/files")),
        both(gone("tree.json"), write("files/files", b"2")),
    ),
    "many files": (both(*(write(f"d{n % 7}/{n}") for n in range(200))), gone("d3")),
}
"""For each case, the act that fills the workspace before the snapshot and the act that changes it later."""
