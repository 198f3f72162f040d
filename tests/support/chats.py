"""The chat of the command line, on an agent of this process; and what a turn of a chat gives, piece by piece."""

from __future__ import annotations

from typing import Any

from agentgit import Repository, RollbackAgent
from agentgit.agents.chat_turn import AskedQuestion, ModelToolCall, continue_turn, send_message
from agentgit.cli import slash
from agentgit.cli.conversation import Chat
from agentgit.cli.orders import run_command

__all__ = ["COMMANDS", "AskedQuestion", "ModelToolCall", "chatting", "continue_turn", "send_message"]

COMMANDS = {form.name: form.usage for form in slash.COMMANDS}
"""Each slash command, and how to write it."""


def chatting(repo: Repository, agent: RollbackAgent, **how: Any) -> Chat:
    """Begin a chat; its block ends it.

    Args:
        repo: The repository.
        agent: Whom it talks to.
        how: The other arguments of a chat.
    """
    return Chat(repo, agent, run_command, **how)
