"""Checks of names and links in an export: valid on every operating system, and inside the workspace. No IO.

Each check returns the path in bytes, as the operating system has it, or raises ValueError.
"""

from __future__ import annotations

import unicodedata
from typing import Any

LONGEST_PATH, LONGEST_NAME = 4096, 255
"""The maximum lengths, in bytes."""

DEVICE_NAMES = {"con", "prn", "aux", "nul", "conin$", "conout$"} | {
    f"{port}{n}" for port in ("com", "lpt") for n in "0123456789\u00b9\u00b2\u00b3"
}
"""The names that Windows treats as devices, with any extension."""

NOT_ON_WINDOWS = frozenset('\\:*?"<>|')

ELSEWHERE = "is a device, another path or no path on some systems"

REPOSITORY_NAMES = (".git", "git~1")

CONTROLS, REPOSITORY_LINK = "has control characters", "leads into a git repository"

NO_NAME = "is not a name in the workspace, or leads out of it"

IGNORED_CHARACTERS = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
"""Characters that some file systems ignore in names."""


def name(value: Any) -> bytes:
    name_bytes = _encode_path(value)
    if reason := name_problem(value):
        raise ValueError(f"{_quote_path(value)} {reason}")
    return name_bytes


def left_out(value: Any) -> bytes:
    """Check a name that an export leaves out, which need be valid on one operating system only."""
    name_bytes = _encode_path(value, controls=True)
    if b"\0" in name_bytes or b"/" in name_bytes or name_bytes in (b".", b".."):
        raise ValueError(f"{_quote_path(value)} {NO_NAME}")
    return name_bytes


def link(value: Any) -> bytes:
    """Check the target of a symbolic link; how far it leads up is checked with its directories."""
    target = _encode_path(value)
    if reason := link_problem(target, LONGEST_PATH):
        raise ValueError(f"{_quote_path(value)} {reason}")
    return target


def levels_up(target: bytes) -> int:
    """Return the number of directories that the target of a link goes up at its beginning."""
    names = target.split(b"/")
    return next((n for n, one in enumerate(names) if one != b".."), len(names))


def link_problem(target: bytes, depth: int) -> str:
    """Explain why a link cannot be exported: it must not lead out of its workspace, whatever other links exist.

    The target may have `..` only at its beginning, where it goes up through real directories, and not above the
    workspace. The directories that it then goes down through may be links, but those cannot lead out either.
    """
    levels = levels_up(target)
    if target.startswith(b"/") or levels > depth or b".." in target.split(b"/")[levels:]:
        return "is a link that may lead out of the workspace"
    if _has_controls(text_of(target)):
        return f"is a link whose target {CONTROLS}"
    if any(_normalize_name(name) in REPOSITORY_NAMES for name in text_of(target).split("/")):
        return f"is a link that {REPOSITORY_LINK}"
    return ELSEWHERE if any(_is_elsewhere(name) for name in text_of(target).split("/")) else ""


def fold_name(name: str) -> str:
    """Return a key that is equal for names that some operating systems treat as the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def text_of(path_bytes: bytes) -> str:
    """Return a path or a link as an export has it. Bytes that are not UTF-8 become lone surrogates."""
    return path_bytes.decode("utf-8", "surrogateescape")


def _encode_path(value: Any, *, controls: bool = False) -> bytes:
    if type(value) is not str:
        raise ValueError("is not text")
    try:
        path_bytes = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"{_quote_path(value)} is not a path on any system") from error
    if not 0 < len(path_bytes) <= LONGEST_PATH:
        raise ValueError(f"is not text of 1 to {LONGEST_PATH} bytes")
    if not controls and _has_controls(value):
        raise ValueError(f"{_quote_path(value)} {CONTROLS}")
    return path_bytes


def _has_controls(value: str) -> bool:
    return any(unicodedata.category(character) == "Cc" for character in value)


def name_problem(name: str) -> str:
    """Explain why a file name is not valid on every operating system; return an empty string if it is."""
    if _has_controls(name):
        return CONTROLS
    if name in ("", ".", "..") or "/" in name:
        return NO_NAME
    if len(name.encode("utf-8", "surrogateescape")) > LONGEST_NAME:
        return f"has a name of more than {LONGEST_NAME} bytes"
    normalized = _normalize_name(name)
    if normalized in REPOSITORY_NAMES:
        return "is in a git repository"
    return ELSEWHERE if _is_elsewhere(name) else ""


def _is_elsewhere(name: str) -> bool:
    """Return whether Windows has no such name, or takes it for another one, a device, a drive or a stream of a file."""
    is_device = _normalize_name(name).partition(".")[0].rstrip() in DEVICE_NAMES
    is_cut = name.rstrip(" .") != name and name not in (".", "..")
    return is_device or is_cut or not NOT_ON_WINDOWS.isdisjoint(name)


def _normalize_name(name: str) -> str:
    """Return a name normalized as by the file systems that treat the most names as equal."""
    return fold_name(name.translate(IGNORED_CHARACTERS)).partition(":")[0].rstrip(" .")


def _quote_path(value: str) -> str:
    return ascii(value if len(value) <= 80 else f"{value[:80]}…")
