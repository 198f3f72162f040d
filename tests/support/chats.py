"""The chat of the command line with an agent of this process, and the parts that a turn of a chat yields."""

from __future__ import annotations

from typing import Any

from agentgit import Repository, RollbackAgent
from agentgit.agents.chat_turn import AskedQuestion, ModelToolCall, continue_turn, send_message
from agentgit.cli.chat.conversation import SLASH_COMMANDS, Chat

__all__ = ["COMMANDS", "SLASH_COMMANDS", "AskedQuestion", "ModelToolCall", "chatting", "continue_turn", "send_message"]

COMMANDS = [usage.partition(" [")[0].rstrip(" ABCDEFGHIJKLMNOPQRSTUVWXYZ") for usage in SLASH_COMMANDS]
"""The names of the slash commands that the help lists."""


def chatting(repo: Repository, agent: RollbackAgent, **how: Any) -> Chat:
    """Begin a chat; the end of the `with` block closes it.

    Args:
        repo: The repository.
        agent: The agent of the chat.
        how: The other arguments of `Chat`.
    """
    return Chat(repo, agent, **how)
