"""The commands of `%agentgit`: functions that return the value to display."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from agentgit.checkpoints.checkpoint import Checkpoints
from agentgit.effects import RollbackPlan
from agentgit.effects.invocation import ToolTrack
from agentgit.errors import InvalidInput
from agentgit.notebook.arguments import help_lines
from agentgit.notebook.confirmation import confirm
from agentgit.notebook.target import MagicTarget, NotebookNamespace
from agentgit.render import html
from agentgit.render.text import Line, Span, clean, plain
from agentgit.render.views import lists
from agentgit.times import parse_time

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent

_NAME_THEMSELVES = ("status", "trust", "use", "help")
"""The commands whose output names the session itself, or that have none."""

_CHANGING = ("checkpoint", "tag", "rollback", "undo", "redo", "switch")
"""The commands that change a session. If there are several sessions, it must be named."""


class DisplayLines:
    """Lines of text that display themselves in a notebook."""

    def __init__(self, *lines: Line) -> None:
        self._lines = lines

    def __repr__(self) -> str:
        return plain(self._lines)

    def _repr_html_(self) -> str:
        return html.pre(self._lines)


class Command(NamedTuple):
    """A command with its parsed arguments."""

    names: NotebookNamespace
    arguments: Namespace
    display: Callable[[Any], None]

    @property
    def target(self) -> MagicTarget:
        """The session and branch that the command applies to, and their agent if there is one."""
        return self.names.target(getattr(self.arguments, "session", None))

    def confirm(self, question: str, load_plan: Callable[[], RollbackPlan]) -> None:
        """Show a plan and ask, unless the command has `--yes`."""
        if not self.arguments.yes:
            target = self.target
            place = f"session {target.session.reference}, branch {target.branch_name}"
            confirm(clean(f"{question} ({place})"), load_plan, self.display, force=self.arguments.force)


def run_command(name: str, command: Command) -> Any:
    """Show the session and the branch that a command applies to, run it, and return the value to display."""
    if name in _CHANGING and (name != "tag" or command.arguments.words or command.arguments.delete):
        command.target.require_chosen()
    if name not in _NAME_THEMSELVES:
        command.display(target_line(command.target))
    return _HANDLERS[name](command)


def target_line(target: MagicTarget) -> DisplayLines:
    """Return a line that names a session, its branch and the agent's variable."""
    line = [
        Span("session "),
        Span(clean(target.session.reference), "name"),
        Span(", branch "),
        Span(clean(target.branch_name), "head"),
    ]
    if target.variable is not None:
        line += [Span(", variable "), Span(target.variable, "reference")]
    if target.others:
        line += [Span(" "), Span(clean(f"(others: {', '.join(target.others)}; choose with --session NAME)"), "dim")]
    return DisplayLines(tuple(line))


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
    target, arguments, limit = command.target, command.arguments, command.arguments.limit
    log = target.session.log(
        branch=target.branch_id,
        which="all" if arguments.all_branches else "path",
        name=arguments.name,
        since=parse_time(arguments.since),
        until=parse_time(arguments.until),
        tag=arguments.tag,
    )
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


def _plan(command: Command) -> RollbackPlan:
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
        DisplayLines(
            (
                Span(variable, "reference"),
                Span(" is on branch "),
                Span(clean(agent.branch.name), "head"),
                Span(" of session "),
                Span(clean(agent.session.reference), "name"),
            )
        )
    )


def _rollback(command: Command) -> Any:
    arguments, target = command.arguments, command.target
    command.confirm("Roll back?", lambda: _plan(command))
    if target.agent is not None:
        return _move_agent(
            command, lambda agent: agent.rollback(arguments.ref, name=arguments.name, force=arguments.force)
        )
    return target.session.rollback(arguments.ref, name=arguments.name, force=arguments.force)


def _undo(command: Command) -> Any:
    arguments, target = command.arguments, command.target
    command.confirm("Undo?", lambda: target.session.plan_undo(arguments.steps, branch=target.branch_id))
    if target.agent is None:
        return target.session.undo(arguments.steps, force=arguments.force)
    return _move_agent(command, lambda agent: agent.undo(arguments.steps, force=arguments.force))


def _redo(command: Command) -> Any:
    arguments, target = command.arguments, command.target
    command.confirm("Redo?", lambda: target.session.plan_redo(branch=target.branch_id))
    if target.agent is None:
        return target.session.redo(force=arguments.force)
    return _move_agent(command, lambda agent: agent.redo(force=arguments.force))


def _switch(command: Command) -> Any:
    name, sync, force = command.arguments.branch, command.arguments.sync, command.arguments.force
    target = command.target
    if sync == "world":
        command.confirm("Switch?", lambda: target.session.plan_switch(name))
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
