"""Syntax of the commands after `%agentgit` and `%%branch`, read as the command line reads them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from agentgit.checkpoints import references
from agentgit.errors import InvalidInput, NotFound
from agentgit.render.lines import Line, Span, table

Argument = tuple[tuple[str, ...], dict[str, Any]]


def _word(*names: str, **how: Any) -> Argument:
    return names, how


def count(text: str) -> int:
    """Read a number from 1.

    Raises:
        ValueError: It is none.
    """
    if not 0 < int(text) < 10**6:
        raise ValueError(text)
    return int(text)


SYNC = ("world", "note", "ignore")
"""The ways to treat a world that another branch has changed."""

_FORCE = _word("--force", action="store_true")
_SYNC = _word("--sync", choices=SYNC, metavar="HOW")
_LIMIT = _word("-n", "--limit", type=count, metavar="N")
_PLACE = _word("place", metavar="PLACE")

FORMS: dict[str, tuple[str, tuple[Argument, ...]]] = {
    "status": ("Show the session, the branch, its head and the tree.", ()),
    "log": ("List the checkpoints of the branch, the newest first.", (_LIMIT,)),
    "tree": ("Draw the branches.", ()),
    "branches": ("List the branches.", ()),
    "track": ("List the tool calls.", (_LIMIT,)),
    "search": (
        "Find what was said, called or named.",
        (_word("text", nargs="+", metavar="TEXT"), _word("--all-branches", action="store_true")),
    ),
    "diff": (
        "Compare two places; else what the last turn changed.",
        (_word("a", nargs="?", metavar="A"), _word("b", nargs="?", metavar="B")),
    ),
    "compare": ("Tell what this branch and PLACE did apart.", (_PLACE,)),
    "stats": ("Count checkpoints, calls, tokens and reversals.", ()),
    "checkpoint": (
        "Save this point under a name.",
        (_word("name", nargs="?", metavar="NAME"), _word("--description", metavar="TEXT")),
    ),
    "tag": (
        "Name a checkpoint for good; else list the tags.",
        (_word("words", nargs="*", metavar="[PLACE] NAME"), _word("--delete", metavar="NAME")),
    ),
    "plan": ("Show what a rollback would do; nothing is done.", (_PLACE,)),
    "rollback": (
        "Go back to a place on a new branch; the agent's name leads there.",
        (_PLACE, _word("--name", metavar="BRANCH"), _FORCE),
    ),
    "undo": ("Go back one turn, or N.", (_word("steps", nargs="?", type=count, default=1, metavar="N"), _FORCE)),
    "redo": ("Take back the last undo or rollback.", (_FORCE,)),
    "checkout": (
        "Continue on another branch; the agent's name leads there.",
        (_word("branch", metavar="BRANCH"), _SYNC, _FORCE),
    ),
    "trust": (
        "Let calls of the tools in your modules be undone and made again.",
        (_word("modules", nargs="+", metavar="MODULE"),),
    ),
    "use": (
        "Say whom this is about: an agent's or repository's name here, or a session.",
        (_word("what", nargs="?", metavar="NAME"),),
    ),
    "help": ("Show this.", ()),
}

BRANCH = (_word("name", metavar="NAME"), _word("--from", dest="place", metavar="PLACE"), _SYNC, _FORCE)
"""The arguments of `%%branch`."""

NOTES = (
    "%%branch NAME [--from PLACE] [--sync HOW] runs the cell on a new branch and comes back.",
    "%%agentgit live draws the tree while the cell runs.",
    "PLACE is like main#3, HEAD~1, a name, a tag or an id. --sync world, note or ignore.",
    "--force: keep what cannot be reversed, and bring back files that others have changed.",
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        quotes = " A name with spaces needs quotes." if message.startswith("unrecognized") else ""
        raise InvalidInput(f"{message}.{quotes} {self.usage_line}")

    @property
    def usage_line(self) -> str:
        """The usage on one line."""
        return " ".join(self.format_usage().split()).replace("usage:", "Usage:")


def parser(prog: str, arguments: Sequence[Argument]) -> _Parser:
    """Make what reads the words of one command."""
    made = _Parser(prog=prog, add_help=False, allow_abbrev=False)
    for names, how in arguments:
        made.add_argument(*names, **how)
    return made


def split(line: str) -> list[str]:
    """Take a line apart; a name with spaces is put in quotes.

    Raises:
        InvalidInput: A quote has no partner.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise InvalidInput(f"That cannot be read: {error}. A quote needs its partner.") from error


def parse(line: str) -> tuple[str, argparse.Namespace]:
    """Read what follows `%agentgit`.

    Raises:
        NotFound: There is no such command; near ones are told.
        InvalidInput: It takes something else.

    Example:
        >>> name, asked = parse('rollback "before payment" --force')
        >>> name, asked.place, asked.force
        ('rollback', 'before payment', True)
    """
    name, *words = split(line) or ["status"]
    if {"-h", "--help"} & {name, *words}:
        name, words = "help", []
    if name not in FORMS:
        near = references.near(name, FORMS)
        raise NotFound(f"There is no %agentgit {name}. %agentgit help lists what there is.", near=near)
    return name, parser(f"%agentgit {name}", FORMS[name][1]).parse_args(words)


def parse_branch(line: str) -> argparse.Namespace:
    """Read what follows `%%branch`.

    Raises:
        InvalidInput: It takes something else.
    """
    return parser("%%branch", BRANCH).parse_args(split(line))


def help_lines(width: int = 100) -> list[Line]:
    """Draw the help."""
    rows = [
        [Span(parser(name, arguments).usage_line.removeprefix("Usage: "), "reference"), Span(said)]
        for name, (said, arguments) in FORMS.items()
    ]
    return [*table(rows, width=width, whole=True), *((Span(note, "dim"),) for note in NOTES)]
