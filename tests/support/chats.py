"""The chat of the command line with an agent of this process, and the parts that a turn of a chat yields."""

from __future__ import annotations

from typing import Any

from agentgit import Repository, RollbackAgent
from agentgit.agents.chat_turn import AskedQuestion, ModelToolCall, continue_turn, send_message
from agentgit.cli.chat import slash_commands
from agentgit.cli.chat.conversation import Chat
from agentgit.cli.chat.slash_handlers import run_command

__all__ = ["COMMANDS", "AskedQuestion", "ModelToolCall", "chatting", "continue_turn", "send_message"]

COMMANDS = {form.name: form.usage for form in slash_commands.COMMANDS}
"""The usage of each slash command, by its name."""


def chatting(repo: Repository, agent: RollbackAgent, **how: Any) -> Chat:
    """Begin a chat; the end of the `with` block closes it.

    Args:
        repo: The repository.
        agent: The agent of the chat.
        how: The other arguments of `Chat`.
    """
    return Chat(repo, agent, run_command, **how)
