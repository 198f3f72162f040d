"""The built wheel in a new environment, away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.long


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without the environment of this checkout, and return its output."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "AGENTGIT_", "VIRTUAL_ENV"))}
    done = subprocess.run(  # noqa: S603  # the commands are written in this file
        [str(part) for part in command],
        cwd=cwd,
        env=inherited,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the checkout, and return its path."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, cwd=ROOT)
    return next(out.glob("agentgit-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel and its `cli` extra in a new environment, and return the folder of its programs."""
    home = tmp_path_factory.mktemp("user")
    run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    programs = home / "venv" / ("Scripts" if os.name == "nt" else "bin")
    pip = (sys.executable, "-m", "pip", "--python", programs / "python")
    run(*pip, "install", "--quiet", "--no-compile", f"{wheel}[cli]", cwd=home)
    return programs


def test_d6_the_wheel_contains_only_the_package_and_its_migrations(wheel: Path):
    """D6: the wheel has every migration, the type marker and the web files, and nothing but the package."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    in_checkout = {file.name for file in (ROOT / "alembic" / "versions").glob("*.py")}
    shipped = {name.rpartition("/")[2] for name in names if name.startswith("agentgit/migrations/versions/")}
    assert {name for name in shipped if name.endswith(".py")} == in_checkout
    assert {"agentgit/py.typed", "agentgit/migrations/env.py", "agentgit/migrations/script.py.mako"} <= names
    assert {"agentgit/web/templates/base.html", "agentgit/web/static/agentgit.css"} <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"agentgit"}


@pytest.mark.long
def test_d6_the_demo_runs_from_the_wheel_in_an_empty_folder(installed: Path, tmp_path: Path):
    """D6: the core dependencies and the `cli` extra are enough to run the demo and to show its tree."""
    told = run(installed / "agentgit", "demo", cwd=tmp_path)
    assert "> order two chairs" in told
    assert "RollbackBlocked" in told
    tree = run(installed / "agentgit", "tree", cwd=tmp_path)
    assert "main" in tree
    assert "before the table" in tree
    again = run(installed / "agentgit", "demo", cwd=tmp_path)
    assert "demo-2" in again
    assert run(installed / "python", "-m", "agentgit", "tree", "demo", cwd=tmp_path) == tree


def test_d6_the_installed_package_contains_the_migrations_it_uses(installed: Path, tmp_path: Path):
    """D6: the installed package finds its migrations inside itself, not in a checkout."""
    code = (
        "import sys, agentgit\n"
        "sys.addaudithook(lambda event, args: event == 'open' and '/env.' in str(args[0]) and print(args[0]))\n"
        "agentgit.open('new.db').close()"
    )
    used = [Path(line) for line in run(installed / "python", "-c", code, cwd=tmp_path).splitlines()]
    assert used
    assert all(path.is_relative_to(installed.parent) and "migrations" in path.parts for path in used)
