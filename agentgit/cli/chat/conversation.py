"""The chat loop: runs turns, and slash commands, which are the commands of the command line on the chat's session."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Self

from agentgit.agents import chat_turn
from agentgit.agents.agent import RollbackAgent
from agentgit.cli import output
from agentgit.cli.app import complete_in, run_in
from agentgit.cli.commands import COMMANDS
from agentgit.effects import RollbackReport
from agentgit.errors import (
    AgentGitError,
    BranchMoved,
    InvalidInput,
    NotFound,
    RollbackBlocked,
    RollbackIncomplete,
    TurnAbandoned,
)
from agentgit.handles.session import Session
from agentgit.next_steps import Face
from agentgit.render.text import clean, cut, visible
from agentgit.render.view import Span, Table, View
from agentgit.render.views.conversation import arguments
from agentgit.render.views.rollback import outcome
from agentgit.repository import Repository
from agentgit.sessions import InternalSession
from agentgit.sessions.messages import text_of
from agentgit.values import portable

SLASH_COMMANDS = {
    "checkpoint create NAME": "Create a checkpoint here; --description TEXT describes it.",
    "checkpoint list": "List the checkpoints that were created on request.",
    "checkpoint restore REF": "Roll back to a checkpoint; the same as /rollback.",
    "checkpoint undo": "Roll back to the newest checkpoint created on request.",
    "undo [N]": "Go back one turn, or N turns, on a new branch.",
    "rewind [MESSAGE]": "Roll back to before one of your messages, and edit it; without MESSAGE, choose it.",
    "rollback REF": "Roll back to a checkpoint, on a new branch.",
    "plan REF": "Show what a rollback would do; nothing is changed.",
    "switch BRANCH": "Continue on another branch; --sync world changes the world to match it.",
    "log [N]": "List the checkpoints, or the newest N.",
    "tree": "Draw the branches.",
    "diff [A] [B]": "Compare checkpoints, or show what the last turn changed.",
    "continue": "Continue an interrupted turn.",
    "help": "Show this help.",
    "exit": "Leave; Ctrl-D does the same.",
}
"""The slash commands that the help lists, each with what it does."""

HELP_NOTES = (
    "Every other command of agentgit runs here too, like /tool-track and /fork; --help shows its options.",
    "Anything else is a message to the agent; // starts a message with a slash. Quote names that contain spaces.",
    "REF is a checkpoint, like main#3, HEAD~1, a name or an id. --yes: do not ask.",
    "--force: keep what cannot be reversed, and leave files in conflict as they are.",
)


class Chat:
    """A conversation at a terminal or in a pipe, and the `Host` of its slash commands. A context manager."""

    face: Face = "chat"

    def __init__(self, repo: Repository, agent: RollbackAgent, *, yes: bool = False) -> None:
        self.repo = repo
        self.agent = agent
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
        for line in self._lines():
            should_continue = self.handle_line(line)
            output.flush()
            if not should_continue:
                break
        return 0 if at_terminal() else self.exit_code

    def _lines(self) -> Iterator[str]:
        if at_terminal():
            from agentgit.cli.chat import prompt  # late, because a pipe does not need it

            return prompt.lines(lambda: f"{clean(self.agent.branch.name)}> ", self.complete, self._take_refill)
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # an undecodable byte must not end the chat
        return (line.rstrip("\r\n") for line in iter(sys.stdin.readline, ""))

    def handle_line(self, line: str) -> bool:
        try:
            if line.startswith("/") and not line.startswith("//"):
                return self._run_command(split(line))
            if line.strip():
                self.turn(line.removeprefix("/"))
        except AgentGitError as error:
            self.fail(error)
        except KeyboardInterrupt:
            output.say("")
            output.print_notice("Interrupted.")
            self._warn_if_interrupted()
        return True

    def fail(self, error: Exception) -> None:
        self.exit_code = self.exit_code or getattr(error, "exit_code", 1)
        text = error.worded("chat") if isinstance(error, AgentGitError) else f"{type(error).__name__}: {error}"
        output.flush()
        output.print_notice(f"error: {clean(text)}")

    # -- slash commands

    def _run_command(self, words: list[str]) -> bool:
        match words:
            case ["exit"]:
                return False
            case ["help"]:
                output.show(help_view())
            case ["continue"]:
                self.turn(None)
            case ["rewind", *options]:
                self._rewind(options)
            case _:
                run_in(self, self._as_command(words), "/")
        return True

    def _as_command(self, words: list[str]) -> list[str]:
        """Return the command of the command line that a slash command is short for."""
        match words:
            case ["checkpoint", "list", *options]:
                return ["log", "--named", "--all-branches", *options]
            case ["checkpoint", "restore", *rest]:
                return ["rollback", *rest]
            case ["checkpoint", "undo", *options]:
                return ["rollback", self._newest_named_checkpoint(), *options]
            case ["undo" | "log" as name, number, *options] if number.isdigit():
                return [name, "-n", number, *options]
        return words

    def _newest_named_checkpoint(self) -> str:
        """Return the id of the newest checkpoint on the agent's path that was created on request."""
        newest = next(iter(self.agent.session.log(branch=self.agent.branch_id, auto=False)), None)
        if newest is None:
            raise NotFound("There is no named checkpoint on this branch. /checkpoint create NAME creates one.")
        return str(newest.id)

    def _rewind(self, words: list[str]) -> None:
        """Roll back to before a message of the user, and put its text into the prompt, to be edited and sent again."""
        newest_first = [dict(one) for one in self.agent.history() if one["role"] == "user" and one["id"]][::-1]
        named = [word for word in words if not word.startswith("-")]
        message = find_message(newest_first, named[0]) if named else choose_message(newest_first)
        if message is None:
            output.print_notice("Nothing was done.")
            return
        branch_id = self.agent.branch_id
        options = [word for word in words if word.startswith("-")]
        run_in(self, ["rollback", f"message:{message['id']}", *options], "/")
        if self.agent.branch_id != branch_id:
            self._refill = text_of(message)
            output.show([(Span(f"before: {cut(clean(self._refill), output.medium().width - 8)}", "dim"),)])

    def _take_refill(self) -> str:
        text, self._refill = self._refill, ""
        return text

    # -- the host of the commands

    def repository(self) -> Repository:
        return self.repo

    def session(self, *, changes: bool) -> tuple[Session, str]:
        return self.agent.session, self.agent.branch.name

    def show(self, value: Any, view: View) -> None:
        output.show(view)

    def ask(self, question: str) -> bool:
        if not at_terminal():
            raise InvalidInput("There is no terminal to ask for confirmation. Add --yes, or start the chat with --yes.")
        return output.ask_here(question)

    def agents(self) -> list[RollbackAgent]:
        return [self.agent]

    def move(self, agent: RollbackAgent, branch: InternalSession) -> None:
        self.agent = agent.at(branch.id)

    def complete(self, prefix: str, word: str) -> list[str]:
        """Return the completions of a word: slash commands, and what the command line offers after them."""
        if not prefix:
            names = dict.fromkeys([*(name.split()[0] for name in SLASH_COMMANDS), *COMMANDS])
            return [f"/{name}" for name in names if word[:1] == "/" and f"/{name}".startswith(word)]
        if not prefix.startswith("/"):
            return []
        words = split(prefix)
        if words == ["checkpoint"]:
            below = [name.split()[1] for name in SLASH_COMMANDS if name.startswith("checkpoint ")]
            return [name for name in below if name.startswith(word)]
        return complete_in(self, self._as_command(words), word.lstrip("\"'"))

    # -- turns

    def turn(self, text: str | None) -> None:
        """Run a turn, and write its output as it arrives."""
        agent, previous_error = self.agent, self.agent.rollback_error
        previous_id = agent.session.branch().id
        pieces = chat_turn.continue_turn(agent) if text is None else chat_turn.send_message(agent, text)
        with warnings.catch_warnings():
            warnings.showwarning = functools.partial(_show_warning, warnings.showwarning)
            self._runner.run(self._write_turn(pieces))
        if (current := agent.session.branch()).id not in (previous_id, agent.branch_id):  # a tool requested a rollback
            self.agent = agent.at(current)
            if isinstance(report := self.agent.report, RollbackReport):
                output.show(outcome(report), self.face)
        if agent.rollback_error is not None and agent.rollback_error is not previous_error:
            self._fail_turn(agent.rollback_error)

    async def _write_turn(self, pieces: chat_turn.Pieces) -> None:
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
                    self._fail_turn(piece.error)
                    self._warn_if_interrupted()
        transcript.end()

    def _show_pending_questions(self) -> None:
        for pending in chat_turn.open_questions(self.agent):
            Transcript().write_question(pending.question)
        self._warn_if_interrupted()

    def _warn_if_interrupted(self) -> None:
        if chat_turn.is_interrupted(self.agent):
            output.print_notice("The turn is not finished: /continue resumes it, /undo rolls it back.")

    def _fail_turn(self, error: Exception) -> None:
        if isinstance(error, RollbackBlocked):
            output.show(outcome(error.plan), self.face)
        elif isinstance(error, RollbackIncomplete):
            output.show(outcome(error.report), self.face)
        self.fail(error)


def _show_warning(show: Callable[..., None], message: Warning | str, *details: Any, **options: Any) -> None:
    """Show a warning of agentgit in the words of the chat, and any other as Python does."""
    if isinstance(message, BranchMoved | TurnAbandoned):
        output.print_notice(f"warning: {clean(message.worded('chat'))}")
    else:
        show(message, *details, **options)


def at_terminal() -> bool:
    """Return whether standard input and output are terminals, so that a person can be prompted."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def find_message(newest_first: list[dict[str, Any]], word: str) -> dict[str, Any]:
    """Find a message of the user by its id, or by its number in the list: 1 is the newest."""
    by_number = {str(number): message for number, message in enumerate(newest_first, start=1)}
    by_id = {message["id"]: message for message in newest_first}
    message = by_id.get(word.removeprefix("message:"), by_number.get(word))
    if message is None:
        raise NotFound(f"There is no message {word!r} of yours on this branch. /rewind lists them.")
    return message


MAX_LISTED_MESSAGES = 30
"""The number of messages that `/rewind` lists where there is no terminal, the newest ones."""


def choose_message(newest_first: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Let the user choose one of their messages, the newest first; None if they choose none."""
    if not newest_first:
        raise NotFound("There is no message of yours on this branch to go back to.")
    if at_terminal() and os.environ.get("TERM") != "dumb":
        from agentgit.cli.chat import prompt  # late, because a pipe does not need it

        number = prompt.choose([text_of(message) for message in newest_first])
        return newest_first[number] if number is not None else None
    shown = list(enumerate(newest_first, start=1))[:MAX_LISTED_MESSAGES]
    rows = [[Span(str(number), "reference"), Span(clean(text_of(message)))] for number, message in reversed(shown)]
    output.show([Table(rows)])
    raise InvalidInput("There is no terminal to choose a message at. Name it: /rewind 1 --yes is the newest.")


def split(line: str) -> list[str]:
    """Split a line that begins with a slash into the words of a command.

    Example:
        >>> split('/rollback "before payment" --force'), split("/")
        (['rollback', 'before payment', '--force'], ['help'])
    """
    try:
        return shlex.split(line[1:]) or ["help"]
    except ValueError as error:
        raise InvalidInput(f"Invalid command: {error}. Close each quote that you open.") from error


def help_view() -> View:
    rows = [[Span(f"/{usage}", "reference"), Span(text)] for usage, text in SLASH_COMMANDS.items()]
    return [Table(rows, wraps=True), *((Span(note, "dim"),) for note in HELP_NOTES)]


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
        self.end()
        line = cut(clean(f"→ {name}({arguments(args)})"), output.medium().width)
        output.show([(Span(line, "dim"),)])
        output.flush()

    def write_question(self, question: Any) -> None:
        self.end()
        text = question if isinstance(question, str) else json.dumps(portable(question), ensure_ascii=False)
        output.show([(Span(f"? {visible(line)}", "changed"),) for line in text.splitlines() or [""]])

    def end(self) -> None:
        if self._is_open:
            output.stream("\n")
        self._is_open = False
