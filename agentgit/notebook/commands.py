"""The commands of `%agentgit`: their arguments, and the functions that return the value to display."""

from __future__ import annotations

import argparse
import shlex
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from agentgit.checkpoints import references
from agentgit.checkpoints.checkpoint import Checkpoints
from agentgit.effects.invocation import ToolTrack
from agentgit.errors import InvalidInput, NotFound
from agentgit.notebook.target import MagicTarget, NotebookNamespace
from agentgit.render import html
from agentgit.render.text import Line, Span, clean, plain, table
from agentgit.render.views import lists

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent

Argument = tuple[tuple[str, ...], dict[str, Any]]


def _argument(*names: str, **how: Any) -> Argument:
    return names, how


def count(text: str) -> int:
    """Parse a whole number from 1 to 999,999.

    Raises:
        ValueError: The text is not such a number.
    """
    if not 0 < int(text) < 10**6:
        raise ValueError(text)
    return int(text)


SYNC_CHOICES = ("world", "note", "ignore")
"""The choices for a world that another branch has changed."""

_FORCE = _argument("--force", action="store_true")
_SYNC = _argument("--sync", choices=SYNC_CHOICES, metavar="HOW")
_LIMIT = _argument("-n", "--limit", type=count, metavar="N")
_REF = _argument("ref", metavar="REF")

COMMANDS: dict[str, tuple[str, tuple[Argument, ...]]] = {
    "status": ("Show the session, the branch, its head and the tree.", ()),
    "log": ("List the checkpoints of the branch, newest first.", (_LIMIT,)),
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
        (_REF, _argument("--name", metavar="BRANCH"), _FORCE),
    ),
    "undo": (
        "Go back one turn, or N turns.",
        (_argument("steps", nargs="?", type=count, default=1, metavar="N"), _FORCE),
    ),
    "redo": ("Take back the last undo or rollback.", (_FORCE,)),
    "switch": (
        "Switch to another branch; the agent's variable moves there.",
        (_argument("branch", metavar="BRANCH"), _SYNC, _FORCE),
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

BRANCH = (_argument("name", metavar="NAME"), _argument("--from", dest="ref", metavar="REF"), _SYNC, _FORCE)
"""The arguments of `%%branch`."""

HELP_NOTES = (
    "%%branch NAME [--from REF] [--sync HOW] runs the cell on a new branch, and then returns to this one.",
    "%%agentgit live draws the tree while the cell runs.",
    "REF is a checkpoint: main#3, HEAD~1, a branch, a name, a tag, an id, or message:ID, before a user's message.",
    "HOW is world (undo calls of other branches and run this one's again), note (tell the model) or ignore.",
    "--force keeps effects that cannot be reversed, and restores files that others have changed.",
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
    """Split a line into words; a name with spaces needs quotes.

    Raises:
        InvalidInput: A quote is not closed.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise InvalidInput(f"Invalid command: {error}. Close each quote that you open.") from error


def parse(line: str) -> tuple[str, argparse.Namespace]:
    """Parse the text after `%agentgit`.

    Raises:
        NotFound: There is no such command; the error suggests similar ones.
        InvalidInput: The command does not take these arguments.

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
    return name, parser(f"%agentgit {name}", COMMANDS[name][1]).parse_args(words)


def parse_branch(line: str) -> argparse.Namespace:
    """Parse the text after `%%branch`.

    Raises:
        InvalidInput: It does not take these arguments.
    """
    return parser("%%branch", BRANCH).parse_args(split(line))


def help_lines(width: int = 100) -> list[Line]:
    """Return the help as lines."""
    rows = [
        [Span(parser(name, arguments).usage_line.removeprefix("Usage: "), "reference"), Span(help_text)]
        for name, (help_text, arguments) in COMMANDS.items()
    ]
    return [*table(rows, width=width, wrap_last=True), *((Span(note, "dim"),) for note in HELP_NOTES)]


class DisplayLines:
    """Lines of text that display themselves in a notebook.

    Args:
        lines: The lines to show.
    """

    def __init__(self, *lines: Line) -> None:
        self._lines = lines

    def __repr__(self) -> str:
        return plain(self._lines)

    def _repr_html_(self) -> str:
        return html.pre(self._lines)


class Command(NamedTuple):
    """A command with its parsed arguments.

    Args:
        names: The notebook's variables.
        arguments: The parsed arguments.
        display: A function that displays a value in addition to the result of the command.
    """

    names: NotebookNamespace
    arguments: Namespace
    display: Callable[[Any], None]

    @property
    def target(self) -> MagicTarget:
        """The session and branch that the command applies to, and their agent if there is one."""
        return self.names.target()


def run_command(name: str, command: Command) -> Any:
    """Run a command, and return the value to display.

    Raises:
        AgentGitError: The operation behind the command failed.
    """
    return _HANDLERS[name](command)


# -- read-only commands


def _status(command: Command) -> Any:
    target = command.target
    if target.agent is not None:
        return target.agent
    branch = target.session.branch()
    head = target.session.get_checkpoint("HEAD") if branch.checkpoint_count else None
    command.display(DisplayLines(*lists.status_lines(target.session.info, branch, head)))
    return target.session.tree()


def _log(command: Command) -> Any:
    target, limit = command.target, command.arguments.limit
    log = target.session.log(branch=target.branch_id)
    return log if limit is None else Checkpoints(log.page(limit).items[::-1])


def _tool_track(command: Command) -> Any:
    target = command.target
    return ToolTrack(target.session.tool_track(branch=target.branch_id)[-(command.arguments.limit or 0) :])


def _search(command: Command) -> Any:
    text, everywhere = " ".join(command.arguments.text), command.arguments.all_branches
    return command.target.session.search(text, branch=command.target.branch_id, all_branches=everywhere)


def _diff(command: Command) -> Any:
    target = command.target
    session, branch = target.session, target.branch_id
    start = command.arguments.a or session.plan_undo(branch=branch).checkpoint_id
    a, b = (session.get_checkpoint(ref, branch=branch) for ref in (start, command.arguments.b or "HEAD"))
    return session.diff(a, b)


def _compare(command: Command) -> Any:
    return command.target.require_agent()[0].compare(command.arguments.ref)


def _plan(command: Command) -> Any:
    return command.target.session.plan_rollback(command.arguments.ref, branch=command.target.branch_id)


# -- checkpoints and tags


def _checkpoint(command: Command) -> Any:
    arguments, target = command.arguments, command.target
    if target.agent is None:
        return target.session.checkpoint(arguments.name, description=arguments.description)
    return target.agent.checkpoint(arguments.name, description=arguments.description)


def _tag(command: Command) -> Any:
    session, branch = command.target.session, command.target.branch_id
    if len(command.arguments.words) > 2:
        raise InvalidInput("Write at most a reference and a name; put quotes around a name with spaces.")
    if command.arguments.delete is not None:
        session.untag(command.arguments.delete)
    if command.arguments.words:
        *ref, name = command.arguments.words
        session.tag(ref[0] if ref else "HEAD", name, branch=branch)
    return session.tags()


# -- rollback and switch


def _move_agent(command: Command, move: Callable[[RollbackAgent], RollbackAgent]) -> Any:
    """Call `move`, assign the agent that it returns to the variable, and return the agent's report."""
    agent, variable = command.target.require_agent()
    moved_agent = move(agent)
    _assign_agent(command, variable, moved_agent)
    return moved_agent.report


def _assign_agent(command: Command, variable: str, agent: RollbackAgent) -> None:
    command.names.names[variable] = agent
    command.display(
        DisplayLines((Span(variable, "reference"), Span(" is on branch "), Span(clean(agent.branch.name), "head")))
    )


def _rollback(command: Command) -> Any:
    arguments, target = command.arguments, command.target
    if target.agent is not None:
        return _move_agent(
            command, lambda agent: agent.rollback(arguments.ref, name=arguments.name, force=arguments.force)
        )
    return target.session.rollback(arguments.ref, name=arguments.name, force=arguments.force)


def _undo(command: Command) -> Any:
    arguments, target = command.arguments, command.target
    if target.agent is None:
        return target.session.undo(arguments.steps, force=arguments.force)
    return _move_agent(command, lambda agent: agent.undo(arguments.steps, force=arguments.force))


def _redo(command: Command) -> Any:
    arguments, target = command.arguments, command.target
    if target.agent is None:
        return target.session.redo(force=arguments.force)
    return _move_agent(command, lambda agent: agent.redo(force=arguments.force))


def _switch(command: Command) -> Any:
    name, sync, force = command.arguments.branch, command.arguments.sync, command.arguments.force
    target = command.target
    if target.agent is None:
        report = target.session.switch(name, sync=sync, force=force)
        return report if sync is not None else target.session.branch()
    report = _move_agent(command, lambda agent: agent.switch(name, sync, force=force))
    return report if sync is not None else command.target.agent


# -- trust and use


def _trust(command: Command) -> Any:
    command.names.repository().trust(*command.arguments.modules)
    return DisplayLines((Span("trusted: "), Span(clean(", ".join(command.arguments.modules)), "reference")))


def _use(command: Command) -> Any:
    target = command.names.use(command.arguments.what)
    return target.agent if target.agent is not None else target.session


_HANDLERS: dict[str, Callable[[Command], Any]] = {
    "status": _status,
    "log": _log,
    "tree": lambda asked: asked.target.session.tree(),
    "branches": lambda asked: asked.target.session.branches(),
    "tool-track": _tool_track,
    "search": _search,
    "diff": _diff,
    "compare": _compare,
    "stats": lambda asked: asked.target.session.stats(),
    "checkpoint": _checkpoint,
    "tag": _tag,
    "plan": _plan,
    "rollback": _rollback,
    "undo": _undo,
    "redo": _redo,
    "switch": _switch,
    "trust": _trust,
    "use": _use,
    "help": lambda asked: DisplayLines(*help_lines()),
}
"""The function for each command in `COMMANDS`."""
