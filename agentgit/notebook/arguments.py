"""The arguments of `%agentgit` and `%%branch`, their parsers and their help."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from agentgit.checkpoints import references
from agentgit.errors import InvalidInput, NotFound
from agentgit.render.text import Line, Span

Argument = tuple[tuple[str, ...], dict[str, Any]]


def _argument(*names: str, **how: Any) -> Argument:
    return names, how


def count(text: str) -> int:
    """Parse a whole number from 1 to 999,999."""
    if not 0 < int(text) < 10**6:
        raise ValueError(text)
    return int(text)


SYNC_CHOICES = ("world", "note", "ignore")
"""The choices for a world that another branch has changed."""

_FORCE = _argument("--force", action="store_true")
_YES = _argument("--yes", "-y", action="store_true")
SESSION = _argument("--session", metavar="NAME")
_SYNC = _argument("--sync", choices=SYNC_CHOICES, metavar="HOW")
_LIMIT = _argument("-n", "--limit", type=count, metavar="N")
_REF = _argument("ref", metavar="REF")

COMMANDS: dict[str, tuple[str, tuple[Argument, ...]]] = {
    "status": ("Show the session, the branch, its head and the tree.", ()),
    "log": (
        "List the checkpoints of the branch, newest first.",
        (
            _LIMIT,
            _argument("--name", metavar="NAME"),
            _argument("--since", metavar="TIME"),
            _argument("--until", metavar="TIME"),
            _argument("--tag", metavar="TAG"),
            _argument("--all-branches", action="store_true"),
        ),
    ),
    "tree": ("Draw the tree of the branches.", ()),
    "branches": ("List the branches.", ()),
    "tool-track": ("List the tool calls of the branch, oldest first.", (_LIMIT,)),
    "search": (
        "Find messages, tool calls and named checkpoints.",
        (_argument("text", nargs="+", metavar="TEXT"), _argument("--all-branches", action="store_true")),
    ),
    "diff": (
        "Compare two checkpoints; by default, show what the last turn changed.",
        (_argument("a", nargs="?", metavar="A"), _argument("b", nargs="?", metavar="B")),
    ),
    "compare": ("Show what this branch and another one did since they diverged.", (_REF,)),
    "stats": ("Count checkpoints, calls, tokens and reversals.", ()),
    "checkpoint": (
        "Save the current point as a checkpoint.",
        (_argument("name", nargs="?", metavar="NAME"), _argument("--description", metavar="TEXT")),
    ),
    "tag": (
        "Tag a checkpoint; without a name, list the tags.",
        (_argument("words", nargs="*", metavar="[REF] NAME"), _argument("--delete", metavar="NAME")),
    ),
    "plan": ("Show what a rollback would do, without doing it.", (_REF,)),
    "rollback": (
        "Roll back to a checkpoint on a new branch; the agent's variable moves there.",
        (_REF, _argument("--name", metavar="BRANCH"), _FORCE, _YES),
    ),
    "undo": (
        "Go back one turn, or N turns.",
        (_argument("steps", nargs="?", type=count, default=1, metavar="N"), _FORCE, _YES),
    ),
    "redo": ("Take back the last undo or rollback.", (_FORCE, _YES)),
    "switch": (
        "Switch to another branch; the agent's variable moves there.",
        (_argument("branch", metavar="BRANCH"), _SYNC, _FORCE, _YES),
    ),
    "trust": (
        "Load your modules with tools and undo functions, to reverse calls and run them again.",
        (_argument("modules", nargs="+", metavar="MODULE"),),
    ),
    "use": (
        "Choose an agent or a repository by its variable, or a session by its name.",
        (_argument("what", nargs="?", metavar="NAME"),),
    ),
    "help": ("List the commands.", ()),
}

WITH_SESSION = COMMANDS.keys() - {"trust", "use", "help"}
"""The commands that have the option `--session`."""

BRANCH = (
    _argument("name", metavar="NAME"),
    _argument("--from", dest="ref", metavar="REF"),
    _SYNC,
    _FORCE,
    _YES,
    SESSION,
)
"""The arguments of `%%branch`."""

HELP_NOTES = (
    "%%branch NAME [--from REF] [--sync HOW] runs the cell on a new branch, and then returns to this one.",
    "%%agentgit live draws the tree while the cell runs.",
    "REF is a checkpoint: main#3, HEAD~1, a branch, a name, a tag, an id, or message:ID, before a user's message.",
    "TIME is like 2026-11-21, '2026-11-21 14:30', or 5m, 2h or 3d ago.",
    "HOW is world (undo calls of other branches and run this one's again), note (tell the model) or ignore.",
    "--force keeps effects that cannot be reversed, and restores files that others have changed.",
    "--session NAME names the session, or the variable of its agent, for one command; use NAME for all that follow.",
    "--yes does not ask before effects are reversed or calls run again.",
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
    """Return the argument parser of one command."""
    result = _Parser(prog=prog, add_help=False, allow_abbrev=False)
    for names, options in arguments:
        result.add_argument(*names, **options)
    return result


def split(line: str) -> list[str]:
    """Split a line into words; a name with spaces needs quotes."""
    try:
        return shlex.split(line)
    except ValueError as error:
        raise InvalidInput(f"Invalid command: {error}. Close each quote that you open.") from error


def parse(line: str) -> tuple[str, argparse.Namespace]:
    """Parse the text after `%agentgit`.

    Example:
        >>> name, asked = parse('rollback "before payment" --force')
        >>> name, asked.ref, asked.force
        ('rollback', 'before payment', True)
    """
    name, *words = split(line) or ["status"]
    if {"-h", "--help"} & {name, *words}:
        name, words = "help", []
    if name not in COMMANDS:
        similar = references.similar_names(name, COMMANDS)
        raise NotFound(f"There is no command %agentgit {name}. %agentgit help lists the commands.", near=similar)
    return name, parser(f"%agentgit {name}", arguments_of(name)).parse_args(words)


def arguments_of(name: str) -> tuple[Argument, ...]:
    """Return the arguments of a command, and `--session` if it acts on one."""
    return (*COMMANDS[name][1], SESSION) if name in WITH_SESSION else COMMANDS[name][1]


def parse_branch(line: str) -> argparse.Namespace:
    """Parse the text after `%%branch`."""
    return parser("%%branch", BRANCH).parse_args(split(line))


def help_lines() -> list[Line]:
    """Return the help as lines: the usage of each command, and below it what it does."""
    lines: list[Line] = []
    for name, (help_text, arguments) in COMMANDS.items():
        usage = parser(name, arguments).usage_line.removeprefix("Usage: ")
        lines += [(Span(usage, "reference"),), (Span(f"    {help_text}"),)]
    return [*lines, *((Span(note, "dim"),) for note in HELP_NOTES)]
