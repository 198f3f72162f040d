"""What the command line imports before it has anything to do."""

import json
import os
import re
import subprocess
import sys

import pytest

import agentgit

HEAVY = {"sqlalchemy", "langgraph", "langchain_core", "prompt_toolkit", "rich", "fastapi", "cryptography"}
"""Packages that take long to import. Typer itself imports pydantic when it reads an option."""

CODE = """
import atexit, json, sys
from agentgit import cli
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
cli.main()
"""

HELP_OF_EVERY_COMMAND = """
import json, sys, typer.main
from agentgit.cli.app import app

def print_help(command, path, parent=None):
    with command.make_context(path, [], parent, resilient_parsing=True) as context:
        print("#", path, command.get_help(context))
        for name, child in getattr(command, "commands", {}).items():
            print_help(child, name, context)

root = typer.main.get_command(app)
root.load_all()
print_help(root, "agentgit")
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def imported(*words: str, code: str = CODE, **environment: str) -> tuple[str, set[str]]:
    """Run a command in a new process; return its output and the modules that it imported."""
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", code, *words],
        capture_output=True, text=True, env={**os.environ, **environment}, timeout=300, check=False,
    )  # fmt: skip
    *errors, modules = done.stderr.splitlines()
    assert errors == []
    return done.stdout, set(json.loads(modules))


def completed(line: str, **environment: str) -> tuple[list[str], set[str]]:
    """Complete the last word of a line as bash does; return what is offered and the imported modules."""
    cword = str(len(line.split(" ")) - 1)
    out, modules = imported(_AGENTGIT_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=cword, **environment)
    return out.splitlines(), modules


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["chat", "--help"], ["checkpoint", "--help"]])
def test_help_imports_nothing_heavy(words):
    """Help opens no database and loads no graph, so it imports neither SQLAlchemy nor LangGraph."""
    out, modules = imported(*words)
    assert out
    assert HEAVY & packages(modules) == set()
    assert len([module for module in modules if module.startswith("agentgit.")]) < (45 if words[0][0] == "-" else 90)


def test_the_help_of_no_command_imports_anything_heavy():
    """The help of all commands together imports neither SQLAlchemy nor LangGraph nor asyncio."""
    out, modules = imported(code=HELP_OF_EVERY_COMMAND)
    assert {"# chat ", "# explore ", "# serve ", "# rotate "} <= set(re.findall(r"^# \S+ ", out, flags=re.MULTILINE))
    assert (HEAVY | {"asyncio"}) & packages(modules) == set()


@pytest.mark.parametrize(("line", "offered"), [("agentgit rol", "rollback"), ("agentgit log --lim", "--limit")])
def test_completion_of_commands_and_options_imports_nothing_heavy(line, offered):
    """Tab after the beginning of a command or an option opens no database."""
    names, modules = completed(line)
    assert names == [offered]
    assert HEAVY & packages(modules) == set()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("agentgit --db {db} tree sup", ["support-42"]),
        ("agentgit rollback --db sqlite:///{db} ", ["support-42", "HEAD", "main", "agreed", "before payment"]),
    ],
)
def test_completion_of_names_imports_neither_the_store_nor_a_graph(tmp_path, line, offered):
    """Tab after a command that takes a session or a checkpoint reads the file without SQLAlchemy and LangGraph,
    and leaves no other file behind.
    """
    path = tmp_path / "agentgit.db"
    with agentgit.open(path) as repo:
        session = repo.session("support-42", create=True)
        session.tag(session.checkpoint("before payment"), "agreed")
    files = sorted(tmp_path.iterdir())
    names, modules = completed(line.format(db=path))
    assert names == offered
    assert HEAVY & packages(modules) == set()
    assert not [module for module in modules if module.startswith("agentgit.store")]
    assert sorted(tmp_path.iterdir()) == files
