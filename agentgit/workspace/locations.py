"""The places of a workspace and its storage, and the lock that lets one process at a time work there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentgit.errors import InvalidInput, NotAllowed, Unavailable
from agentgit.values import shown

PAUSE = 0.002
"""The pause before the next attempt, in seconds."""

_held = threading.local()
"""The files that this thread has locked. Without this list it would wait for itself."""


@contextmanager
def exclusive(path: str | os.PathLike[str], *, patience: float, what: str) -> Iterator[None]:
    """Keep all others out until the block ends.

    Args:
        path: The path of a file that stands for what is locked. It is made if it is not there, and stays.
        patience: The time to wait for others, in seconds.
        what: The thing that is locked, for the message.

    Raises:
        Unavailable: Another one took longer than that, this thread has it already, or the file cannot be opened.
    """
    end, place = time.monotonic() + patience, os.path.realpath(path)
    mine: set[str] = _held.__dict__.setdefault("places", set())
    if place in mine:
        raise Unavailable(f"This was called while {what} is in use, for example in a callback. Call it afterwards.")
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise Unavailable(f"{what} cannot be locked: {path}: {error.strerror}. Grant the permission.") from error
    try:
        while not _taken(lock):
            if time.monotonic() > end:
                raise Unavailable(f"Another process is using {what}. Try again later.")
            time.sleep(PAUSE)
        mine.add(place)
        yield
    finally:
        mine.discard(place)
        os.close(lock)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


HOME_FOLDERS = ("", "Desktop", "Documents", "Downloads", "Library", "Music", "Pictures", "Videos", ".config", ".local")

SYSTEM = "/ /bin /boot /dev /etc /home /lib /lib64 /opt /proc /root /run /sbin /srv /sys /tmp /usr /var /var/tmp /Users"


def workspace_place(path: str | os.PathLike[str]) -> str:
    """Return the real path of a workspace.

    Raises:
        InvalidInput: It is no directory, or one that holds much more than a session's files, like the home directory.
    """
    real = os.path.realpath(os.path.expanduser(os.fsdecode(path)))
    if not os.path.isdir(real):
        raise InvalidInput(f"{os.fspath(path)!r} is not a directory. Create it, then open the workspace again.")
    home = os.path.expanduser("~")
    protected = [*SYSTEM.split(), tempfile.gettempdir(), *(os.path.join(home, name) for name in HOME_FOLDERS)]
    if real in {os.path.realpath(one) for one in protected}:
        raise InvalidInput(f"{real} is protected: it holds more than one session's files. Use a directory in it.")
    return real


def require_in_place(root: bytes) -> None:
    """Check that a workspace is still where it was opened.

    Args:
        root: The real path of the workspace when it was opened.

    Raises:
        Unavailable: A link stands in the place of the workspace, or of a directory above it.
    """
    if (now := os.path.realpath(root)) != root:
        raise Unavailable(
            f"{shown(root)} is now behind a symbolic link, at {shown(now)}. Nothing was changed. Put the directory "
            "back, or open the workspace at its new path."
        )


def storage_place(path: str | os.PathLike[str] | None, workspace: str) -> str:
    """Return the real path of a workspace's storage, and make it, for its user alone.

    Args:
        path: The path that it gets; None is in `$AGENTGIT_HOME`, by default `~/.local/share/agentgit`.
        workspace: The real path of the workspace.

    Raises:
        InvalidInput: It is the workspace itself, or the workspace is in it.
        Unavailable: It cannot be made.
    """
    if path is None:
        path = Path(_home(), "workspaces", _short(workspace))
    real = os.path.realpath(os.path.expanduser(os.fsdecode(path)))
    if real == workspace or workspace.startswith(real + os.sep):
        raise InvalidInput(f"The storage {real} must not contain the workspace {workspace}. Use another directory.")
    try:
        os.makedirs(real, mode=0o700, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"{real}: {error.strerror}. Grant the permission, or use another storage_dir.") from error
    return real


def note_storage(storage: str, workspace: str) -> None:
    """Note, where only this user writes, that a program has opened a workspace; see `require_noted`.

    Args:
        storage: The real path of the storage.
        workspace: The real path of the directory.
    """
    if noted_workspace(storage) == workspace:
        return
    note = _note(storage)
    new = note.with_name(f"{note.name}-{os.getpid()}-{threading.get_ident()}")
    with suppress(OSError):  # who cannot keep notes is told so where one is missed
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.write_text(json.dumps([storage, workspace]))
        new.replace(note)


def noted_workspace(storage: str) -> str | None:
    """Return the directory with which a program of this user opened a storage last; None if none did."""
    try:
        noted = json.loads(_note(storage).read_text())
    except (OSError, ValueError):
        return None
    return str(noted[1]) if isinstance(noted, list) and len(noted) == 2 and noted[0] == storage else None


def require_noted(storage: str, workspace: str | None = None) -> None:
    """Refuse what a database says of where files are, unless a program of this user has opened just that.

    A storage has a git repository, whose configuration may name programs; and a directory that a row names would be
    written to. So a row chooses among the places that are known here, as it does among functions.

    Args:
        storage: The path of the storage, as it is stored.
        workspace: The path of the workspace, as it is stored; None if its directory does not matter.

    Raises:
        NotAllowed: It is not known here.
    """
    known = noted_workspace(storage)
    if known is None or (workspace is not None and known != workspace):
        place = (
            f"{shown(workspace)} with snapshots in {shown(storage)}" if workspace else f"the storage {shown(storage)}"
        )
        raise NotAllowed(
            f"No program of this user has opened {place}, and a stored path alone is not trusted. Wrap the "
            "graph with this workspace or, if it is yours, run: agentgit workspace list --dir DIR --store STORAGE"
        )


def _home() -> Path:
    found = os.environ.get("AGENTGIT_HOME")
    return Path(found or Path(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "agentgit"))


def _note(storage: str) -> Path:
    return Path(_home(), "known", _short(storage))


def _short(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
