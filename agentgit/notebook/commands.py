"""The commands of `%agentgit`: each returns a value that displays itself."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from agentgit.checkpoints.checkpoint import Checkpoints
from agentgit.effects.invocation import ToolTrack
from agentgit.errors import InvalidInput
from agentgit.notebook import command_syntax as words
from agentgit.notebook.target import MagicTarget, Names
from agentgit.render import html
from agentgit.render.lines import Line, Span, plain
from agentgit.render.text import clean
from agentgit.render.views import status

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent


class Sheet:
    """Lines that show themselves.

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
    """A command that was written.

    Args:
        names: Those of the notebook.
        words: The words of the command.
        say: A function that shows something beside the result of the command.
    """

    names: Names
    words: Namespace
    say: Callable[[Any], None]

    @property
    def about(self) -> MagicTarget:
        """Whom it is about."""
        return self.names.subject()


def carry_out(name: str, asked: Command) -> Any:
    """Do what a command says; give what it shows.

    Raises:
        AgentGitError: As the verb that it stands for.
    """
    return _DO[name](asked)


# -- looking


def _status(asked: Command) -> Any:
    about = asked.about
    if about.agent is not None:
        return about.agent
    branch = about.session.branch()
    head = about.session.get_checkpoint("HEAD") if branch.checkpoint_count else None
    asked.say(Sheet(*status.lines(about.session.info, branch, head)))
    return about.session.tree()


def _log(asked: Command) -> Any:
    about, limit = asked.about, asked.words.limit
    log = about.session.log(branch=about.branch_id)
    return log if limit is None else Checkpoints(log.page(limit).items[::-1])


def _track(asked: Command) -> Any:
    about = asked.about
    return ToolTrack(about.session.tool_track(branch=about.branch_id)[-(asked.words.limit or 0) :])


def _search(asked: Command) -> Any:
    text, everywhere = " ".join(asked.words.text), asked.words.all_branches
    return asked.about.session.search(text, branch=asked.about.branch_id, all_branches=everywhere)


def _diff(asked: Command) -> Any:
    about = asked.about
    session, branch = about.session, about.branch_id
    before = asked.words.a or session.plan_undo(branch=branch).checkpoint_id
    a, b = (session.get_checkpoint(place, branch=branch) for place in (before, asked.words.b or "HEAD"))
    return session.diff(a, b)


def _compare(asked: Command) -> Any:
    return asked.about.require_agent()[0].compare(asked.words.place)


def _plan(asked: Command) -> Any:
    return asked.about.session.plan_rollback(asked.words.place, branch=asked.about.branch_id)


# -- naming


def _checkpoint(asked: Command) -> Any:
    words, about = asked.words, asked.about
    if about.agent is None:
        return about.session.checkpoint(words.name, description=words.description)
    return about.agent.checkpoint(words.name, description=words.description)


def _tag(asked: Command) -> Any:
    session, branch = asked.about.session, asked.about.branch_id
    if len(asked.words.words) > 2:
        raise InvalidInput("Write at most a place and a name; put quotes around a name with spaces.")
    if asked.words.delete is not None:
        session.untag(asked.words.delete)
    if asked.words.words:
        *place, name = asked.words.words
        session.tag(place[0] if place else "HEAD", name, branch=branch)
    return session.tags()


# -- going back and forth


def _moved(asked: Command, move: Callable[[RollbackAgent], RollbackAgent]) -> Any:
    """Move, let the agent's name lead there, and give the report."""
    agent, variable = asked.about.require_agent()
    made = move(agent)
    _bind(asked, variable, made)
    return made.report


def _bind(asked: Command, variable: str, agent: RollbackAgent) -> None:
    asked.names.names[variable] = agent
    asked.say(Sheet((Span(variable, "reference"), Span(" is on branch "), Span(clean(agent.branch.name), "head"))))


def _rollback(asked: Command) -> Any:
    words, about = asked.words, asked.about
    if about.agent is not None:
        return _moved(asked, lambda agent: agent.rollback(words.place, name=words.name, force=words.force))
    return about.session.rollback(words.place, name=words.name, force=words.force)


def _undo(asked: Command) -> Any:
    words, about = asked.words, asked.about
    if about.agent is None:
        return about.session.undo(words.steps, force=words.force)
    return _moved(asked, lambda agent: agent.undo(words.steps, force=words.force))


def _redo(asked: Command) -> Any:
    words, about = asked.words, asked.about
    if about.agent is None:
        return about.session.redo(force=words.force)
    return _moved(asked, lambda agent: agent.redo(force=words.force))


def _checkout(asked: Command) -> Any:
    name, sync, force = asked.words.branch, asked.words.sync, asked.words.force
    about = asked.about
    if about.agent is None:
        report = about.session.switch(name, sync=sync, force=force)
        return report if sync is not None else about.session.branch()
    report = _moved(asked, lambda agent: agent.switch(name, sync, force=force))
    return report if sync is not None else asked.about.agent


# -- choosing


def _trust(asked: Command) -> Any:
    asked.names.repository().trust(*asked.words.modules)
    return Sheet((Span("trusted: "), Span(clean(", ".join(asked.words.modules)), "reference")))


def _use(asked: Command) -> Any:
    about = asked.names.use(asked.words.what)
    return about.agent if about.agent is not None else about.session


_DO: dict[str, Callable[[Command], Any]] = {
    "status": _status,
    "log": _log,
    "tree": lambda asked: asked.about.session.tree(),
    "branches": lambda asked: asked.about.session.branches(),
    "track": _track,
    "search": _search,
    "diff": _diff,
    "compare": _compare,
    "stats": lambda asked: asked.about.session.stats(),
    "checkpoint": _checkpoint,
    "tag": _tag,
    "plan": _plan,
    "rollback": _rollback,
    "undo": _undo,
    "redo": _redo,
    "checkout": _checkout,
    "trust": _trust,
    "use": _use,
    "help": lambda asked: Sheet(*words.help_lines()),
}
"""The function for each of `words.FORMS`."""
