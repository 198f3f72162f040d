"""The target of a magic: an agent or repository in the notebook's variables, and one of its sessions."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentgit.checkpoints import references
from agentgit.errors import Ambiguous, InvalidInput, NotFound
from agentgit.repository import Repository

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.handles.context import Context
    from agentgit.handles.session import Session

_CLASSES = {"agent": ("agentgit.agents.agent", "RollbackAgent"), "repository": ("agentgit.repository", "Repository")}


@dataclass(frozen=True)
class MagicTarget:
    """The session that a magic applies to, and the agent that runs it if there is one."""

    session: Session
    branch_id: int | None = None
    agent: RollbackAgent | None = None
    variable: str | None = None
    others: tuple[str, ...] = ()

    @property
    def branch_name(self) -> str:
        """The name of the branch."""
        return self.session.branch(self.branch_id).name

    def require_chosen(self) -> None:
        """Check that a command can only mean this session."""
        if self.others:
            raise Ambiguous(
                "There are several sessions, and this command changes one. Name it: --session NAME, or first "
                "%agentgit use NAME.",
                candidates=tuple(map(shlex.quote, (self.variable or self.session.reference, *self.others))),
            )

    def require_agent(self) -> tuple[RollbackAgent, str]:
        """Return the agent and the name of its variable."""
        if self.agent is None or self.variable is None:
            raise InvalidInput("This needs an agent. Create one: agent = repo.wrap(graph, session=...)")
        return self.agent, self.variable


class NotebookNamespace:
    """The variables of a notebook, and the target that was chosen with `%agentgit use`."""

    def __init__(self, names: MutableMapping[str, Any]) -> None:
        self.names = names
        self.chosen: str | None = None

    def target(self, name: str | None = None) -> MagicTarget:
        """Return the named or chosen target, else the agent that ran or was created last, else a repository."""
        if (named := name or self.chosen) is not None:
            return self._find_target(named)
        agents = sorted(self._variables("agent"), key=lambda pair: pair[1].moved_at, reverse=True)
        if not agents:
            return _of_newest_session(self.repository())
        others = [variable for variable, agent in agents if agent.session != agents[0][1].session]
        return replace(_of_agent(*agents[0]), others=tuple(others))

    def use(self, name: str | None) -> MagicTarget:
        """Choose the target of magics by a variable or session name; None for the agent that ran last."""
        target = self._find_target(name) if name is not None else None
        self.chosen = name
        return target or self.target()

    def choices(self) -> list[str]:
        """Return the names that `use` accepts: variables of agents and repositories, and sessions."""
        variables = [variable for kind in _CLASSES for variable, _ in self._variables(kind)]
        return [*variables, *(session.session_name for session in self.repository().sessions())]

    def _find_target(self, name: str) -> MagicTarget:
        for variable, agent in self._variables("agent"):
            if variable == name:
                return _of_agent(variable, agent)
        repositories = dict(self._variables("repository"))
        if name in repositories:
            return _of_session(repositories[name], None)
        variables = [variable for kind in _CLASSES for variable, _ in self._variables(kind)]
        try:
            return _of_session(self.repository(), name)
        except NotFound as error:
            raise NotFound(
                f"There is no agent, repository or session called {name!r}. "
                "%agentgit use without a name takes the agent that ran last.",
                near=references.similar_names(name, variables) or error.near,
            ) from error

    def repository(self) -> Repository:
        """Return the repository of the notebook: one in a variable, otherwise that of the agent that ran last."""
        agents = sorted((agent for _, agent in self._variables("agent")), key=lambda agent: agent.moved_at)
        repositories: list[Repository] = [one for _, one in self._variables("repository")] or [
            Repository(one.session.context, is_borrowed=True) for one in agents
        ]
        if not repositories:
            raise NotFound("There is no agent here yet. Create one: agent = repo.wrap(graph, session=...)")
        return repositories[-1]

    def _variables(self, kind: str) -> Iterator[tuple[str, Any]]:
        """Yield the variables of one kind with their values, without those in which IPython keeps the results of cells.

        Values whose database is closed are yielded only if there are no others.
        """
        module, name = _CLASSES[kind]
        target_class = getattr(sys.modules.get(module), name, None)
        if target_class is not None:  # otherwise the class was never imported, so there is no instance
            matches = [
                (variable, value)
                for variable, value in _user_variables(self.names).items()
                if isinstance(value, target_class)
            ]
            yield from [pair for pair in matches if not _context_of(kind, pair[1]).store.database.is_closed] or matches


def _context_of(kind: str, value: Any) -> Context:
    context: Context = value.session.context if kind == "agent" else value.context
    return context


def _user_variables(names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if not name.startswith("_")}


def _of_agent(variable: str, agent: RollbackAgent) -> MagicTarget:
    return MagicTarget(agent.session, agent.branch_id, agent, variable)


_MAX_OTHERS = 5
"""The maximum number of other sessions that a message names."""


def _of_newest_session(repository: Repository) -> MagicTarget:
    newest, *others = repository.sessions(_MAX_OTHERS + 1) or [None]
    target = _of_session(repository, newest.reference if newest is not None else None)
    return replace(target, others=tuple(other.reference for other in others if other is not None))


def _of_session(repository: Repository, session: str | None) -> MagicTarget:
    return MagicTarget(repository.session(session))
