"""Paths and links of files as an export may name them: such that every system takes them, and none leads out. Pure.

Each check gives the bytes that the system has, or raises ValueError.
"""

from __future__ import annotations

import unicodedata
from typing import Any

LONGEST_PATH, LONGEST_NAME = 4096, 255
"""Bytes."""

DEVICES = {"con", "prn", "aux", "nul", "conin$", "conout$"} | {
    f"{port}{n}" for port in ("com", "lpt") for n in range(10)
}
"""The names that Windows takes for a device, with any ending."""

REPOSITORY = (".git", "git~1")

CONTROLS, REPOSITORY_LINK = "has control characters", "leads into a git repository"

IGNORED = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
"""Characters that some file systems leave out of names."""


def path(value: Any) -> bytes:
    """Take the path of a file, relative to its workspace.

    Example:
        >>> path("src/plan.md")
        b'src/plan.md'
    """
    found = _bytes(value)
    if why := problem(value):
        raise ValueError(f"{_named(value)} {why}")
    return found


def problem(value: str) -> str:
    """Explain why a path cannot stand on every system; return an empty string if it can.

    Args:
        value: The path, as `text_of` returns it.

    Example:
        >>> problem("src/aux.py")
        'is a device or another path on some systems'
    """
    if _has_controls(value):
        return CONTROLS
    return next((why for name in value.split("/") if (why := _problem(name))), "")


def left_out(value: Any) -> bytes:
    """Take a path that an export names and does not carry: of any system, and relative to its workspace."""
    found = _bytes(value, controls=True)
    if b"\0" in found or any(name in (b"", b".", b"..") for name in found.split(b"/")):
        raise ValueError(f"{_named(value)} is not relative to the workspace, or leads out of it")
    return found


def link(value: Any) -> bytes:
    """Take where a symbolic link leads, if not into a repository; `link_problem` knows if out of the workspace."""
    found = _bytes(value)
    if _into_repository(value):
        raise ValueError(f"{_named(value)} {REPOSITORY_LINK}")
    return found


def link_problem(at: bytes, target: bytes) -> str:
    """Explain why a link cannot be exported: it must not lead out of its workspace, whatever other links there are.

    The link may go up only at its beginning, through directories that no link stands for, and not above the workspace.
    The directories that it goes down through may be links, but those do not lead out either.

    Args:
        at: The path of the link.
        target: The target of the link.

    Returns:
        The reason; an empty string if the link can be exported.

    Example:
        >>> link_problem(b"a/b/link", b"../../c")
        ''
        >>> link_problem(b"link", b"/etc/passwd")
        'is a link that may lead out of the workspace'
    """
    names = target.split(b"/")
    up = next((n for n, name in enumerate(names) if name != b".."), len(names))
    if target.startswith(b"/") or up > at.count(b"/") or b".." in names[up:]:
        return "is a link that may lead out of the workspace"
    if _has_controls(_text(target)):
        return f"is a link whose target {CONTROLS}"
    return f"is a link that {REPOSITORY_LINK}" if _into_repository(_text(target)) else ""


def folded(name: str) -> str:
    """Return what names have in common that are one on some systems.

    Example:
        >>> folded("README") == folded("readme")
        True
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def text_of(found: bytes) -> str:
    """Return a path or a link as an export has it; what is no UTF-8 in it becomes lone surrogates."""
    return _text(found)


def _bytes(value: Any, *, controls: bool = False) -> bytes:
    if type(value) is not str:
        raise ValueError("is not text")
    try:
        found = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"{_named(value)} is not a path on any system") from error
    if not 0 < len(found) <= LONGEST_PATH:
        raise ValueError(f"is not text of 1 to {LONGEST_PATH} bytes")
    if not controls and _has_controls(value):
        raise ValueError(f"{_named(value)} {CONTROLS}")
    return found


def _has_controls(value: str) -> bool:
    return any(unicodedata.category(letter) == "Cc" for letter in value)


def _into_repository(value: str) -> bool:
    return any(_plain(name) in REPOSITORY for name in value.split("/"))


def _problem(name: str) -> str:
    """Explain why a text cannot be the name of a file; return an empty string if it can."""
    if name in ("", ".", ".."):
        return "is not relative to the workspace, or leads out of it"
    if len(name.encode("utf-8", "surrogateescape")) > LONGEST_NAME:
        return f"has a name of more than {LONGEST_NAME} bytes"
    plain = _plain(name)
    if plain in REPOSITORY:
        return "is in a git repository"
    if plain.partition(".")[0].rstrip() in DEVICES or "\\" in name:
        return "is a device or another path on some systems"
    return ""


def _plain(name: str) -> str:
    """Return a name as the file system sees it that makes most names the same."""
    return folded(name.translate(IGNORED)).partition(":")[0].rstrip(" .")


def _text(found: bytes) -> str:
    return found.decode("utf-8", "surrogateescape")


def _named(value: str) -> str:
    return ascii(value if len(value) <= 80 else f"{value[:80]}…")
