"""Commands, help and completion of the magic %agentgit, without a notebook."""

import pytest

from agentgit import NotFound
from agentgit.notebook import arguments, commands, completion
from agentgit.notebook.target import NotebookNamespace


def test_completion_offers_nothing_elsewhere_and_without_an_agent():
    """Completion offers nothing outside the line of a magic or without an agent, and does not raise."""
    names = NotebookNamespace({})
    assert completion.complete(names, "agent.") is None
    assert completion.complete(names, "%%branch x\nag") is None
    assert completion.complete(names, "%agentgit rollback ") == ("", [])
    assert completion.complete(names, "%agentgit nothing ") == ("", [])
    assert completion.complete(names, "%agentgit plan 'a b' 'c") == ("'c", [])


def option_words():
    """Yield the words of each command: its name, and its options."""
    for name, (_, options) in arguments.COMMANDS.items():
        yield [name, *(words[0] for words, _ in options if words[0].startswith("-"))]


def test_every_command_has_an_implementation_and_a_help_line():
    """Every command has an implementation and its whole usage in the help, and a typo gets a suggestion."""
    assert list(arguments.COMMANDS) == list(commands._HANDLERS)
    shown = "\n".join("".join(span.text for span in line) for line in arguments.help_lines())
    assert all(word in shown for words in option_words() for word in words)
    assert "…" not in shown
    with pytest.raises(NotFound, match="Did you mean"):
        arguments.parse("brances")


@pytest.mark.parametrize("line", ["help", "-h", "--help", "undo --help", "rollback -h"])
def test_every_form_of_the_help_option_parses_as_help(line):
    """`help`, `-h` and `--help`, alone or after a command, parse as the help command."""
    assert arguments.parse(line)[0] == "help"
