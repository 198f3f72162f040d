"""Completion of the text after `%agentgit` and `%%branch`: commands, options, branches, tags and places."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

from agentgit.errors import AgentGitError
from agentgit.notebook.commands import BRANCH, COMMANDS, SYNC, Argument, split
from agentgit.notebook.target import NotebookNamespace

_MOST = 50
"""The maximum number of checkpoints that are offered; the newest ones."""

_PLACES = ("place", "a", "b", "words")
"""The arguments whose value is a place."""


_MAGIC = re.compile(r"(%agentgit|%%agentgit|%%branch)\s+([^\n]*)", re.DOTALL)
_LAST = re.compile(r"""'[^']*$|"[^"]*$|[^\s'"]*$""")
"""The word at the cursor, with its opening quote if it has one."""


def complete(names: NotebookNamespace, text: str) -> tuple[str, list[str]] | None:
    """Return the word at the cursor, and its completions.

    Args:
        names: The notebook's variables.
        text: The text up to the cursor.

    Returns:
        The word and its completions; None if the text is not an agentgit magic.
    """
    written = _MAGIC.fullmatch(text)
    if written is None:
        return None
    magic, line = written.groups()
    last = _LAST.search(line)  # it always matches, if only the empty string at the end
    begun = last[0] if last is not None else ""
    before = line.removesuffix(begun)
    try:
        found = list(_completions(names, magic, split(before)))
    except AgentGitError:  # no session yet, or an open quote: typing must not raise errors
        return begun, []
    plain = begun.lstrip("\"'")
    return begun, [_quoted(one) for one in found if one.startswith(plain)]


def _quoted(text: str) -> str:
    """Quote a name that is empty or contains spaces, quotes or backslashes."""
    return text if not set(text) & set(" \t\n\\\"'") and text else shlex.quote(text)


def _completions(names: NotebookNamespace, magic: str, before: list[str]) -> Iterator[str]:
    if magic == "%%branch":
        yield from _argument_completions(names, BRANCH, before, {"--from": "place"})
    elif magic == "%%agentgit":
        yield "live"
    elif not before:
        yield from COMMANDS
    elif before[0] in COMMANDS:
        yield from _argument_completions(names, COMMANDS[before[0]][1], before, {"--delete": "tag"})


def _argument_completions(
    names: NotebookNamespace, arguments: Iterable[Argument], before: list[str], valued: dict[str, str]
) -> Iterator[str]:
    """Yield the values of the option before the cursor if it takes one, otherwise arguments and options."""
    taken = before[-1] if before else ""
    if taken == "--sync":
        yield from SYNC
    elif taken in valued:
        yield from _named(names, valued[taken])
    else:
        for (first, *_), how in arguments:
            if first.startswith("-"):
                yield first
            elif how.get("metavar") != "NAME" or first == "what":
                yield from _named(names, first)


def _named(names: NotebookNamespace, what: str) -> Iterator[str]:
    """Yield the names that one kind of argument accepts."""
    if what == "what":
        yield from names.choices()
        return
    about = names.target()
    session = about.session
    if what in (*_PLACES, "branch"):
        yield from (branch.name for branch in session.branches())
    if what in (*_PLACES, "tag"):
        yield from (tag.name for tag in session.tags())
    if what in _PLACES:
        points = session.log(branch=about.branch_id).page(_MOST)
        yield from ("HEAD", "HEAD~1")
        yield from dict.fromkeys(point.checkpoint_name for point in points if point.checkpoint_name)
        yield from (point.metadata["reference"] for point in points)
