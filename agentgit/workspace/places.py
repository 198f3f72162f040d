"""Where a workspace and its storage may be."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from agentgit.errors import InvalidInput, Unavailable
from agentgit.values import shown

HOME_FOLDERS = ("", "Desktop", "Documents", "Downloads", "Library", "Music", "Pictures", "Videos", ".config", ".local")

SYSTEM = "/ /bin /boot /dev /etc /home /lib /lib64 /opt /proc /root /run /sbin /srv /sys /tmp /usr /var /var/tmp /Users"


def workspace_place(path: str | os.PathLike[str]) -> str:
    """Give the real path of a workspace.

    Raises:
        InvalidInput: it is no directory, or one that holds much more than a session's files, like the home directory.
    """
    real = os.path.realpath(os.path.expanduser(os.fsdecode(path)))
    if not os.path.isdir(real):
        raise InvalidInput(f"{os.fspath(path)!r} is no directory. Make it, then open the workspace again.")
    home = os.path.expanduser("~")
    protected = [*SYSTEM.split(), tempfile.gettempdir(), *(os.path.join(home, name) for name in HOME_FOLDERS)]
    if real in {os.path.realpath(one) for one in protected}:
        raise InvalidInput(f"{real} is protected: it holds more than one session's files. Name a directory in it.")
    return real


def expect_in_place(root: bytes) -> None:
    """Make sure that a workspace is still where it was opened.

    Args:
        root: its real path then.

    Raises:
        Unavailable: a link stands in its place, or in that of a directory above.
    """
    if (now := os.path.realpath(root)) != root:
        raise Unavailable(
            f"{shown(root)} is now behind a symbolic link, to {shown(now)}. Nothing was touched. Put the directory "
            "back, or open the workspace again where it is now."
        )


def storage_place(path: str | os.PathLike[str] | None, workspace: str) -> str:
    """Give the real path of a workspace's storage, and make it, for its user alone.

    Args:
        path: where it is to be; None is in `$AGENTGIT_HOME`, by default `~/.local/share/agentgit`.
        workspace: the real path of the workspace.

    Raises:
        InvalidInput: it is the workspace itself, or the workspace is in it.
        Unavailable: it cannot be made.
    """
    if path is None:
        home = os.environ.get("AGENTGIT_HOME") or Path(
            os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "agentgit"
        )
        path = Path(home, "workspaces", hashlib.sha256(os.fsencode(workspace)).hexdigest()[:16])
    real = os.path.realpath(os.path.expanduser(os.fsdecode(path)))
    if real == workspace or workspace.startswith(real + os.sep):
        raise InvalidInput(f"The storage {real} must not hold the workspace {workspace}. Name another directory.")
    try:
        os.makedirs(real, mode=0o700, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"{real}: {error.strerror}. Give the permission, or name another storage_dir.") from error
    return real
