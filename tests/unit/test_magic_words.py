"""The words of the magic %agentgit: what can be written, its help and its completion, without a notebook (D4)."""

import pytest

from agentgit import NotFound
from agentgit.notebook import commands, completion
from agentgit.notebook.target import Names


def test_d4_completion_leaves_everything_else_alone():
    """D4: elsewhere, and in the lines below a magic, nothing is said; where nobody is there, that is no failure."""
    names = Names({})
    assert completion.complete(names, "agent.") is None
    assert completion.complete(names, "%%branch x\nag") is None
    assert completion.complete(names, "%agentgit rollback ") == ("", [])
    assert completion.complete(names, "%agentgit nothing ") == ("", [])
    assert completion.complete(names, "%agentgit plan 'a b' 'c") == ("'c", [])


def test_d4_every_command_is_in_the_help_and_does_something():
    """D4: what can be written is what is done, and what the help lists."""
    assert list(commands.FORMS) == list(commands._DO)
    shown = "\n".join("".join(span.text for span in line) for line in commands.help_lines())
    assert all(f"{name}" in shown for name in commands.FORMS)
    with pytest.raises(NotFound, match="Did you mean"):
        commands.parse("brances")


@pytest.mark.parametrize("line", ["help", "-h", "--help", "undo --help", "rollback -h"])
def test_d4_help_is_found_however_it_is_asked_for(line):
    """D4: who does not know the words yet writes what works everywhere else."""
    assert commands.parse(line)[0] == "help"
