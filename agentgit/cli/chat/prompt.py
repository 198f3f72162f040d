"""The prompt of a chat at a terminal, with history, completion and a choice by arrow keys."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle, choice
from prompt_toolkit.utils import is_dumb_terminal

from agentgit.cli import output
from agentgit.errors import AgentGitError
from agentgit.render.text import clean, cut, visible


class _Words(Completer):
    """The completions of the last word, from a function of the line before it and the part that was typed."""

    def __init__(self, complete: Callable[[str, str], list[str]]) -> None:
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        line = document.text_before_cursor
        word = "" if line[-1:].isspace() else line.split()[-1] if line else ""
        try:
            for text in self._complete(line.removesuffix(word), word):
                yield Completion(text, -len(word))
        except AgentGitError:  # a failed completion must not interrupt the prompt
            return


def lines(
    prompt: Callable[[], str], complete: Callable[[str, str], list[str]], refill: Callable[[], str]
) -> Iterator[str]:
    """Yield lines until Ctrl-D; the refill is the text that a line begins with. Ctrl-C discards the line."""
    session: PromptSession[str] = PromptSession(
        history=_history(), completer=_Words(complete), complete_style=CompleteStyle.READLINE_LIKE,
        complete_while_typing=False,
    )  # fmt: skip
    while True:
        try:
            text = " ".join(visible(refill()).split())
            default = "" if is_dumb_terminal() else text  # which would not show it
            line = session.prompt(output.encodable(prompt(), sys.stdout), default=default)
            yield line.encode(errors="surrogateescape").decode(errors="replace")  # an undecodable byte ends nothing
        except KeyboardInterrupt:
            output.say("")
        except EOFError:
            output.say("")
            return


def _history() -> FileHistory | InMemoryHistory:
    """Return the history in a file of the user's state folder that only its owner can read."""
    if os.name == "nt":
        state = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "agentgit" / "chat_history"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.open("ab").close()  # the history is written later, where an error would end the chat
    except OSError as error:
        output.print_notice(f"Cannot save the history of the chat in {path}: {error.strerror}.")
        return InMemoryHistory()
    return FileHistory(path)


def choose(texts: Sequence[str]) -> int | None:
    """Let the user choose one of several texts with the arrow keys; return its index, or None if they choose none."""
    keys = KeyBindings()

    @keys.add("escape", eager=True)  # at once, although a sequence may begin with it
    def cancel(event: KeyPressEvent) -> None:
        event.app.exit(exception=KeyboardInterrupt)

    labels = [output.encodable(cut(clean(text), output.medium().width - 12), sys.stdout) for text in texts]
    question = "Roll back to before which message? Arrow keys and Enter choose, Escape cancels."
    try:
        return choice(question, options=list(enumerate(labels)), key_bindings=keys)
    except KeyboardInterrupt:
        return None
