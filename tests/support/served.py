"""Served graphs for the tests: inputs, configs, and what a state says about the world."""

from __future__ import annotations

import json
from typing import Any

THREAD: Any = {"configurable": {"thread_id": "t"}}


def said(text: str) -> dict[str, Any]:
    """Build the input of a user message."""
    return {"messages": [("user", text)]}


def run(app: Any, *texts: str) -> list[Any]:
    """Send messages one after the other, and return the config of the state after each."""
    points = []
    for text in texts:
        app.invoke(said(text), THREAD)
        points.append(app.get_state(THREAD).config)
    return points


def contents(values: Any) -> list[str]:
    """Return the texts of the messages of a state."""
    return [message.content for message in values["messages"]]


def is_asked(answer: Any) -> bool:
    """Return whether a run ended with a question."""
    return bool(answer.get("__interrupt__"))


def told_world(values: Any) -> tuple[list[str], list[int]]:
    """Return the items and charges that the tool results of a state tell of."""
    items, charges = [], []
    for message in values.get("messages", ()):
        if message.type == "tool" and message.content.startswith("{"):
            result = json.loads(message.content)
            items += [result["item"]] if "item" in result else []
            charges += [result["charged"]] if "charged" in result else []
    return sorted(items), sorted(charges)
