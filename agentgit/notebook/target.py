"""The agents and repositories in the variables of a notebook, and the names that completion offers for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from agentgit.errors import InvalidInput, NotFound
from agentgit.repository import Repository

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.handles.session import Session


class NotebookNamespace:
    """The variables of a notebook, without those that begin with `_`, in which IPython keeps the results of cells."""

    def __init__(self, names: MutableMapping[str, Any]) -> None:
        self.names = names

    def agents(self) -> list[tuple[str, RollbackAgent]]:
        """Return a variable with an agent for each session; the one that ran or was created last comes first."""
        agents = list(self._variables("agentgit.agents.agent", "RollbackAgent"))
        opened = [pair for pair in agents if not pair[1].session.context.store.database.is_closed] or agents
        newest: dict[Session, tuple[str, RollbackAgent]] = {}
        for variable, agent in sorted(opened, key=lambda pair: pair[1].moved_at, reverse=True):
            newest.setdefault(agent.session, (variable, agent))
        return list(newest.values())

    def agent(self, variable: str | None = None) -> tuple[str, RollbackAgent]:
        """Return the agent of a variable, or the only agent, and its variable."""
        agents = self.agents()
        if not agents:
            raise InvalidInput("This needs an agent. Create one: agent = repo.wrap(graph, session=...)")
        found = [pair for pair in agents if variable in (None, pair[0])]
        if len(found) != 1:
            names = ", ".join(name for name, _ in agents)
            raise InvalidInput(f"There are several sessions. Name the agent of one: --agent NAME. Agents: {names}.")
        return found[0]

    def repository(self) -> Repository:
        """Return the repository of the agent that ran last; without agents, one in a variable."""
        if agents := self.agents():
            return Repository(agents[0][1].session.context, is_borrowed=True)
        repositories: list[Repository] = [one for _, one in self._variables("agentgit.repository", "Repository")]
        opened = [one for one in repositories if not one.context.store.database.is_closed] or repositories
        if not opened:
            raise NotFound("There is no agent here yet. Create one: agent = repo.wrap(graph, session=...)")
        return opened[-1]

    def _variables(self, module: str, name: str) -> Iterator[tuple[str, Any]]:
        target_class = getattr(sys.modules.get(module), name, None)
        if target_class is not None:  # otherwise the class was never imported, so there is no instance
            for variable, value in list(self.names.items()):
                if isinstance(value, target_class) and not variable.startswith("_"):
                    yield variable, value
