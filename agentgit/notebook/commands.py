"""`%agentgit`: the commands of the command line, run in this process on the notebook's repository."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from agentgit.cli.app import complete_in, quote_word, run_in
from agentgit.cli.completion import NamesHere
from agentgit.errors import AgentGitError, InvalidInput, NotFound
from agentgit.handles.session import Session
from agentgit.next_steps import Face, Next
from agentgit.render import html
from agentgit.render.text import clean, place
from agentgit.render.view import Medium, Span, View
from agentgit.repository import Repository

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.sessions import InternalSession


class NotebookNamespace:
    """The variables of a notebook, without those that begin with `_`, in which IPython keeps the results of cells."""

    def __init__(self, names: MutableMapping[str, Any]) -> None:
        self.names = names

    def agents(self) -> list[tuple[str, RollbackAgent]]:
        """Return a variable with an agent for each session; the one that ran or was created last comes first."""
        agents = list(self._variables("agentgit.agents.agent", "RollbackAgent"))
        opened = [pair for pair in agents if not pair[1].session.context.store.database.is_closed] or agents
        newest: dict[Session, tuple[str, RollbackAgent]] = {}
        for variable, agent in sorted(opened, key=lambda pair: pair[1]._runner.moved_at, reverse=True):
            newest.setdefault(agent.session, (variable, agent))
        return list(newest.values())

    def agent(self, variable: str | None = None) -> tuple[str, RollbackAgent]:
        """Return the agent of a variable, or the only agent, and its variable."""
        agents = self.agents()
        if not agents:
            raise InvalidInput("This needs an agent, in a variable.", Next("wrap"))
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
            raise NotFound("There is no agent here yet, in a variable.", Next("wrap"))
        return opened[-1]

    def _variables(self, module: str, name: str) -> Iterator[tuple[str, Any]]:
        target_class = getattr(sys.modules.get(module), name, None)
        if target_class is not None:  # otherwise the class was never imported, so there is no instance
            for variable, value in list(self.names.items()):
                if isinstance(value, target_class) and not variable.startswith("_"):
                    yield variable, value


class DisplayedView:
    medium = Medium(face="notebook")

    def __init__(self, view: View) -> None:
        self._view = view

    def __repr__(self) -> str:
        return self.medium.text(self._view)

    def _repr_html_(self) -> str:
        return html.page(self._view, self.medium)


class Notebook:
    """The notebook that runs a command: the `Host` of the command line."""

    face: Face = "notebook"

    yes = False

    def __init__(self, namespace: NotebookNamespace, display: Callable[[Any], None]) -> None:
        self._namespace, self._display = namespace, display
        self._agents = namespace.agents()
        self._waiting: list[Any] = []
        self._is_named = False

    def repository(self) -> Repository:
        return self._namespace.repository()

    def session(self, *, changes: bool) -> tuple[Session, str] | None:
        if not self._agents or (changes and len(self._agents) > 1):
            return None
        variable, agent = self._agents[0]
        branch = agent.branch.name
        if not self._is_named:
            self._is_named = True
            self._display(target_line(agent.session, branch, variable))
        return agent.session, branch

    def show(self, value: Any, view: View) -> None:
        self.display_waiting()
        self._waiting.append(DisplayedView(view) if value is None else value)

    def ask(self, question: str) -> bool:
        self.display_waiting()
        try:
            answer = input(f"{question} [y/N] ")
        except (EOFError, OSError, RuntimeError) as error:  # no terminal, or a kernel without an input box
            raise InvalidInput(f"Nothing was changed, because nobody can answer here: {question} Add --yes.") from error
        return answer.strip().lower() in ("y", "yes")

    def display_waiting(self) -> None:
        while self._waiting:
            self._display(self._waiting.pop(0))

    def run(self, words: Sequence[str]) -> Any:
        try:
            run_in(self, words, "%agentgit")
        except Exception:
            self.display_waiting()
            raise
        return self._waiting.pop() if self._waiting else None

    def agents(self) -> list[RollbackAgent]:
        return [agent for _, agent in self._agents]

    def move(self, agent: RollbackAgent, branch: InternalSession) -> None:
        variable = next(name for name, one in self._agents if one is agent)
        self._namespace.names[variable] = agent.at(branch.id)
        on_branch = (Span(" is on branch "), Span(clean(branch.name), "head"))
        of_session = (Span(" of session "), Span(clean(agent.session.reference), "name"))
        self._display(DisplayedView([(Span(variable, "reference"), *on_branch, *of_session)]))


def target_line(session: Session, branch: str, variable: str) -> DisplayedView:
    """Return a line that names a session, its branch and the agent's variable."""
    return DisplayedView([(Span(f"{place(session.reference, branch)}, variable "), Span(variable, "reference"))])


def parse(line: str) -> list[str]:
    """Split the text after `%agentgit` into the words of a command.

    Example:
        >>> parse('rollback "before payment" --force'), parse(""), parse("help")
        (['rollback', 'before payment', '--force'], ['status'], ['--help'])
    """
    try:
        words = shlex.split(line) or ["status"]
    except ValueError as error:
        raise InvalidInput(f"Invalid command: {error}. Close each quote that you open.") from error
    return ["--help"] if words == ["help"] else words


# -- completion

_MAGIC = re.compile(r"%agentgit\s+([^\n]*)")
_BRANCH = re.compile(r"%%branch\s+[^\n]*--from\s+([^\n]*)")
_LAST_WORD = re.compile(r"""'[^']*$|"[^"]*$|[^\s'"]*$""")
"""The word at the cursor, with its opening quote if it has one."""


def complete(namespace: NotebookNamespace, text: str) -> tuple[str, list[str]] | None:
    """Return the word at the cursor, and its completions; None outside a magic."""
    magic, branch = _MAGIC.fullmatch(text), _BRANCH.fullmatch(text)
    match = magic or branch
    if match is None:
        return None
    found = _LAST_WORD.search(match[1])
    fragment = found[0] if found is not None else ""
    unquoted = fragment.lstrip("\"'")
    try:
        notebook = Notebook(namespace, lambda _: None)
        if magic is not None:
            return fragment, complete_in(notebook, shlex.split(match[1].removesuffix(fragment)), unquoted)
        names = NamesHere(notebook.repository(), notebook.session(changes=False))
        session = names.session("")
        words = names.checkpoints(session) if session is not None else []
    except (AgentGitError, ValueError):  # no session yet, or an open quote: typing must not raise errors
        return fragment, []
    return fragment, [quote_word(word) for word in words if word.startswith(unquoted)]
