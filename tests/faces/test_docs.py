"""The documents are complete, their links resolve, their examples are run, and the site shows them in full."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import backend
import chats
import pytest
import typer.main
from command_line import every_command, run

import agentgit
from agentgit import AgentGitError, errors
from agentgit.cli.app import app
from bench.__main__ import SUBJECTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a command and all commands below it, each with the words that call it."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


COMMANDS = list(commands(every_command(), "agentgit"))


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    """Return the sections of docs/reference/cli.md by command, as docs/build.py generates them."""
    text = runpy.run_path(str(DOCS / "build.py"))["commands"]()
    parts = re.split(r"^#{2,4} `(.+)`\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_every_command_and_option_is_documented(path, command, reference):
    """The reference lists each command, option and argument with a sentence that describes it."""
    section = reference[path]
    assert command.help.endswith("."), f"{path} has no help"
    assert section.strip().startswith(command.help)
    rows = re.findall(r"^\* `([^`]+)`: (.+)$", section, flags=re.MULTILINE)
    for parameter in command.params:
        assert (parameter.help or "").endswith("."), f"{parameter.name} of {path} has no help"
        is_option = parameter.param_type_name == "option"
        names = {*parameter.opts, *parameter.secondary_opts} if is_option else {parameter.metavar}
        found = [row for row, text in rows if text.startswith(parameter.help)]
        assert any(names <= {row, *re.split(r"[ ,/]+", row)} for row in found), f"{names} of {path}: {rows}"


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS])
def test_the_help_names_each_value_without_the_type_in_python(path):
    """The help of a command says N or SESSION, not the type that Python has for it, such as <int range>."""
    words = run(*path.split()[1:], "--help").out
    assert "Usage: " in words
    assert re.findall(r"<[a-z]+(?: range|\[[a-z]+\])?>", words) == []


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_commands_have_a_json_option_unless_they_converse(path, command):
    """All commands take --json except those that converse, so that a script can read them."""
    talk = {"agentgit chat", "agentgit mcp", "agentgit serve"}
    assert path in talk or hasattr(command, "commands") or "--json" in {o for p in command.params for o in p.opts}


def test_the_docs_list_the_commands_without_json():
    """Docs/cli.md lists exactly the commands that do not take --json."""
    named = re.search(r"Every command takes `--json` except ([^.]+)\.", (DOCS / "cli.md").read_text())
    silent = {
        path.removeprefix("agentgit ")
        for path, command in COMMANDS
        if not hasattr(command, "commands") and "--json" not in {o for p in command.params for o in p.opts}
    }
    assert named is not None
    assert set(re.findall("`([^`]+)`", named[1])) == silent


def test_the_help_lists_each_command_under_one_heading():
    """Each command is under a heading of the help, and under one only, so that a newcomer can find it."""
    command = every_command()
    with command.make_context("agentgit", [], resilient_parsing=True, terminal_width=80) as context:
        _, *groups = re.split(r"^(\w.*):\n", command.get_help(context), flags=re.MULTILINE)
    under = dict(zip(groups[::2], groups[1::2], strict=True))
    del under["Options"]
    placed = [name for names in under.values() for name in re.findall(r"^  (\S+)", names, flags=re.MULTILINE)]
    assert sorted(placed) == sorted(command.commands)


def test_the_table_of_commands_has_the_first_line_of_each_help():
    """The help of all commands, which imports none of them, shows the first line of the help of each."""
    listed = typer.main.get_command(app).commands
    loaded = every_command().commands
    assert {name: one.help for name, one in listed.items()} == {
        name: one.help.partition("\n")[0] for name, one in loaded.items()
    }


def test_the_help_truncates_no_sentence():
    """In a terminal of 80 columns the help truncates no description of a command."""
    for path, command in COMMANDS:
        if hasattr(command, "commands"):
            with command.make_context(path, [], resilient_parsing=True, terminal_width=80) as context:
                lines = command.get_help(context).splitlines()
            assert not [line for line in lines[1:] if line.endswith(("…", "..."))]
            assert path != "agentgit" or "  rollback      Roll back to a checkpoint, on a new branch" in lines


def test_every_documented_command_and_option_exists():
    """Every command that a page of docs/ names exists, and so does every option that docs/cli.md names."""
    known = dict(COMMANDS)
    for page in DOCS.glob("*.md"):
        for words in re.findall(r"`agentgit ([a-z][a-z-]*(?: [a-z][a-z-]*)?)", page.read_text()):
            group = known.get(f"agentgit {words.split()[0]}")
            assert group is not None, f"{page.name}: {words}"
            assert not hasattr(group, "commands") or " " not in words or f"agentgit {words}" in known, words
    options = {option for _, one in COMMANDS for p in one.params for option in (*p.opts, *p.secondary_opts)}
    named = set(re.findall(r"`[^`\n]*?(--[a-z-]+)", (DOCS / "cli.md").read_text()))
    assert named <= options | {"--help"}


@pytest.mark.parametrize("name", agentgit.__all__)
def test_every_public_name_is_in_the_reference(name):
    """Each public name of `agentgit` has an entry in docs/reference that is made from its docstring."""
    pages = "".join(page.read_text() for page in DOCS.glob("reference/*.md"))
    assert re.search(rf"^::: agentgit\.([a-z_.]+\.)?{name}$", pages, flags=re.MULTILINE)


ERRORS = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, AgentGitError)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_is_documented_with_its_exit_code(error):
    """Docs/reference/errors.md lists the exit code of each error for scripts."""
    page = (DOCS / "reference/errors.md").read_text()
    assert f"| [`{error.__name__}`][agentgit.{error.__name__}] | {error.exit_code} |" in page


@pytest.mark.long
@pytest.mark.parametrize("name", ["rollback", "rerun"])
def test_a_picture_shows_what_the_demo_does(name):
    """Docs/images/rollback.svg and rerun.svg show what the demo does; `python docs/images/NAME.py` redraws them."""
    code = f"import {name}; assert {name}.draw() == {name}.PICTURE.read_text()"
    found = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], cwd=DOCS / "images", env=found, check=True)  # noqa: S603  # our own


def test_the_citation_names_the_version():
    """CITATION.cff names the version that the package has."""
    assert f"\nversion: {agentgit.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_figures_in_the_readme_are_those_of_the_benchmarks():
    """Every figure that README.md lists under "What it costs" is on docs/benchmarks.md, losses included."""
    section = (ROOT / "README.md").read_text().partition("\n## What it costs\n")[2].partition("\n## ")[0]
    figures = set(re.findall(r"\d+\.\d+", section))
    page = set(re.findall(r"\d+\.\d+", (DOCS / "benchmarks.md").read_text()))
    assert len(figures) > 15
    assert figures - page == set()


def test_the_picture_of_the_rooms_matches_the_contract():
    """Docs/images/rooms.svg matches the rooms of pyproject.toml; `python docs/build.py` redraws it."""
    code = "import build; assert build.rooms() == build.PICTURE.read_text()"
    subprocess.run([sys.executable, "-c", code], cwd=DOCS, check=True)  # noqa: S603  # our own command


def test_every_table_is_listed_in_the_architecture_page():
    """Docs/why/architecture.md lists each table with a description of its rows."""
    page = (DOCS / "why/architecture.md").read_text()
    assert [name for name in backend.tables() if f"| `{name}` |" not in page] == []


def test_the_readme_is_short():
    """The README has at most 130 lines; longer texts belong in docs/."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_who_is_told_to_run_commands_is_told_to_install_the_command_line():
    """A page whose blocks install agentgit and run `agentgit` installs the extra that the command needs."""
    checked = 0
    for page in [ROOT / "README.md", *DOCS.glob("*.md"), *ROOT.glob("examples/*/README.md")]:
        blocks = "\n".join(re.findall(r"^ *```(?:sh|text|console)\n(.*?)^ *```", page.read_text("utf-8"), re.M | re.S))
        installs = re.findall(r"pip install \S*?(?:\.|agentgit|\.whl)(?:\[([a-z,]+)\])?\"?(?=\s|$)", blocks)
        if installs and re.search(r"^(\$ |\S*/)?agentgit ", blocks + page.read_text("utf-8").replace("`", "\n"), re.M):
            checked += 1
            assert "cli" in installs[0].split(","), page
    assert checked >= 8


def test_links_of_the_readme_resolve():
    """The files that README.md and CONTRIBUTING.md link to are in the repository."""
    for page in ("README.md", "CONTRIBUTING.md"):
        links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
        assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_reference_index_lists_every_public_name():
    """Docs/reference/index.md lists each public name; the errors have a separate page."""
    page = (DOCS / "reference/index.md").read_text()
    names = [name for name in agentgit.__all__ if not hasattr(errors, name)]
    assert [name for name in names if f"`{name}`]" not in page] == []


def test_notebooks_and_magics_are_documented():
    """Docs/notebooks.md lists each notebook."""
    page = (DOCS / "notebooks.md").read_text()
    named = [f"`{path.stem}`" for path in (ROOT / "notebooks").glob("*.ipynb")]
    assert [name for name in named if name not in page] == []


def test_every_subject_of_the_benchmarks_is_documented():
    """Docs/benchmarks.md lists every subject or group of subjects that --only takes."""
    page = (DOCS / "benchmarks.md").read_text()
    assert {name.split("-")[0] for name in SUBJECTS if f"`{name.split('-')[0]}`" not in page} == set()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as `make docs` does, and return its folder."""
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


@pytest.mark.long
def test_the_site_builds_and_its_links_resolve(site):
    """MkDocs finds every linked page, heading and name, and every page is part of the site."""
    assert {page.stem for page in DOCS.glob("*.md")} <= {page.stem for page in site.glob("*.html")}
    after = 'href="effects.html" class="md-footer__link md-footer__link--next"'
    assert after in (site / "comparison.html").read_text()  # in the guide, not among the pages for operators
    assert 'id="agentgit.RollbackPlan"' in (site / "reference/rollback.html").read_text()
    page = (site / "reference/cli.html").read_text()
    assert [path for path, _ in COMMANDS if f'id="{path.replace(" ", "-")}"' not in page] == []
    assert [usage for usage in chats.SLASH_COMMANDS if f"<code>/{usage}</code>" not in page] == []


@pytest.mark.long
def test_no_table_is_cut_off_on_a_page(site):
    """Tables, also those of the benchmarks, are fully visible, because a number that is cut off is misread."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("There is no Chromium to look at the pages with.")
    from playwright.sync_api import sync_playwright

    cut = "one => one.scrollWidth > one.clientWidth + 1"
    code = f"[...document.querySelectorAll('.md-typeset__scrollwrap')].some({cut})"
    more = f"[...document.querySelectorAll('.highlight code')].some({cut})"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        found = []
        whole = [site / "benchmarks.html", site / "reference/cli.html"]
        for path in sorted({*site.glob("*.html"), *whole}):
            page.goto(path.as_uri())
            if page.evaluate(code) or (path in whole and page.evaluate(more)):
                found.append(path.relative_to(site).as_posix())
        browser.close()
    assert found == []


def test_no_page_loads_resources_from_elsewhere(site):
    """The site can be read offline: no page loads a script, style, picture or frame from elsewhere."""
    for page in site.rglob("*.html"):
        assert not re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="https?:[^"]*"', page.read_text()), page


@pytest.mark.long
def test_wrong_blocks_in_the_documents_fail(tmp_path):
    """A block that raises, prints something else or prints unshown output fails; so does a wrong command."""
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


PAGES = sorted(path.name for path in DOCS.glob("*.md") if path.name not in ("changelog.md", "contributing.md"))


@pytest.mark.parametrize("page", PAGES)
def test_each_page_has_a_next_step(page):
    """Each page ends with a section that links to the page to read next."""
    last = re.split(r"^## ", (DOCS / page).read_text(), flags=re.MULTILINE)[-1]
    assert last.split("\n")[0] in ("Next", "Where to begin", "Where to go next")
    assert re.search(r"\]\([\w./-]+\.md\)", last)
