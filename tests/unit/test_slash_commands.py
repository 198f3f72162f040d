"""Parsing of the chat's slash commands, and the errors for wrong ones."""

import re

import pytest

from agentgit import InvalidInput, NotFound
from agentgit.cli.chat import slash_commands


@pytest.mark.parametrize(
    ("line", "error", "said"),
    [
        ("/checkpont list", NotFound, "/checkpoint list"),
        ("/checkpoint frob", NotFound, "/checkpoint restore"),
        ("/checkpoint", NotFound, "/checkpoint list"),
        ("/rollbak x", NotFound, "/rollback"),
        ("/", NotFound, "/help"),
        ("/undo 0", InvalidInput, "not a positive number"),
        ("/undo two", InvalidInput, "/undo [N]"),
        ("/undo " + "9" * 5000, InvalidInput, "not a positive number"),
        ("/rollback", InvalidInput, "Usage: /rollback REF [--force] [--yes]"),
        ("/rollback before payment", InvalidInput, "quotes"),
        ("/rollback 'before", InvalidInput, "quote"),
        ("/tree --all", InvalidInput, "/tree has no --all"),
        ("/undo --yes=1", InvalidInput, "--yes=1"),
        ("/switch main --sync", InvalidInput, "needs a value"),
    ],
)
def test_a_wrong_command_fails_with_a_suggestion_or_its_usage(line, error, said):
    """Bad input: an unknown command suggests similar ones, and a wrong use shows its usage."""
    with pytest.raises(error, match=re.escape(said)):
        slash_commands.parse(line).number()


def test_the_case_of_a_command_and_the_position_of_options_do_not_matter():
    """A command can be written in any case, and its options stand anywhere after it."""
    assert slash_commands.parse("/Checkpoint CREATE Name").form.name == "checkpoint create"
    assert slash_commands.parse("/checkpoint create Name 'two words'").words == ["Name", "two words"]
    order = slash_commands.parse("/switch --sync=world -y main")
    assert (order.words, dict(order.options)) == (["main"], {"--sync": "world", "--yes": ""})
