"""The chat loop: reads lines from a terminal or a pipe, runs turns and slash commands, and writes the output."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from agentgit.cli import output
from agentgit.cli.chat import slash_commands
from agentgit.errors import (
    AgentGitError,
    BranchMoved,
    InvalidInput,
    RollbackBlocked,
    RollbackIncomplete,
    TurnAbandoned,
)
from agentgit.render.text import Span, clean, cut, place, visible
from agentgit.render.views import conversation
from agentgit.render.views import rollback as rollbacks
from agentgit.sessions.rerun import RerunReport
from agentgit.values import portable

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.agents.chat_turn import Pieces
    from agentgit.cli.chat.slash_commands import SlashCommand
    from agentgit.effects import RollbackPlan
    from agentgit.repository import Repository

HISTORY_LENGTH = 1000
"""The number of lines that the history file keeps."""


def at_terminal() -> bool:
    """Return whether standard input and output are terminals, so that a person can be prompted."""
    return sys.stdin.isatty() and sys.stdout.isatty()


Completer = Callable[[str, str], list[str]]
"""A function that returns the completions of a word, from the line before it and the part that was typed."""


def lines(prompt: Callable[[], str], completer: Completer, refill: Callable[[], str] = str) -> Iterator[str]:
    """Yield lines until the end of the input. Ctrl-C at the prompt discards the line."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # an undecodable byte must not end the chat
    if not at_terminal():
        yield from (line.rstrip("\r\n") for line in iter(sys.stdin.readline, ""))
        return
    with _line_history(completer):
        while True:
            try:
                with _prefilled(refill()):
                    line = input(output.encodable(prompt(), sys.stdout))
                yield line
            except KeyboardInterrupt:
                output.say("")
            except EOFError:
                output.say("")
                return


@contextmanager
def _prefilled(text: str) -> Iterator[None]:
    """Put a text into the next line that is read, on one line and without control characters."""
    try:
        import readline
    except ImportError:  # some systems have no readline; the text is then only shown
        yield
        return
    line = " ".join(visible(text).split())
    readline.set_startup_hook(lambda: readline.insert_text(line))
    try:
        yield
    finally:
        readline.set_startup_hook(None)


def state_folder() -> Path:
    """Return agentgit's folder in the user's state directory."""
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "agentgit"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "agentgit"


@contextmanager
def _line_history(completer: Completer) -> Iterator[None]:
    """Load and save the line history in a file that only its owner can read, and complete words with Tab."""
    try:
        import readline
    except ImportError:  # some systems have no readline; the prompt works without it
        yield
        return
    path = state_folder() / "chat_history"
    _try_history_file(path, lambda: _load_history(readline, path))
    _install_completer(readline, completer)
    try:
        yield
    finally:
        readline.set_completer(None)
        _try_history_file(path, lambda: _save_history(readline, path))


def _install_completer(readline: ModuleType, completer: Completer) -> None:
    def nth_completion(word: str, n: int) -> str | None:
        """Return the n-th completion; readline calls this until it returns None."""
        try:
            return [*completer(readline.get_line_buffer()[: readline.get_begidx()], word), None][n]
        except AgentGitError:  # a failed completion must not interrupt the prompt
            return None

    readline.set_completer(nth_completion)
    readline.set_completer_delims(" \t\n")
    readline.parse_and_bind("tab: complete")


def _load_history(readline: ModuleType, path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch()
    path.chmod(0o600)
    readline.set_history_length(HISTORY_LENGTH)
    readline.read_history_file(path)


def _save_history(readline: ModuleType, path: Path) -> None:
    old_umask = os.umask(0o077)  # the file may be created again, and must stay private
    try:
        readline.write_history_file(path)
    finally:
        os.umask(old_umask)


def _try_history_file(path: Path, operation: Callable[[], None]) -> None:
    """Run an operation on the history file; print a note if it fails."""
    try:
        operation()
    except OSError as error:
        output.print_notice(f"Cannot save the history of the chat in {path}: {error.strerror}.")


@contextmanager
def _warnings_as_notices() -> Iterator[None]:
    """Show the warnings of agentgit in the words of the chat."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_in_chat(message: Warning | str, *details: Any, **options: Any) -> None:
            if isinstance(message, BranchMoved | TurnAbandoned):
                output.print_notice(f"warning: {clean(str(message))}")
            else:
                show(message, *details, **options)

        warnings.showwarning = show_in_chat
        yield


RunCommand: TypeAlias = "Callable[[Chat, SlashCommand], None]"


class Chat:
    """A conversation at a terminal or in a pipe. A context manager."""

    def __init__(self, repo: Repository, agent: RollbackAgent, run_command: RunCommand, *, yes: bool = False) -> None:
        self.repo = repo
        self.agent = agent
        self._run_command = run_command
        self.yes = yes
        self.exit_code = 0
        self._refill = ""
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def run(self) -> int:
        """Process every line, and return the exit code: 0 at a terminal, else that of the first failure."""
        if at_terminal():
            location = f"session {self.agent.session.reference}, branch {self.agent.branch.name}"
            output.show([(Span(f"{clean(location)}. /help lists the commands, Ctrl-D quits.", "dim"),)])
            self._show_pending_questions()
        for line in lines(lambda: f"{clean(self.agent.branch.name)}> ", self.complete, self._take_refill):
            should_continue = self.handle_line(line)
            output.flush()
            if not should_continue:
                break
        return 0 if at_terminal() else self.exit_code

    def complete(self, prefix: str, word: str) -> list[str]:
        """Return the completions of a word: slash commands and their options, branches, or checkpoint names."""
        if not prefix.startswith("/"):
            return slash_commands.complete(prefix, word)
        branches = list(self.agent.tree().walk())
        names = [point.name for branch in branches for point in branch.points if point.name is not None]
        candidates = dict.fromkeys(["HEAD", *(branch.name for branch in branches), *names])
        quoted = {name: shlex.quote(name) for name in candidates if name.isprintable()}
        matches = [text for name, text in quoted.items() if name.startswith(word) or text.startswith(word)]
        return slash_commands.complete(prefix, word) or matches

    def handle_line(self, line: str) -> bool:
        """Process a line; return whether the chat continues."""
        try:
            if line.startswith("/") and not line.startswith("//"):
                command = slash_commands.parse(line)
                self._run_command(self, command)
                return command.form.name != "quit"
            if line.strip():
                self.turn(line.removeprefix("/"))
        except AgentGitError as error:
            self.fail(error)
        except KeyboardInterrupt:
            output.say("")
            output.print_notice("Interrupted.")
            self._warn_if_interrupted()
        return True

    # -- turns

    def turn(self, text: str | None) -> None:
        """Run a turn, and write its output as it arrives."""
        from agentgit.agents import chat_turn

        agent, previous_error = self.agent, self.agent.rollback_error
        previous_id = agent.session.branch().id
        with _warnings_as_notices():
            self._runner.run(
                self._write_turn(
                    chat_turn.continue_turn(self.agent) if text is None else chat_turn.send_message(self.agent, text)
                )
            )
        if (current := agent.session.branch()).id not in (previous_id, agent.branch_id):  # a tool requested a rollback
            self.agent = agent.at(current)
            self.show_report()
        if agent.rollback_error is not None and agent.rollback_error is not previous_error:
            self.fail(agent.rollback_error)

    async def _write_turn(self, pieces: Pieces) -> None:
        from agentgit.agents import chat_turn

        transcript = Transcript()
        async with aclosing(pieces):
            async for piece in pieces:
                if isinstance(piece, chat_turn.AnswerText):
                    transcript.write_text(piece.message, piece.text)
                elif isinstance(piece, chat_turn.ModelToolCall):
                    transcript.write_call(piece.name, piece.args)
                elif isinstance(piece, chat_turn.AskedQuestion):
                    transcript.write_question(piece.question)
                else:
                    transcript.end()
                    self.fail(piece.error)
                    self._warn_if_interrupted()
        transcript.end()

    def _show_pending_questions(self) -> None:
        from agentgit.agents import chat_turn

        for pending in chat_turn.open_questions(self.agent.get_state()):
            Transcript().write_question(pending.question)
        self._warn_if_interrupted()

    def _warn_if_interrupted(self) -> None:
        from agentgit.agents import chat_turn

        if chat_turn.is_interrupted(self.agent):
            output.print_notice("The turn is not finished: /continue resumes it, /undo rolls it back.")

    # -- shared by the slash commands

    def refill(self, text: str) -> None:
        """Begin the next line at the prompt with a text, for the user to edit."""
        self._refill = text

    def _take_refill(self) -> str:
        text, self._refill = self._refill, ""
        return text

    def show_report(self) -> None:
        """Write the report of the rollback or switch that returned the current agent."""
        report = self.agent.report
        if report is not None and not isinstance(report, RerunReport):
            output.show(rollbacks.lines(report, width=output.width()))

    def confirm_plan(self, command: SlashCommand, plan: RollbackPlan) -> bool:
        """Return whether to carry out a plan; show it and ask first if it changes the world."""
        effective_plan = plan.forced() if slash_commands.FORCE in command.options else plan
        if not effective_plan.is_admissible or not effective_plan.changes_world:
            return True  # the operation itself raises the error for an inadmissible plan
        if self.yes or slash_commands.YES in command.options:
            return True
        output.show(rollbacks.lines(effective_plan, width=output.width()))
        if not at_terminal():
            raise InvalidInput("There is no terminal to ask for confirmation. Add --yes, or start the chat with --yes.")
        if output.ask(f"Proceed in {place(effective_plan.session_name, effective_plan.branch)}?"):
            return True
        output.print_notice("Nothing was done.")
        return False

    def fail(self, error: Exception) -> None:
        """Write an error, with its plan or report; the chat continues."""
        self.exit_code = self.exit_code or getattr(error, "exit_code", 1)
        if isinstance(error, RollbackBlocked):
            output.show(rollbacks.lines(error.plan, width=output.width()))
        elif isinstance(error, RollbackIncomplete):
            output.show(rollbacks.lines(error.report, width=output.width()))
        prefix = "" if isinstance(error, AgentGitError) else f"{type(error).__name__}: "
        output.flush()
        output.print_notice(f"error: {clean(f'{prefix}{error}')}")


class Transcript:
    """A transcript of what the agent says and does, written while it happens."""

    def __init__(self) -> None:
        self._message: str | None = None
        self._is_open = False

    def write_text(self, message: str | None, text: str) -> None:
        """Write the next piece of a message; another message begins on a new line."""
        if message != self._message:
            self.end()
        self._message = message
        output.stream(text.replace("\r\n", "\n"))
        self._is_open = not text.endswith("\n")

    def write_call(self, name: str, args: Mapping[str, Any]) -> None:
        """Write one tool call."""
        self.end()
        line = cut(clean(f"→ {name}({conversation.arguments(args)})"), output.width())
        output.show([(Span(line, "dim"),)])
        output.flush()

    def write_question(self, question: Any) -> None:
        """Write a question of the graph."""
        self.end()
        text = question if isinstance(question, str) else json.dumps(portable(question), ensure_ascii=False)
        output.show([(Span(f"? {visible(line)}", "changed"),) for line in text.splitlines() or [""]])

    def end(self) -> None:
        """End the current line if it is open."""
        if self._is_open:
            output.stream("\n")
        self._is_open = False
