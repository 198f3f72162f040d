"""Tools whose results, errors, prechecks and undo functions speak in the words of next steps."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import tool
from langgraph.types import interrupt
from scripted import call, saying, tool_node_graph

import agentgit
from agentgit.next_steps import WORDS as WORDS_OF
from agentgit.next_steps import Face, Next, Reason, Verb, once

__all__ = ["WORDS_OF", "Face", "Next", "Reason", "Verb", "once"]

WORDS = (
    "run `pip install stripe` first",
    "retry with force=True; then wait",
    "agent.rollback(1) or repo.resume(2)",
    "resume operation 7, wrap the graph ...",
)
"""What a user's own functions, names and texts say; each fits into one cell of a table."""


def complain(args: dict[str, Any], result: Any) -> None:
    raise RuntimeError(args["text"])


def refuse(invocation: agentgit.ToolInvocation) -> str:
    return str(invocation.args["text"])


@agentgit.reversible(complain)
@tool
def keep(text: str) -> str:
    """Return the text; the undo raises it."""
    return text


@agentgit.reversible(complain, precheck=refuse)
@tool
def guard(text: str) -> str:
    """Return the text; the precheck refuses with it."""
    return text


@agentgit.effect("read_only")
@tool
def fail(text: str) -> str:
    """Raise the text."""
    raise ValueError(text)


@agentgit.effect("read_only")
@tool
def ask(text: str) -> str:
    """Ask a person the text."""
    return str(interrupt(text))


TOOLS = [keep, guard, fail, ask]


def spoken(repo: agentgit.Repository, tool_name: str, session: str = WORDS[0]) -> agentgit.RollbackAgent:
    """Run a turn for each text, which calls a tool with it; the texts are the names of what can have a name, too."""
    replies = [one for text in WORDS for one in (call(tool_name, text=text), text)]
    agent = repo.wrap(tool_node_graph(saying(*replies), TOOLS), session)
    for number, text in enumerate(WORDS):
        agent.run(text)
        agent.checkpoint(WORDS[(number + 1) % 4], description=WORDS[(number + 2) % 4], data={"why": text})
    agent.session.tag("HEAD", WORDS[3])
    return agent
