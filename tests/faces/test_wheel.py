"""The built distributions, and the wheel in a new environment, away from the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.long


ADDRESS = "https://git.example.com/team/agentgit"


def run(*command: str | Path, cwd: Path, **more: str) -> str:
    """Run a command without the environment of this checkout, and return its output."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "AGENTGIT_", "VIRTUAL_ENV"))}
    words = [str(part) for part in command]
    done = subprocess.run(  # noqa: S603  # the commands are written in this file
        words, cwd=cwd, env=inherited | more, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(out: Path, source: Path = ROOT, *options: str, **more: str) -> Path:
    run(sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", out, source, cwd=ROOT, **more)
    return out


def only(folder: Path, pattern: str) -> Path:
    [found] = folder.glob(pattern)
    return found


def metadata(wheel: Path) -> Message:
    """Return the metadata of a wheel; its payload is the long description."""
    with zipfile.ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))))


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution and from it the wheel, without the address of a repository; return the folder."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return only(dist, "*.whl")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel and its `cli` extra in a new environment, and return the folder of its programs."""
    home = tmp_path_factory.mktemp("user")
    run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    programs = home / "venv" / ("Scripts" if os.name == "nt" else "bin")
    pip = (sys.executable, "-m", "pip", "--python", programs / "python")
    run(*pip, "install", "--quiet", "--no-compile", f"{wheel}[cli]", cwd=home)
    return programs


def test_the_wheel_has_every_file_of_the_package_and_its_migrations_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    migrations = {name for name in names if name.startswith("agentgit/migrations/")}
    in_checkout = {file.name for file in (ROOT / "alembic" / "versions").glob("*.py")}
    shipped = {name.rpartition("/")[2] for name in migrations if "/versions/" in name and name.endswith(".py")}
    assert shipped == in_checkout
    assert {"agentgit/migrations/env.py", "agentgit/migrations/script.py.mako"} <= migrations
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "agentgit").rglob("*") if path.is_file()}
    files = {name for name in files if "__pycache__" not in name and not name.endswith((".db", ".pyc"))}
    assert {name for name in names - migrations if name.startswith("agentgit/")} == files
    assert {"agentgit/py.typed", "agentgit/web/templates/base.html", "agentgit/web/static/agentgit.css"} <= files
    assert {name.split("/")[0].split("-")[0] for name in names} == {"agentgit"}


def test_the_wheel_of_the_source_distribution_is_the_wheel_of_the_checkout(dist: Path, wheel: Path, tmp_path: Path):
    direct = only(build(tmp_path / "direct", ROOT, "--wheel"), "*.whl")
    assert direct.read_bytes() == wheel.read_bytes()
    with tarfile.open(only(dist, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "deploy", "docs", "tests"} <= tops
    assert not tops & {".venv", "dist", "site"}
    again = only(build(tmp_path / "again", only(tmp_path, "agentgit-*"), "--wheel"), "*.whl")
    assert again.read_bytes() == wheel.read_bytes()


def test_the_index_shows_a_description_without_dead_links(dist: Path, wheel: Path):
    """Where no repository is known, the long description has no relative link or picture, and no addresses."""
    facts = metadata(wheel)
    text = str(facts.get_payload())
    assert facts["Description-Content-Type"] == "text/markdown"
    assert facts.get_all("Project-URL") is None
    assert "<!--" not in text
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if not link.startswith("https://img.shields.io/")] == []
    assert "**Any compiled graph**, unmodified, sync and async (recipes)" in text
    run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir(), cwd=dist)


def test_a_release_links_to_the_files_of_its_tag(dist: Path, tmp_path: Path):
    """With one variable, links, pictures and addresses name files that the tag of the repository has."""
    out = build(tmp_path / "out", AGENTGIT_REPOSITORY_URL=f"{ADDRESS}/")
    facts = metadata(only(out, "*.whl"))
    at = rf"{ADDRESS}/(?:blob|raw)/v{facts['Version']}/"
    urls = [str(line).partition(", ")[2] for line in facts.get_all("Project-URL")]
    links = [link for link in re.findall(r"\]\(([^)]+)\)", str(facts.get_payload())) if "shields.io" not in link]
    files = [re.sub(at, "", link).partition("#")[0] for link in [*links, *urls] if re.match(at, link)]
    assert set(urls) - {link for link in urls if re.match(at, link)} == {ADDRESS, f"{ADDRESS}/issues"}
    assert len(files) > 30
    assert [link for link in links if not re.match(at, link)] == []
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert f"]({ADDRESS}/raw/v{facts['Version']}/docs/images/rollback.svg)" in str(facts.get_payload())
    run(sys.executable, "-m", "twine", "check", "--strict", *out.iterdir(), cwd=out)
    with pytest.raises(AssertionError, match="must be an https address"):
        build(tmp_path / "wrong", AGENTGIT_REPOSITORY_URL="git.example.com)")


def test_the_demo_runs_from_the_wheel_in_an_empty_folder(installed: Path, tmp_path: Path):
    told = run(installed / "agentgit", "demo", cwd=tmp_path)
    assert "> order two chairs" in told
    assert "RollbackBlocked" in told
    tree = run(installed / "agentgit", "tree", cwd=tmp_path)
    assert "before the table" in tree
    assert run(installed / "python", "-m", "agentgit", "tree", "demo", cwd=tmp_path) == tree


def test_the_installed_package_contains_the_migrations_it_uses(installed: Path, tmp_path: Path):
    code = (
        "import sys, agentgit\n"
        "def told(event, args):\n"
        "    if event == 'open' and '0001_' in str(args[0]):\n"
        "        print(args[0])\n"
        "sys.addaudithook(told)\n"
        "agentgit.open('new.db').close()"
    )
    used = [Path(line) for line in run(installed / "python", "-c", code, cwd=tmp_path).splitlines()]
    assert used
    assert all(path.is_relative_to(installed.parent) and "migrations" in path.parts for path in used)
