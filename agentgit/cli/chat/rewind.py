"""`/rewind`: the choice of one of the user's own messages."""

from __future__ import annotations

import os
import sys
from typing import Any

from agentgit.cli import output
from agentgit.cli.chat.prompt import at_terminal
from agentgit.errors import InvalidInput, NotFound
from agentgit.render.text import Span, clean, cut, table


def find_message(messages: list[dict[str, Any]], word: str) -> dict[str, Any]:
    """Find a message by its id, or by its number in the list: 1 is the newest."""
    by_number = {str(number): message for number, message in enumerate(reversed(messages), start=1)}
    by_id = {message["id"]: message for message in messages}
    message = by_id.get(word.removeprefix("message:"), by_number.get(word))
    if message is None:
        raise NotFound(f"There is no message {word!r} of yours on this branch. /rewind lists them.")
    return message


def choose_message(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Let the user choose one of their messages, the newest first; None if they choose none."""
    if not messages:
        raise NotFound("There is no message of yours on this branch to go back to.")
    newest_first = messages[::-1]
    if at_terminal() and os.environ.get("TERM") != "dumb":
        number = _pick([text_of(message) for message in newest_first])
        return newest_first[number] if number is not None else None
    shown = list(enumerate(newest_first, start=1))[:MAX_LISTED_MESSAGES]
    rows = [[Span(str(number), "reference"), Span(clean(text_of(message)))] for number, message in reversed(shown)]
    output.show(table(rows, width=output.width()))
    raise InvalidInput("There is no terminal to choose a message at. Name it: /rewind 1 --yes is the newest.")


def _pick(texts: list[str]) -> int | None:
    """Let the user choose one of several texts with the arrow keys; return its index, or None if they choose none."""
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.shortcuts import choice

    keys = KeyBindings()

    @keys.add("escape", eager=True)  # at once, although a sequence may begin with it
    def cancel(event: KeyPressEvent) -> None:
        event.app.exit(exception=KeyboardInterrupt)

    labels = [output.encodable(cut(clean(text), output.width() - 12), sys.stdout) for text in texts]
    question = "Roll back to before which message? Arrow keys and Enter choose, Escape cancels."
    try:
        return choice(question, options=list(enumerate(labels)), key_bindings=keys)
    except KeyboardInterrupt:
        return None


MAX_LISTED_MESSAGES = 30
"""The number of messages that `/rewind` lists where there is no terminal, the newest ones."""


def text_of(message: dict[str, Any]) -> str:
    """Return the text of a message; what is not text, such as an image, is left out."""
    content = message["content"]
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part if isinstance(part, str) else part.get("text") for part in parts if isinstance(part, str | dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
