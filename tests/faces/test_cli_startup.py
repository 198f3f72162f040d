"""What agentgit imports before it has anything to do, and what it says where an optional package is missing."""

import json
import os
import re
import subprocess
import sys

import pytest

import agentgit
from agentgit import Unavailable

HEAVY = {"sqlalchemy", "langgraph", "langchain_core", "prompt_toolkit", "rich", "fastapi", "cryptography"}
"""Packages that take long to import. Typer itself imports pydantic when it reads an option."""

TELL = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
"""

COMMAND = "from agentgit import cli; cli.main()"

HELP_OF_EVERY_COMMAND = """
import typer.main
from agentgit.cli.app import app

def print_help(command, path, parent=None):
    with command.make_context(path, [], parent, resilient_parsing=True) as context:
        print("#", path, command.get_help(context))
        for name, child in getattr(command, "commands", {}).items():
            print_help(child, name, context)

root = typer.main.get_command(app)
root.load_all()
print_help(root, "agentgit")
"""


def python(code: str, *words: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=300, check=False, **more
    )


def imported(*words: str, code: str = COMMAND, **environment: str) -> tuple[str, set[str]]:
    """Run a command in a new process; return its output and the modules that it imported."""
    done = python(TELL + code, *words, env={**os.environ, **environment})
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
    out, modules = imported(*words)
    assert out
    assert HEAVY & packages(modules) == set()
    assert len([module for module in modules if module.startswith("agentgit.")]) < (45 if words[0][0] == "-" else 90)


def test_the_help_of_no_command_imports_anything_heavy():
    out, modules = imported(code=HELP_OF_EVERY_COMMAND)
    assert {"# chat ", "# explore ", "# serve ", "# rotate "} <= set(re.findall(r"^# \S+ ", out, flags=re.MULTILINE))
    assert (HEAVY | {"asyncio"}) & packages(modules) == set()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("agentgit rol", ["rollback"]),
        ("agentgit log --lim", ["--limit"]),
        ("agentgit --db {db} tree sup", ["support-42"]),
        ("agentgit rollback --db sqlite:///{db} ", ["support-42", "HEAD", "main", "agreed", "before payment"]),
    ],
)
def test_completion_imports_neither_the_store_nor_a_graph(tmp_path, line, offered):
    """It reads the file without SQLAlchemy, and leaves no other file behind."""
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


def test_a_command_that_reads_imports_no_graph(tmp_path):
    agentgit.open(tmp_path / "agentgit.db").close()
    assert "langgraph" not in packages(imported("sessions", "--db", str(tmp_path / "agentgit.db"))[1])


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import agentgit", {"IPython", "ipykernel", "langgraph", "sqlalchemy"}),
        ("import agentgit.mcp.server", {"langgraph", "langchain_core"}),
    ],
)
def test_an_import_of_agentgit_imports_nothing_heavy(code, heavy):
    assert heavy & packages(imported(code=code)[1]) == set()


MISSING = {
    "typer": (
        "import agentgit.__main__",
        1,
        'The command line needs typer and rich. Run: pip install "agentgit[cli]"',
    ),
    "mcp": (COMMAND, Unavailable.exit_code, "pip install 'agentgit[mcp]' installs it."),
    "pandas": (
        "import agentgit; agentgit.open(':memory:').sessions().to_frame()",
        1,
        "agentgit.errors.Unavailable: to_frame needs pandas. pip install 'agentgit[pandas]' installs it.",
    ),
}
"""For each optional package: what needs it, the exit code and the end of the last line on standard error."""


@pytest.mark.parametrize("package", MISSING)
def test_what_needs_a_missing_package_names_the_pip_command(package, tmp_path):
    code, exit_code, said = MISSING[package]
    done = python(f"import sys; sys.modules[{package!r}] = None; sys.argv[1:] = ['mcp']; {code}", cwd=tmp_path)
    assert done.returncode == exit_code
    assert done.stderr.splitlines()[-1].endswith(said)
    assert "Traceback" not in done.stderr or package == "pandas"
