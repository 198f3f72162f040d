"""The documents: they are complete, their links resolve, and what they show is what happens."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import agentgit
from agentgit.cli.app import app
from agentgit.errors import AgentGitError

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
COMMON = "Options of every command"


def sections(page: Path) -> dict[str, str]:
    """Give the parts of a page by their headings."""
    parts = re.split(r"^#{2,3} (.+)\n", page.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Visit a command and those below it, each with the words that call it."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


COMMANDS = list(commands(get_command(app), "agentgit"))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_d6_every_command_and_option_is_documented(path, command):
    """D6: docs/cli.md has a section for each command, and each option is told there or among those of every command."""
    found = sections(DOCS / "cli.md")
    told = found[COMMON] + (found[path] if path != "agentgit" else "")
    for parameter in command.params:
        if parameter.param_type_name == "option":
            missing = [option for option in (*parameter.opts, *parameter.secondary_opts) if f"`{option}" not in told]
            assert not missing, f"{path} has {missing}, and docs/cli.md does not say so"
        else:
            assert parameter.metavar in told


def test_d6_no_command_or_option_is_documented_that_is_not_there():
    """D6: every section of docs/cli.md that is called like a command is one, and every option in a table exists."""
    known = dict(COMMANDS)
    for heading, text in sections(DOCS / "cli.md").items():
        if not heading.startswith("agentgit"):
            continue
        options = {option for p in known[heading].params for option in (*p.opts, *p.secondary_opts)}
        rows = re.findall(r"^\| (.*?) \|", text, flags=re.MULTILINE)
        told = {option for row in rows for option in re.findall(r"`(--?[a-z-]+)", row)}
        assert told <= options, f"{heading} has no {told - options}"


@pytest.mark.parametrize("name", agentgit.__all__)
def test_d6_every_public_name_is_in_the_reference(name):
    """D6: each name that `import agentgit` gives has its place in docs/reference, made from its docstring."""
    pages = "".join(page.read_text() for page in DOCS.glob("reference/*.md"))
    assert re.search(rf"^::: agentgit\.([a-z_.]+\.)?{name}$", pages, flags=re.MULTILINE)


@pytest.mark.parametrize("error", [AgentGitError, *AgentGitError.__subclasses__()], ids=lambda error: error.__name__)
def test_d6_every_error_is_documented_with_its_exit_code(error):
    """D6: a script can read in docs/reference/errors.md which failure ends with which code."""
    page = (DOCS / "reference/errors.md").read_text()
    assert f"| [`{error.__name__}`][agentgit.{error.__name__}] | {error.exit_code} |" in page


def test_d6_the_picture_in_the_readme_is_what_its_quick_start_draws():
    """D6: the tree on the first screen is not made up; the quick start, which is run, prints the same."""
    picture, *others = re.findall(r"^```text\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    assert others[0].endswith(picture)


def test_d6_the_readme_is_short():
    """D6: the README is read in one go; what is longer belongs into docs/."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_d6_links_of_the_readme_lead_somewhere():
    """D6: what README.md and CONTRIBUTING.md link to is in the repository."""
    for page in ("README.md", "CONTRIBUTING.md"):
        links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
        assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(  # noqa: S603  # our own command
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_d6_the_site_builds_and_its_links_resolve(site):
    """D6: MkDocs finds every page, heading and name that a link leads to, and every page is in the navigation."""
    assert {page.stem for page in DOCS.glob("*.md")} <= {page.stem for page in site.glob("*.html")}
    assert 'id="agentgit.RollbackPlan"' in (site / "reference/rollback.html").read_text()


def test_d6_no_page_fetches_anything_from_elsewhere(site):
    """D6: the site is read without a network: scripts, styles, fonts and pictures are its own."""
    for page in site.rglob("*.html"):
        assert not re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="https?:[^"]*"', page.read_text()), page


def test_the_documents_are_really_checked(tmp_path):
    """D6: a block that raises, prints something else, or prints what is not shown fails; so does a wrong command."""
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "conftest.py", tmp_path)
    page = [
        "```python\nprint('a 1')\nn = 2\n```\n\n```text\na ...\n```",
        "```python\nprint(n)\n```\n\n```text\n3\n```",
        "```python\nprint(n)\n```\n\nNot shown.",
        "```python\nn.nothing\n```",
        "```console\n$ agentgit --version\nagentgit ...\n```",
        "```console\n$ agentgit --version\nagentgit 0\n```",
        "```console\n$ make test\n```",
        "```text\nonly text\n```\n\n```sh\nexit 1\n```",
    ]
    (tmp_path / "docs/page.md").write_text("\n\n".join(page))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "docs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "5 failed, 2 passed" in done.stdout
