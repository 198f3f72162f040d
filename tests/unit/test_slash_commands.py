"""Parsing of the chat's slash commands, and the errors for wrong ones (C7)."""

import re

import pytest

from agentgit import InvalidInput, NotFound
from agentgit.cli import slash_commands


@pytest.mark.parametrize(
    ("line", "error", "said"),
    [
        ("/checkpont list", NotFound, "/checkpoint list"),
        ("/checkpoint frob", NotFound, "/checkpoint restore"),
        ("/rollbak x", NotFound, "/rollback"),
        ("/", NotFound, "/help"),
        ("/undo 0", InvalidInput, "not a positive number"),
        ("/undo two", InvalidInput, "/undo [N]"),
        ("/undo " + "9" * 5000, InvalidInput, "not a positive number"),
        ("/rollback", InvalidInput, "Usage: /rollback PLACE [--force] [--yes]"),
        ("/rollback before payment", InvalidInput, "quotes"),
        ("/rollback 'before", InvalidInput, "quote"),
        ("/tree --all", InvalidInput, "/tree has no --all"),
        ("/undo --yes=1", InvalidInput, "--yes=1"),
        ("/switch main --sync", InvalidInput, "needs a value"),
    ],
)
def test_c7_a_wrong_command_fails_with_a_suggestion_or_its_usage(line, error, said):
    """C7, bad input: an unknown command suggests similar ones, and a wrong use shows its usage."""
    with pytest.raises(error, match=re.escape(said)):
        slash_commands.parse(line).number()


def test_c7_commands_have_aliases_and_free_option_order():
    """C7: `save` means `create`, `/checkpoint` alone lists; case and the position of options do not matter."""
    assert slash_commands.parse("/Checkpoint SAVE Name").form.name == "checkpoint create"
    assert slash_commands.parse("/checkpoint").form.name == "checkpoint list"
    assert slash_commands.parse("/checkpoint create Name 'two words'").words == ["Name", "two words"]
    order = slash_commands.parse("/switch --sync=world -y main")
    assert (order.words, dict(order.options)) == (["main"], {"--sync": "world", "--yes": ""})
