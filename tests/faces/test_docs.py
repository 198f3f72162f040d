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
from browsers import browser, needs_browser
from command_line import every_command, run

import agentgit
from agentgit import AgentGitError, errors
from agentgit.cli.app import app
from bench.__main__ import SUBJECTS

__all__ = ["browser"]  # a fixture

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


def test_every_command_takes_json_unless_it_converses_and_the_docs_list_those():
    named = re.search(r"Every command takes `--json` except ([^.]+)\.", (DOCS / "cli.md").read_text())
    silent = {
        path.removeprefix("agentgit ")
        for path, command in COMMANDS
        if not hasattr(command, "commands") and "--json" not in {o for p in command.params for o in p.opts}
    }
    assert set(re.findall("`([^`]+)`", named[1])) == silent == {"chat", "mcp", "serve"}


def test_the_help_lists_each_command_under_one_heading_and_truncates_no_sentence():
    """In a terminal of 80 columns a newcomer finds each command, and reads all that is said about it."""
    for path, command in COMMANDS:
        if hasattr(command, "commands"):
            with command.make_context(path, [], resilient_parsing=True, terminal_width=80) as context:
                shown = command.get_help(context)
            assert not [line for line in shown.splitlines()[1:] if line.endswith(("…", "..."))]
            if path == "agentgit":
                assert "\n  rollback      Roll back to a checkpoint, on a new branch\n" in shown
                _, *groups = re.split(r"^(\w.*):\n", shown, flags=re.MULTILINE)
                under = dict(zip(groups[::2], groups[1::2], strict=True))
                del under["Options"]
                placed = [n for names in under.values() for n in re.findall(r"^  (\S+)", names, flags=re.MULTILINE)]
                assert sorted(placed) == sorted(command.commands)


def test_the_table_of_commands_has_the_first_line_of_each_help():
    listed = typer.main.get_command(app).commands
    loaded = every_command().commands
    assert {name: one.help for name, one in listed.items()} == {
        name: one.help.partition("\n")[0] for name, one in loaded.items()
    }


def test_every_documented_command_and_option_exists():
    known = dict(COMMANDS)
    for page in DOCS.glob("*.md"):
        for words in re.findall(r"`agentgit ([a-z][a-z-]*(?: [a-z][a-z-]*)?)", page.read_text()):
            group = known.get(f"agentgit {words.split()[0]}")
            assert group is not None, f"{page.name}: {words}"
            assert not hasattr(group, "commands") or " " not in words or f"agentgit {words}" in known, words
    options = {option for _, one in COMMANDS for p in one.params for option in (*p.opts, *p.secondary_opts)}
    named = set(re.findall(r"`[^`\n]*?(--[a-z-]+)", (DOCS / "cli.md").read_text()))
    assert named <= options | {"--help"}


def test_every_public_name_is_in_the_reference():
    """Each has an entry that is made from its docstring, and a line in the index or on the page of the errors."""
    pages = "".join(page.read_text() for page in DOCS.glob("reference/*.md"))
    entries = set(re.findall(r"^::: agentgit\.(?:[a-z_.]+\.)?(\w+)$", pages, flags=re.MULTILINE))
    assert set(agentgit.__all__) - entries == set()
    index = (DOCS / "reference/index.md").read_text()
    assert [name for name in agentgit.__all__ if not hasattr(errors, name) and f"`{name}`]" not in index] == []
    page = (DOCS / "reference/errors.md").read_text()
    found = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, AgentGitError)]
    lines = [f"| [`{error.__name__}`][agentgit.{error.__name__}] | {error.exit_code} |" for error in found]
    assert [line for line in lines if line not in page] == []


PICTURES = {
    "rollback": ("images", "import rollback; assert rollback.draw() == rollback.PICTURE.read_text()"),
    "rerun": ("images", "import rerun; assert rerun.draw() == rerun.PICTURE.read_text()"),
    "rooms": ("", "import build; assert build.rooms() == build.PICTURE.read_text()"),
}


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.long) for name in ("rollback", "rerun")), "rooms"]
)
def test_a_picture_shows_what_the_demo_does_or_the_rooms_of_the_package(name):
    """`python docs/images/NAME.py` redraws it, or `python docs/build.py` the rooms."""
    folder, code = PICTURES[name]
    found = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], cwd=DOCS / folder, env=found, check=True)  # noqa: S603  # our own


def test_the_readme_is_short_its_links_resolve_and_the_citation_names_the_version():
    """Longer texts than 130 lines belong in docs/."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
    for page in ("README.md", "CONTRIBUTING.md"):
        links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
        assert [link for link in links if not (ROOT / link).exists()] == []
    assert f"\nversion: {agentgit.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_figures_in_the_readme_are_those_of_the_benchmarks():
    section = (ROOT / "README.md").read_text().partition("\n## What it costs\n")[2].partition("\n## ")[0]
    figures = set(re.findall(r"\d+\.\d+", section))
    page = set(re.findall(r"\d+\.\d+", (DOCS / "benchmarks.md").read_text()))
    assert len(figures) > 15
    assert figures - page == set()


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


def test_every_table_notebook_and_subject_of_the_benchmarks_is_documented():
    pages = {
        "why/architecture.md": [f"| `{name}` |" for name in backend.tables()],
        "notebooks.md": [f"`{path.stem}`" for path in (ROOT / "notebooks").glob("*.ipynb")],
        "benchmarks.md": [f"`{name.split('-')[0]}`" for name in SUBJECTS],
    }
    for page, names in pages.items():
        text = (DOCS / page).read_text()
        assert [name for name in names if name not in text] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)  # noqa: S603  # ours
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long
def test_the_site_builds_and_its_links_resolve(site):
    assert {page.stem for page in DOCS.glob("*.md")} <= {page.stem for page in site.glob("*.html")}
    after = 'href="effects.html" class="md-footer__link md-footer__link--next"'
    assert after in (site / "comparison.html").read_text()  # in the guide, not among the pages for operators
    assert 'id="agentgit.RollbackPlan"' in (site / "reference/rollback.html").read_text()
    page = (site / "reference/cli.html").read_text()
    assert [path for path, _ in COMMANDS if f'id="{path.replace(" ", "-")}"' not in page] == []
    assert [usage for usage in chats.SLASH_COMMANDS if f"<code>/{usage}</code>" not in page] == []


@needs_browser
@pytest.mark.long
def test_no_table_is_cut_off_on_a_page(site, browser):
    """A number that is cut off is misread."""
    cut = "one => one.scrollWidth > one.clientWidth + 1"
    code = f"[...document.querySelectorAll('.md-typeset__scrollwrap')].some({cut})"
    more = f"[...document.querySelectorAll('.highlight code')].some({cut})"
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    found = []
    whole = [site / "benchmarks.html", site / "reference/cli.html"]
    for path in sorted({*site.glob("*.html"), *whole}):
        page.goto(path.as_uri())
        if page.evaluate(code) or (path in whole and page.evaluate(more)):
            found.append(path.relative_to(site).as_posix())
    assert found == []


@needs_browser
@pytest.mark.long
def test_the_search_works_from_a_disk(site, browser):
    """A word that is typed into the search finds its pages, guides first, without a server or a network."""
    page = browser.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    for place in ("index.html", "reference/session.html"):
        page.goto((site / place).as_uri())
        page.locator("[data-md-component=search-query]").fill("compensable")
        page.locator(".md-search-result__item a[href*='effects.html']").first.wait_for(timeout=60_000)
    page.goto((site / "index.html").as_uri())
    page.locator("[data-md-component=search-query]").fill("rollback")
    page.locator(".md-search-result__item a[href*='undo.html']").first.wait_for()
    found = page.locator(".md-search-result__item > a:first-of-type").evaluate_all("all => all.map(a => a.href)")
    assert not [url for url in found[:5] if "/why/" in url or "/reference/" in url]
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_no_page_loads_resources_from_elsewhere(site):
    for page in site.rglob("*.html"):
        assert not re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="https?:[^"]*"', page.read_text()), page


@pytest.mark.long
def test_wrong_blocks_in_the_documents_fail(tmp_path):
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
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "docs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S603  # our own
    assert "5 failed, 2 passed" in done.stdout


PAGES = sorted(path.name for path in DOCS.glob("*.md") if path.name not in ("changelog.md", "contributing.md"))


@pytest.mark.parametrize("page", PAGES)
def test_each_page_ends_with_a_section_that_links_to_the_next_page(page):
    last = re.split(r"^## ", (DOCS / page).read_text(), flags=re.MULTILINE)[-1]
    assert last.split("\n")[0] in ("Next", "Where to begin", "Where to go next")
    assert re.search(r"\]\([\w./-]+\.md\)", last)
