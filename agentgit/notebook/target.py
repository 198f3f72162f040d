"""Whom a magic is about: an agent or a repository in the notebook's names, and a session of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentgit.checkpoints import references
from agentgit.errors import InvalidInput, NotFound
from agentgit.repository import Repository

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.handles.context import Context
    from agentgit.handles.session import Session

_PLACES = {"agent": ("agentgit.agents.agent", "RollbackAgent"), "repository": ("agentgit.repository", "Repository")}


@dataclass(frozen=True)
class MagicTarget:
    """A session to look at, and the agent that runs it if there is one.

    Args:
        session: The session.
        branch_id: The branch; None for the current one.
        agent: The agent that runs it; None if there is only a repository.
        variable: The name of that agent in the notebook.
    """

    session: Session
    branch_id: int | None = None
    agent: RollbackAgent | None = None
    variable: str | None = None

    def require_agent(self) -> tuple[RollbackAgent, str]:
        """Return the agent and what it is called.

        Raises:
            InvalidInput: There is only a repository.
        """
        if self.agent is None or self.variable is None:
            raise InvalidInput("This needs an agent. Create one: agent = repo.wrap(graph, session=...)")
        return self.agent, self.variable


class Names:
    """The names of a notebook, and what was chosen of them.

    Args:
        names: The targets that the names stand for; checkouts and rollbacks change them.
    """

    def __init__(self, names: MutableMapping[str, Any]) -> None:
        self.names = names
        self.chosen: str | None = None

    def subject(self) -> MagicTarget:
        """Find whom a magic is about: who was chosen; else the agent that ran or was made last; else a repository.

        Raises:
            NotFound: There is none.
        """
        if self.chosen is not None:
            return self._called(self.chosen)
        agents = list(self._of("agent"))
        if agents:
            return _of_agent(*max(agents, key=lambda pair: pair[1].moved_at))
        return _of_session(self.repository(), None)

    def use(self, name: str | None) -> MagicTarget:
        """Choose whom magics are about: a name in the notebook, or a session; None for whoever ran last.

        Raises:
            NotFound: There is neither.
        """
        found = self._called(name) if name is not None else None
        self.chosen = name
        return found or self.subject()

    def choices(self) -> list[str]:
        """List what `use` takes: the names of agents and repositories, and the sessions."""
        known = [variable for kind in _PLACES for variable, _ in self._of(kind)]
        return [*known, *(session.session_name for session in self.repository().sessions())]

    def _called(self, name: str) -> MagicTarget:
        for variable, agent in self._of("agent"):
            if variable == name:
                return _of_agent(variable, agent)
        repositories = dict(self._of("repository"))
        if name in repositories:
            return _of_session(repositories[name], None)
        known = [variable for kind in _PLACES for variable, _ in self._of(kind)]
        try:
            return _of_session(self.repository(), name)
        except NotFound as error:
            raise NotFound(
                f"There is no agent, repository or session called {name!r}. "
                "%agentgit use without a name takes the agent that ran last.",
                near=references.near(name, known) or error.near,
            ) from error

    def repository(self) -> Repository:
        """Return the repository of the notebook: one with its own name, or that of the agent that ran last."""
        agents = sorted((agent for _, agent in self._of("agent")), key=lambda agent: agent.moved_at)
        found: list[Repository] = [one for _, one in self._of("repository")] or [
            Repository(one.session.context, is_borrowed=True) for one in agents
        ]
        if not found:
            raise NotFound("There is no agent here yet. Create one: agent = repo.wrap(graph, session=...)")
        return found[-1]

    def _of(self, kind: str) -> Iterator[tuple[str, Any]]:
        """List the names of one kind of thing; not those under which IPython keeps what cells gave.

        What was closed counts only if there is nothing else.
        """
        module, name = _PLACES[kind]
        wanted = getattr(sys.modules.get(module), name, None)
        if wanted is not None:  # else nobody can have made one
            found = [(variable, value) for variable, value in _plain(self.names).items() if isinstance(value, wanted)]
            yield from [one for one in found if not _context_of(kind, one[1]).store.database.is_closed] or found


def _context_of(kind: str, found: Any) -> Context:
    context: Context = found.session.context if kind == "agent" else found.context
    return context


def _plain(names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if not name.startswith("_")}


def _of_agent(variable: str, agent: RollbackAgent) -> MagicTarget:
    return MagicTarget(agent.session, agent.branch_id, agent, variable)


def _of_session(repository: Repository, session: str | None) -> MagicTarget:
    return MagicTarget(repository.session(session))
