"""The chat of the command line, on an agent of this process; and what a turn of a chat gives, piece by piece."""

from __future__ import annotations

from typing import Any

from agentgit import Repository, RollbackAgent
from agentgit.agents.chat_turn import AskedQuestion, Called, go_on, say
from agentgit.cli import slash
from agentgit.cli.conversation import Chat
from agentgit.cli.orders import carry_out

__all__ = ["COMMANDS", "AskedQuestion", "Called", "chatting", "go_on", "say"]

COMMANDS = {form.name: form.usage for form in slash.FORMS}
"""Each slash command, and how to write it."""


def chatting(repo: Repository, agent: RollbackAgent, **how: Any) -> Chat:
    """Begin a chat; its block ends it.

    Args:
        repo: The repository.
        agent: Whom it talks to.
        how: The other arguments of a chat.
    """
    return Chat(repo, agent, carry_out, **how)
