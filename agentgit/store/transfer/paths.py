"""Checks of paths and links in an export: valid on every operating system, and inside the workspace. No IO.

Each check returns the path in bytes, as the operating system has it, or raises ValueError.
"""

from __future__ import annotations

import unicodedata
from typing import Any

LONGEST_PATH, LONGEST_NAME = 4096, 255
"""The maximum lengths, in bytes."""

DEVICES = {"con", "prn", "aux", "nul", "conin$", "conout$"} | {
    f"{port}{n}" for port in ("com", "lpt") for n in range(10)
}
"""The names that Windows treats as devices, with any extension."""

REPOSITORY = (".git", "git~1")

CONTROLS, REPOSITORY_LINK = "has control characters", "leads into a git repository"

IGNORED = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
"""Characters that some file systems ignore in names."""


def path(value: Any) -> bytes:
    """Check the path of a file, relative to its workspace.

    Example:
        >>> path("src/plan.md")
        b'src/plan.md'
    """
    found = _bytes(value)
    if why := problem(value):
        raise ValueError(f"{_named(value)} {why}")
    return found


def problem(value: str) -> str:
    """Explain why a path is not valid on every operating system; return an empty string if it is.

    Args:
        value: The path that `text_of` returned.

    Example:
        >>> problem("src/aux.py")
        'is a device or another path on some systems'
    """
    if _has_controls(value):
        return CONTROLS
    return next((why for name in value.split("/") if (why := _problem(name))), "")


def left_out(value: Any) -> bytes:
    """Check a path that an export leaves out: valid on any operating system, and relative to its workspace."""
    found = _bytes(value, controls=True)
    if b"\0" in found or any(name in (b"", b".", b"..") for name in found.split(b"/")):
        raise ValueError(f"{_named(value)} is not relative to the workspace, or leads out of it")
    return found


def link(value: Any) -> bytes:
    """Check the target of a symbolic link: not in a git repository. `link_problem` checks that it stays inside."""
    found = _bytes(value)
    if _into_repository(value):
        raise ValueError(f"{_named(value)} {REPOSITORY_LINK}")
    return found


def link_problem(at: bytes, target: bytes) -> str:
    """Explain why a link cannot be exported: it must not lead out of its workspace, whatever other links exist.

    The target may have `..` only at its beginning, where it goes up through real directories, and not above the
    workspace. The directories that it then goes down through may be links, but those cannot lead out either.

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
    """Return a key that is equal for names that some operating systems treat as the same.

    Example:
        >>> folded("README") == folded("readme")
        True
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def text_of(found: bytes) -> str:
    """Return a path or a link as an export has it. Bytes that are not UTF-8 become lone surrogates."""
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
    """Explain why a file name is not valid on every operating system; return an empty string if it is."""
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
    """Return a name normalized as by the file systems that treat the most names as equal."""
    return folded(name.translate(IGNORED)).partition(":")[0].rstrip(" .")


def _text(found: bytes) -> str:
    return found.decode("utf-8", "surrogateescape")


def _named(value: str) -> str:
    return ascii(value if len(value) <= 80 else f"{value[:80]}…")
