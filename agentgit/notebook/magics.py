"""The magics `%agentgit` and `%%branch`. Only this module and `live_tree.py` import IPython."""

from __future__ import annotations

import ast
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.error import UsageError
from IPython.display import display

from agentgit.checkpoints.references import free_name
from agentgit.errors import AgentGitError, InvalidInput, RollbackBlocked, RollbackIncomplete, WorldDiverged
from agentgit.notebook import commands
from agentgit.notebook.commands import Command, DisplayLines
from agentgit.notebook.completion import complete
from agentgit.notebook.live_tree import live
from agentgit.notebook.target import NotebookNamespace
from agentgit.render.text import Span, clean

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent

_SYNCED = "In a %%branch cell: --sync world brings the world to its branch, and back after it; --sync ignore runs it."

_COMPLETER = "agentgit"
"""The identifier of agentgit's completer in IPython."""


def load(shell: Any) -> None:
    """Register the magics and their completer with a shell, replacing those of an earlier call.

    Args:
        shell: The IPython shell.
    """
    made = Magics(shell)
    shell.register_magic_function(made.agentgit, "line_cell", "agentgit")
    shell.register_magic_function(made.branch, "cell", "branch")
    _forget_completer(shell)
    shell.Completer.custom_matchers.append(made.match_completions)


def unload(shell: Any) -> None:
    """Remove the magics and their completer from a shell.

    Args:
        shell: The IPython shell.
    """
    for kind, name in (("line", "agentgit"), ("cell", "agentgit"), ("cell", "branch")):
        shell.magics_manager.magics[kind].pop(name, None)
    _forget_completer(shell)


def _forget_completer(shell: Any) -> None:
    matchers = shell.Completer.custom_matchers
    matchers[:] = [one for one in matchers if getattr(one, "matcher_identifier", None) != _COMPLETER]


class Magics:
    """The magics of one shell.

    Args:
        shell: The IPython shell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._names = NotebookNamespace(shell.user_ns)

    def agentgit(self, line: str, cell: str | None = None) -> Any:
        """Inspect a session, roll back, or change branches. %agentgit help lists the commands."""
        with _short_errors():
            if cell is None:
                name, asked = commands.parse(line)
                return commands.run_command(name, Command(self._names, asked, _show))
            if commands.split(line) != ["live"]:
                raise InvalidInput("Usage: %%agentgit live, with the code to run below it.")
            agent, _ = self._names.target().require_agent()
            self._require_no_await(cell)
        with live(agent):
            return self._run(cell)

    def branch(self, line: str, cell: str) -> Any:
        """Run a cell on a new branch, then return: %%branch NAME [--from PLACE] [--sync HOW] [--force]."""
        with _short_errors():
            asked = commands.parse_branch(line)
            self._require_no_await(cell)
            agent, variable = self._names.target().require_agent()
        self._parse(cell)  # a syntax error must not create a branch
        with _short_errors():
            there = _create_branch(agent, asked)
        self._shell.user_ns[variable] = there
        try:
            result = self._run(cell)
        except BaseException as failure:
            if isinstance(failure, WorldDiverged):
                failure.add_note(_SYNCED)
            _switch_back_after(failure, agent, there, asked)
            raise
        finally:
            # If the cell has assigned the variable itself, its value stays.
            if self._shell.user_ns.get(variable) is there:
                self._shell.user_ns[variable] = agent
        with _short_errors():
            _switch_back(agent, asked)
            _show(_summary(variable, agent, there))
        return result

    @context_matcher(identifier=_COMPLETER)  # type: ignore[untyped-decorator]  # untyped in IPython
    def match_completions(self, context: CompletionContext) -> SimpleMatcherResult:
        """Return the completions inside a magic to IPython, and suppress all others there."""
        found = complete(self._names, context.full_text[: context.cursor_position])
        if found is None:
            return {"completions": []}
        begun, offered = found
        made = [SimpleCompletion(one) for one in offered]
        return {"completions": made, "matched_fragment": begun, "suppress": True, "ordered": True}

    def _require_no_await(self, cell: str) -> None:
        """Reject a cell that uses `await`: IPython runs the code inside a magic without an event loop.

        Raises:
            InvalidInput: The cell uses `await`.
        """
        if self._shell.should_run_async(cell, transformed_cell=self._shell.transform_cell(cell)):
            raise InvalidInput(
                "%%branch cells cannot use await. Write it yourself: there = agent.fork(name=...); await there..."
            )

    def _parse(self, cell: str) -> tuple[Any, str]:
        """Parse a cell without running it, and return its syntax tree and its file name in tracebacks.

        Raises:
            SyntaxError: The cell is not valid Python.
        """
        source, compiler = self._shell.transform_cell(cell), self._shell.compile
        place = compiler.cache(source, self._shell.execution_count)
        return compiler.ast_parse(source, filename=place), place

    def _run(self, cell: str) -> Any:
        """Run a cell as IPython would without the magic, and return the value of its last expression."""
        (tree, place), compiler, names = self._parse(cell), self._shell.compile, self._shell.user_ns
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compiler(tree, place, "exec"), names)  # noqa: S102  # the user's own code in this cell
        if last is None:
            return None
        return eval(compiler(ast.Expression(last.value), place, "eval"), names)  # noqa: S307  # as above


def _create_branch(agent: RollbackAgent, asked: Namespace) -> RollbackAgent:
    """Create the branch that a cell runs on; a taken name gets a number, so that the cell can be run again."""
    taken = {branch.name for branch in agent.session.branches()}
    there = agent.fork(asked.place, name=free_name(asked.name, taken))
    if asked.sync is not None:
        there = there.switch(there.branch_id, asked.sync, force=asked.force)
    return there


def _switch_back(agent: RollbackAgent, asked: Namespace) -> None:
    """Switch the session back to the agent's branch if the cell used `--sync`; `--sync world` also syncs the world."""
    if asked.sync is not None:
        sync = "world" if asked.sync == "world" else None
        agent.at(agent.branch_id).switch(agent.branch_id, sync, force=asked.force)


def _switch_back_after(failure: BaseException, agent: RollbackAgent, there: RollbackAgent, asked: Namespace) -> None:
    """Switch back after a cell has failed; if that fails too, add its error to the cell's exception as a note."""
    try:
        _switch_back(agent, asked)
    except AgentGitError as error:
        failure.add_note(clean(f"The session is still on branch {there.branch.name}. {type(error).__name__}: {error}"))


def _summary(variable: str, agent: RollbackAgent, there: RollbackAgent) -> DisplayLines:
    head = there.head
    at = f" is at {head.metadata['reference']}; " if head is not None else " is empty; "
    here, away = Span(clean(agent.branch.name), "head"), Span(clean(there.branch.name), "head")
    return DisplayLines(
        (Span("branch "), away, Span(at), Span(variable, "reference"), Span(" is on "), here, Span(" again"))
    )


def _show(value: Any) -> None:
    display(value)  # type: ignore[no-untyped-call]  # untyped in IPython


@contextmanager
def _short_errors() -> Iterator[None]:
    """Show an agentgit error on one line without a traceback, after the plan or report that it carries.

    Raises:
        UsageError: The block raised an `AgentGitError`.
    """
    try:
        yield
    except AgentGitError as error:
        if isinstance(error, RollbackBlocked | WorldDiverged):
            _show(error.plan)
        elif isinstance(error, RollbackIncomplete):
            _show(error.report)
        raise UsageError(clean(f"{type(error).__name__}: {error}")) from error
