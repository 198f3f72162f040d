"""The magics `%agentgit` and `%%branch`. Only this module and `live_tree.py` import IPython."""

from __future__ import annotations

import argparse
import ast
import shlex
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.error import UsageError
from IPython.display import display

from agentgit.checkpoints.references import free_name
from agentgit.errors import AgentGitError, Conflict, InvalidInput, PlanChanged, RollbackBlocked, WorldDiverged
from agentgit.notebook.browser import live
from agentgit.notebook.commands import DisplayedView, Notebook, NotebookNamespace, complete, parse, target_line
from agentgit.render.text import clean
from agentgit.render.view import Span

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.effects import RollbackPlan

_SYNC_HINT = (
    "In a %%branch cell: --sync world brings the world to its branch, and back after it; --sync ignore runs it."
)

_COMPLETER = "agentgit"
"""The identifier of agentgit's completer in IPython."""


def load(shell: Any) -> None:
    """Register the magics and their completer with a shell, replacing those of an earlier call."""
    magics = Magics(shell)
    shell.register_magic_function(magics.agentgit, "line_cell", "agentgit")
    shell.register_magic_function(magics.branch, "cell", "branch")
    _remove_completer(shell)
    shell.Completer.custom_matchers.append(magics.match_completions)


def unload(shell: Any) -> None:
    for kind, name in (("line", "agentgit"), ("cell", "agentgit"), ("cell", "branch")):
        shell.magics_manager.magics[kind].pop(name, None)
    _remove_completer(shell)


def _remove_completer(shell: Any) -> None:
    matchers = shell.Completer.custom_matchers
    matchers[:] = [matcher for matcher in matchers if getattr(matcher, "matcher_identifier", None) != _COMPLETER]


class Magics:
    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._namespace = NotebookNamespace(shell.user_ns)

    def agentgit(self, line: str, cell: str | None = None) -> Any:
        """Run a command of agentgit. %agentgit --help lists the commands."""
        with _short_errors():
            if cell is None:
                words = parse(line)
                return Notebook(self._namespace, _show).run(words)
            if line.split() != ["live"]:
                raise InvalidInput("Usage: %%agentgit live, with the code to run below it.")
            variable, agent = self._namespace.agent()
            self._require_no_await(cell)
            _show(target_line(agent.session, agent.branch.name, variable))
        with live(agent):
            return self._run(cell)

    def branch(self, line: str, cell: str) -> Any:
        """Run a cell on a new branch, then return: %%branch NAME [--from REF] [--sync HOW] [--agent NAME]."""
        with _short_errors():
            arguments = _parse_branch(line)
            self._require_no_await(cell)
            variable, agent = self._namespace.agent(arguments.agent)
        self._parse(cell)  # a syntax error must not create a branch
        with _short_errors():
            _show(target_line(agent.session, agent.branch.name, variable))
            try:
                branch_agent = self._create_branch(agent, arguments)
            except (PlanChanged, RollbackBlocked) as error:
                _show(error.plan)
                raise
        self._shell.user_ns[variable] = branch_agent
        try:
            result = self._run(cell)
        except BaseException as failure:
            if isinstance(failure, WorldDiverged):
                failure.add_note(_SYNC_HINT)
            self._switch_back_after(failure, agent, branch_agent, arguments)
            raise
        finally:
            # If the cell has assigned the variable itself, its value stays.
            if self._shell.user_ns.get(variable) is branch_agent:
                self._shell.user_ns[variable] = agent
        with _short_errors():
            try:
                self._switch_back(agent, branch_agent, arguments)
            except AgentGitError as error:
                raise UsageError(_still_there(branch_agent, error)) from error
            _show(_summary(variable, agent, branch_agent))
        return result

    def _create_branch(self, agent: RollbackAgent, arguments: Namespace) -> RollbackAgent:
        """Create the branch that a cell runs on; a taken name gets a number, so that the cell can be run again."""
        name = free_name(arguments.name, {branch.name for branch in agent.session.branches()})
        if arguments.sync != "world":
            branch_agent = agent.fork(arguments.ref, name=name)
            return branch_agent.switch(branch_agent.branch_id, arguments.sync) if arguments.sync else branch_agent
        ref, replay, force = arguments.ref or "HEAD", "redo", arguments.force
        plan = agent.plan_rollback(ref, replay=replay)
        if not arguments.yes:
            question = "Bring the world to the new branch, and back after the cell?"
            self._confirm(agent, plan.forced() if force else plan, question)
        return agent.rollback(ref, replay=replay, name=name, force=force, plan=plan)

    def _switch_back(self, agent: RollbackAgent, branch_agent: RollbackAgent, arguments: Namespace) -> None:
        """Switch the session back to the agent's branch if the cell used `--sync`; `--sync world` also syncs the world.

        The question before the cell was about what the cell does. It is asked again if others have changed the world.
        """
        if arguments.sync is None:
            return
        there, plan, is_own = agent.at(agent.branch_id), None, True
        if arguments.sync == "world":
            plan = there.plan_switch(agent.branch_id)
            is_own = _is_own(branch_agent, plan)
        if plan is not None and not is_own and not arguments.yes:
            question = f"Others have acted meanwhile. Bring the world back to branch {agent.branch.name}?"
            self._confirm(branch_agent, plan.forced() if arguments.force else plan, question)
        back = there.switch(agent.branch_id, "world" if plan else None, force=arguments.force, plan=plan)
        if not is_own:
            _show(back.report)

    def _switch_back_after(
        self, failure: BaseException, agent: RollbackAgent, branch_agent: RollbackAgent, arguments: Namespace
    ) -> None:
        """Switch back after a cell has failed; if that fails too, add its error to the cell's exception as a note."""
        try:
            self._switch_back(agent, branch_agent, arguments)
        except AgentGitError as error:
            failure.add_note(_still_there(branch_agent, error))

    def _confirm(self, agent: RollbackAgent, plan: RollbackPlan, question: str) -> None:
        if not plan.is_admissible:
            return
        _show(plan)
        where = f"session {agent.session.reference}, branch {agent.branch.name}"
        if not Notebook(self._namespace, _show).ask(clean(f"{question} ({where})")):
            raise InvalidInput("Nothing was done, because the answer is not yes.")

    @context_matcher(identifier=_COMPLETER)  # type: ignore[untyped-decorator]  # untyped in IPython
    def match_completions(self, context: CompletionContext) -> SimpleMatcherResult:
        """Return the completions inside a magic to IPython, and suppress all others there."""
        result = complete(self._namespace, context.full_text[: context.cursor_position])
        if result is None:
            return {"completions": []}
        fragment, candidates = result
        completions = [SimpleCompletion(candidate) for candidate in candidates]
        return {"completions": completions, "matched_fragment": fragment, "suppress": True, "ordered": True}

    def _require_no_await(self, cell: str) -> None:
        """Reject a cell that uses `await`: IPython runs the code inside a magic without an event loop."""
        if self._shell.should_run_async(cell, transformed_cell=self._shell.transform_cell(cell)):
            raise InvalidInput(
                "%%branch cells cannot use await. Write it yourself: there = agent.fork(name=...); await there..."
            )

    def _parse(self, cell: str) -> tuple[Any, str]:
        """Parse a cell without running it, and return its syntax tree and its file name in tracebacks."""
        source, compiler = self._shell.transform_cell(cell), self._shell.compile
        filename = compiler.cache(source, self._shell.execution_count)
        return compiler.ast_parse(source, filename=filename), filename

    def _run(self, cell: str) -> Any:
        """Run a cell as IPython would without the magic, and return the value of its last expression."""
        (tree, filename), compiler, namespace = self._parse(cell), self._shell.compile, self._shell.user_ns
        last_expression = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compiler(tree, filename, "exec"), namespace)  # noqa: S102  # the user's own code in this cell
        if last_expression is None:
            return None
        return eval(compiler(ast.Expression(last_expression.value), filename, "eval"), namespace)  # noqa: S307  # as above


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidInput(f"{message}. {' '.join(self.format_usage().split())}")


def _parse_branch(line: str) -> Namespace:
    parser = _Parser(prog="%%branch", add_help=False, allow_abbrev=False)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--from", dest="ref", metavar="REF")
    parser.add_argument("--sync", choices=("world", "note", "ignore"), metavar="HOW")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--yes", "-y", action="store_true")
    parser.add_argument("--agent", metavar="NAME")
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise InvalidInput(f"Invalid command: {error}. Close each quote that you open.") from error


def _still_there(agent: RollbackAgent, error: AgentGitError) -> str:
    text = f"{type(error).__name__}: {error.worded('notebook')}"
    return clean(f"The session is still on branch {agent.branch.name}. {text}")


def _is_own(agent: RollbackAgent, plan: RollbackPlan) -> bool:
    try:
        agent._require_unmoved()
        agent.session._rollbacks.require_own(plan, agent.branch_id)
    except (Conflict, WorldDiverged):
        return False
    return True


def _summary(variable: str, agent: RollbackAgent, branch_agent: RollbackAgent) -> DisplayedView:
    head = branch_agent.head
    position = f" is at {head.metadata['reference']}; " if head is not None else " is empty; "
    current_name, branch_name = Span(clean(agent.branch.name), "head"), Span(clean(branch_agent.branch.name), "head")
    name, rest = Span(variable, "reference"), (Span(" is on "), current_name, Span(" again"))
    return DisplayedView([(Span("branch "), branch_name, Span(position), name, *rest)])


def _show(value: Any) -> None:
    display(value)  # type: ignore[no-untyped-call]  # untyped in IPython


@contextmanager
def _short_errors() -> Iterator[None]:
    try:
        yield
    except AgentGitError as error:
        raise UsageError(clean(f"{type(error).__name__}: {error.worded('notebook')}")) from error
