"""The rooms: a file imports only from rooms below its own, and importing agentgit is quick."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_d6_files_import_only_from_rooms_below():
    """D6: the contracts in pyproject.toml hold."""
    done = subprocess.run(  # noqa: S603  # our own command
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_d6_importing_agentgit_imports_neither_langgraph_nor_sql():
    """D6: `import agentgit` takes no second, because what is heavy is imported when it is first used."""
    heavy = ("langgraph", "langchain_core", "sqlmodel", "sqlalchemy", "pydantic", "agentgit.render")
    code = f"import sys, agentgit; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603  # as above
    assert done.stdout.strip() == "[]"


@pytest.mark.long
def test_d6_reading_a_session_does_not_import_langgraph(tmp_path):
    """D6: the command line reads logs and trees without LangGraph, which takes a second to import."""
    code = (
        "import sys, agentgit; repo = agentgit.open('x.db'); session = repo.session('s', create=True); "
        "str(session.tree()); "
        "session.branch().session_state; repo.close(); print('langgraph' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)  # noqa: S603  # as above
    assert done.stdout.strip() == "False"
