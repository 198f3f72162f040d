"""Owners of branches and operations: pieces of work in a process, which may have died since."""

from __future__ import annotations

import functools
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_working: set[str] = set()
"""The owners in this process that are still at work."""

ENDED = "ended"
"""Instead of a start time: it is dead, and its parent has not asked yet how it died."""


@contextmanager
def owner() -> Iterator[str]:
    """Yield a name for one piece of work, which counts as alive until the block ends or the process dies.

    Example:
        >>> with owner() as name:
        ...     is_alive(name)
        True
        >>> is_alive(name)
        False
    """
    name = f"{_here()}|{os.getpid()}|{_started(os.getpid())}|{secrets.token_hex(8)}"
    _working.add(name)
    try:
        yield name
    finally:
        _working.discard(name)


def is_alive(name: str | None) -> bool:
    """Return whether that piece of work may still be going on; on another host nobody can tell, so it may.

    Args:
        name: The name, as `owner` returned it; None is nobody.
    """
    if name is None:
        return False
    host, pid, started, _ = name.split("|")
    if host != _here():
        return True
    if int(pid) == os.getpid() and started == _started(os.getpid()):
        return name in _working
    return _exists(int(pid)) and started == _started(int(pid))


def is_here(name: str | None) -> bool:
    """Return whether that piece of work is surely going on, on this machine; of another host nobody can tell."""
    return name is not None and name.split("|")[0] == _here() and is_alive(name)


@functools.cache
def _here() -> str:
    """Name the place where pids mean the same: one boot of one machine, one container; elsewhere the host's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()[:60]


def _started(pid: int) -> str:
    """Return a process's start time where the system tells it, so that a reused pid is not taken for the dead one."""
    try:
        state, *_, started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:20]
    except (OSError, ValueError):
        return ""
    return started if state not in "ZX" else ENDED


def _exists(pid: int) -> bool:
    if os.name != "posix":
        return True  # os.kill would end the process there
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it lives, under another user
    return True
