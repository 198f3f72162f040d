"""The commands of `%agentgit`: each returns a value that displays itself."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from agentgit.checkpoints.checkpoint import Checkpoints
from agentgit.effects.invocation import ToolTrack
from agentgit.errors import InvalidInput
from agentgit.notebook import command_syntax as words
from agentgit.notebook.target import Names, Target
from agentgit.render import html, status
from agentgit.render.lines import Line, Span, plain
from agentgit.render.text import clean

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
    def about(self) -> Target:
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
    repo, session = about.repository, about.session_id
    branch = repo.branch(session)
    head = repo.checkpoint("HEAD", session) if branch.checkpoint_count else None
    asked.say(Sheet(*status.lines(repo.session(session), branch, head)))
    return repo.tree(session)


def _log(asked: Command) -> Any:
    log, limit = asked.about.repository.log(*asked.about.path), asked.words.limit
    return log if limit is None else Checkpoints(log.page(limit).items[::-1])


def _track(asked: Command) -> Any:
    return ToolTrack(asked.about.repository.tool_track(*asked.about.path)[-(asked.words.limit or 0) :])


def _search(asked: Command) -> Any:
    text, everywhere = " ".join(asked.words.text), asked.words.all_branches
    return asked.about.repository.search(text, *asked.about.path, all_branches=everywhere)


def _diff(asked: Command) -> Any:
    about = asked.about
    repo, (session, branch) = about.repository, about.path
    before = asked.words.a or repo.plan_undo(1, session, branch=branch).checkpoint_id
    a, b = (repo.checkpoint(place, session, branch=branch) for place in (before, asked.words.b or "HEAD"))
    return repo.diff(a, b)


def _compare(asked: Command) -> Any:
    return asked.about.expect_agent()[0].compare(asked.words.place)


def _plan(asked: Command) -> Any:
    session, branch = asked.about.path
    return asked.about.repository.plan_rollback(asked.words.place, session, branch=branch)


# -- naming


def _checkpoint(asked: Command) -> Any:
    words, about = asked.words, asked.about
    if about.agent is None:
        return about.repository.add_checkpoint(words.name, about.session_id, description=words.description)
    return about.agent.checkpoint(words.name, description=words.description)


def _tag(asked: Command) -> Any:
    repo, (session, branch) = asked.about.repository, asked.about.path
    if len(asked.words.words) > 2:
        raise InvalidInput("Write at most a place and a name; put quotes around a name with spaces.")
    if asked.words.delete is not None:
        repo.untag(asked.words.delete, session)
    if asked.words.words:
        *place, name = asked.words.words
        repo.tag(place[0] if place else "HEAD", name, session, branch=branch)
    return repo.tags(session)


# -- going back and forth


def _moved(asked: Command, move: Callable[[RollbackAgent], RollbackAgent]) -> Any:
    """Move, let the agent's name lead there, and give the report."""
    agent, variable = asked.about.expect_agent()
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
    return about.repository.rollback(words.place, about.session_id, name=words.name, force=words.force)


def _undo(asked: Command) -> Any:
    words, about = asked.words, asked.about
    if about.agent is None:
        return about.repository.undo(words.steps, about.session_id, force=words.force)
    return _moved(asked, lambda agent: agent.undo(words.steps, force=words.force))


def _redo(asked: Command) -> Any:
    words, about = asked.words, asked.about
    if about.agent is None:
        return about.repository.redo(about.session_id, force=words.force)
    return _moved(asked, lambda agent: agent.redo(force=words.force))


def _checkout(asked: Command) -> Any:
    name, sync, force = asked.words.branch, asked.words.sync, asked.words.force
    about = asked.about
    if about.agent is None:
        return about.repository.switch(name, about.session_id, sync=sync, force=force) or about.repository.branch(
            about.session_id
        )
    # A twin moves, so that other names of this agent stay where they are.
    report = _moved(asked, lambda agent: agent.at(agent.branch_id).switch(name, sync, force=force))
    return report if sync is not None else asked.about.agent


# -- choosing


def _trust(asked: Command) -> Any:
    asked.about.repository.trust(*asked.words.modules)
    return Sheet((Span("trusted: "), Span(clean(", ".join(asked.words.modules)), "reference")))


def _use(asked: Command) -> Any:
    about = asked.names.use(asked.words.what)
    return about.agent if about.agent is not None else about.repository.session(about.session_id)


_DO: dict[str, Callable[[Command], Any]] = {
    "status": _status,
    "log": _log,
    "tree": lambda asked: asked.about.repository.tree(asked.about.session_id),
    "branches": lambda asked: asked.about.repository.branches(asked.about.session_id),
    "track": _track,
    "search": _search,
    "diff": _diff,
    "compare": _compare,
    "stats": lambda asked: asked.about.repository.stats(asked.about.session_id),
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
