"""Completion of the text after `%agentgit` and `%%branch`: commands, options, branches, tags and checkpoints."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

from agentgit.errors import AgentGitError
from agentgit.notebook.arguments import BRANCH, COMMANDS, SYNC_CHOICES, Argument, arguments_of, split
from agentgit.notebook.target import NotebookNamespace

_MAX_CHECKPOINTS = 50
"""The maximum number of checkpoints that are offered; the newest ones."""

_REF_ARGUMENTS = ("ref", "a", "b", "words")
"""The arguments whose value is a reference to a checkpoint."""


_MAGIC = re.compile(r"(%agentgit|%%agentgit|%%branch)\s+([^\n]*)", re.DOTALL)
_LAST_WORD = re.compile(r"""'[^']*$|"[^"]*$|[^\s'"]*$""")
"""The word at the cursor, with its opening quote if it has one."""


def complete(namespace: NotebookNamespace, text: str) -> tuple[str, list[str]] | None:
    """Return the word at the cursor, and its completions."""
    match = _MAGIC.fullmatch(text)
    if match is None:
        return None
    magic, line = match.groups()
    last_match = _LAST_WORD.search(line)  # it always matches, if only the empty string at the end
    fragment = last_match[0] if last_match is not None else ""
    before = line.removesuffix(fragment)
    try:
        candidates = list(_completions(namespace, magic, split(before)))
    except AgentGitError:  # no session yet, or an open quote: typing must not raise errors
        return fragment, []
    unquoted = fragment.lstrip("\"'")
    return fragment, [_quote(candidate) for candidate in candidates if candidate.startswith(unquoted)]


def _quote(text: str) -> str:
    """Quote a name that is empty or contains spaces, quotes or backslashes."""
    return text if not set(text) & set(" \t\n\\\"'") and text else shlex.quote(text)


def _completions(namespace: NotebookNamespace, magic: str, before: list[str]) -> Iterator[str]:
    if magic == "%%branch":
        yield from _argument_completions(namespace, BRANCH, before, {"--from": "ref", "--session": "what"})
    elif magic == "%%agentgit":
        yield "live"
    elif not before:
        yield from COMMANDS
    elif before[0] in COMMANDS:
        kinds = {"--delete": "tag", "--session": "what"}
        yield from _argument_completions(namespace, arguments_of(before[0]), before, kinds)


def _argument_completions(
    namespace: NotebookNamespace, arguments: Iterable[Argument], before: list[str], value_kinds: dict[str, str]
) -> Iterator[str]:
    """Yield the values of the option before the cursor if it takes one, otherwise arguments and options."""
    last_word = before[-1] if before else ""
    if last_word == "--sync":
        yield from SYNC_CHOICES
    elif last_word in value_kinds:
        yield from _name_completions(namespace, value_kinds[last_word])
    else:
        for (first, *_), options in arguments:
            if first.startswith("-"):
                yield first
            elif options.get("metavar") != "NAME" or first == "what":
                yield from _name_completions(namespace, first)


def _name_completions(namespace: NotebookNamespace, kind: str) -> Iterator[str]:
    """Yield the names that one kind of argument accepts."""
    if kind == "what":
        yield from namespace.choices()
        return
    target = namespace.target()
    session = target.session
    if kind in (*_REF_ARGUMENTS, "branch"):
        yield from (branch.name for branch in session.branches())
    if kind in (*_REF_ARGUMENTS, "tag"):
        yield from (tag.name for tag in session.tags())
    if kind in _REF_ARGUMENTS:
        points = session.log(branch=target.branch_id).page(_MAX_CHECKPOINTS)
        yield from ("HEAD", "HEAD~1")
        yield from dict.fromkeys(point.checkpoint_name for point in points if point.checkpoint_name)
        yield from (point.metadata["reference"] for point in points)
