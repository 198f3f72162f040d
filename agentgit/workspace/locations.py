"""The paths of a workspace and its storage, and the lock that lets only one process use them at a time."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from agentgit.errors import InvalidInput, Unavailable
from agentgit.values import escape_path

FREE, PERMIT = "Free some space", "Grant the permission"
ADVICE = {errno.ENOSPC: FREE, errno.EDQUOT: FREE, errno.EACCES: PERMIT, errno.EPERM: PERMIT, errno.EROFS: PERMIT}
ADVICE[errno.ENOENT] = "Put it back, or open the workspace (wrap the graph) again"


@contextmanager
def naming(path: str | bytes) -> Iterator[None]:
    """Convert an operating-system error into one that names the path."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidInput(f"{os.fsdecode(path)!r} is too long for the name of a file.") from error
        advice = ADVICE.get(error.errno or 0, "Fix the cause")
        if error.errno == errno.EISDIR and os.path.isabs(error.filename or ""):
            path = error.filename  # of the caller's, only the directory above it may be known
        raise Unavailable(f"{escape_path(path)}: {error.strerror or error}. {advice}, then try again.") from error


@contextmanager
def exclusive_lock(path: str | os.PathLike[str], *, timeout: float, description: str) -> Iterator[None]:
    deadline = time.monotonic() + timeout
    with naming(os.fspath(path)):
        lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"Another process or a callback is using {description}. Try again later."
                    ) from None
                time.sleep(0.002)
        yield
    finally:
        os.close(lock_fd)


HOME_FOLDERS = ("", "Desktop", "Documents", "Downloads", "Library", "Music", "Pictures", "Videos", ".config", ".local")

SYSTEM_FOLDERS = (
    "/ /bin /boot /dev /etc /home /lib /lib64 /opt /proc /root /run /sbin /srv /sys /tmp /usr /var /var/tmp /Users"
)


def resolve_workspace(path: str | os.PathLike[str]) -> str:
    """Return the real path of a workspace, which is created if it does not exist."""
    real_path = os.path.realpath(os.path.expanduser(os.fsdecode(path)))
    home = os.path.expanduser("~")
    protected = [*SYSTEM_FOLDERS.split(), tempfile.gettempdir(), *(os.path.join(home, name) for name in HOME_FOLDERS)]
    if real_path in {os.path.realpath(folder) for folder in protected}:
        raise InvalidInput(f"{real_path} is protected: it holds more than one session's files. Use a directory in it.")
    if not os.path.lexists(real_path):
        with naming(real_path):
            os.makedirs(real_path, exist_ok=True)
    require_directory(real_path)
    return real_path


def require_directory(path: str | os.PathLike[str]) -> None:
    if not os.path.isdir(os.path.expanduser(path)):
        raise InvalidInput(f"{os.fspath(path)!r} is not a directory. Create it, then open the workspace again.")


def require_not_moved(root: bytes) -> None:
    if (current_path := os.path.realpath(root)) != root:
        raise Unavailable(
            f"{escape_path(root)} is now behind a symbolic link, at {escape_path(current_path)}. Nothing was changed. "
            "Put the directory back, or open the workspace at its new path."
        )


def create_storage(path: str | os.PathLike[str] | None, workspace: str) -> str:
    """Create the storage of a workspace, accessible only to its user, and return its real path."""
    if path is None:
        path = _place_at_home("workspaces", workspace)
    real_path = os.path.realpath(os.path.expanduser(os.fsdecode(path)))
    if real_path == workspace or workspace.startswith(real_path + os.sep):
        raise InvalidInput(
            f"The storage {real_path} must not contain the workspace {workspace}. Use another directory."
        )
    with naming(real_path):
        os.makedirs(real_path, mode=0o700, exist_ok=True)
    return real_path


def remember_storage(storage: str) -> None:
    """Record that a program of this user has opened a storage, by a link in a directory that only they can write."""
    link = _place_at_home("known", storage)
    with suppress(OSError):  # it exists; or `is_known` shows later that it could not be made
        os.makedirs(os.path.dirname(link), mode=0o700, exist_ok=True)
        os.symlink(storage, link)


def is_known(storage: str) -> bool:
    """Return whether a program of this user has opened a storage: where files are written is not a row's to say."""
    return os.path.realpath(_place_at_home("known", storage)) == storage


def _place_at_home(folder: str, path: str) -> str:
    data_home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    home = os.environ.get("AGENTGIT_HOME") or os.path.join(data_home, "agentgit")
    return os.path.join(home, folder, hashlib.sha256(os.fsencode(path)).hexdigest()[:16])


Paths = Iterable[str | os.PathLike[str]] | None


class WorkspacePaths:
    def __init__(self, root: str) -> None:
        self._root = root

    def relative_paths(self, paths: Paths) -> tuple[bytes, ...] | None:
        if paths is None:
            return None
        if isinstance(paths, str | bytes | os.PathLike):
            raise InvalidInput(f"paths={paths!r} is one path; write paths=[{paths!r}].")
        return tuple(map(self.relative, paths))

    def relative(self, path: str | os.PathLike[str]) -> bytes:
        """Return a path relative to the workspace; links to the workspace are followed, those in it are not."""
        data = b""
        with suppress(TypeError, UnicodeEncodeError):
            data = os.fsencode(path)
        if not data or b"\0" in data:
            raise InvalidInput(f"{path!r} is not the path of a file.")
        ancestor = absolute = os.path.normpath(os.path.join(self._root, os.fsdecode(data)))
        while os.path.realpath(ancestor) != self._root:
            if ancestor == os.path.dirname(ancestor):
                raise InvalidInput(f"{os.fsdecode(data)!r} is outside the workspace {self._root}.")
            ancestor = os.path.dirname(ancestor)
        return b"" if ancestor == absolute else os.fsencode(os.path.relpath(absolute, ancestor))

    def holds(self, path: str | os.PathLike[str]) -> bool:
        try:
            self.relative(path)
        except InvalidInput:
            return False
        return True
