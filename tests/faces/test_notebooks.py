"""The notebooks run from top to bottom, and are stored with what they show."""

import importlib.util
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from browsers import browser, needs_browser
from jupyter_client.manager import KernelManager
from langchain_core.tools import tool
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from scripted import call, scripted, tool_node_graph

import agentgit
from agentgit.notebook import browse

__all__ = ["browser"]  # a fixture

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

_spec = importlib.util.spec_from_file_location("notebook_runner", FOLDER / "run.py")
runner = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(runner)

# Jupyter's client leaves its sockets open, for which the garbage collector warns.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::DeprecationWarning", "default::pytest.PytestUnraisableExceptionWarning"
)


FRESH = """
import os
os.chdir({folder!r})
get_ipython().extension_manager.loaded.discard("agentgit")
%reset -f
"""


@pytest.fixture(scope="module")
def kernel():
    """Start one kernel for all notebooks, because a kernel takes seconds to import LangGraph."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)


def run(kernel: KernelManager, path: Path, folder: Path, *, times: int = 1) -> nbformat.NotebookNode:
    """Run a notebook in a folder with an empty namespace, and return it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [deepcopy(cell) for cell in notebook.cells for _ in range(times)]
    fresh = nbformat.v4.new_code_cell(FRESH.format(folder=str(folder)))
    notebook.cells.insert(0, fresh)
    client = NotebookClient(notebook, km=kernel, timeout=300, startup_timeout=300)
    try:
        client.execute()
    finally:
        client.kc.stop_channels()
    notebook.cells.remove(fresh)
    return notebook


def shown(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the output of each code cell as text, without the seconds that a rerun took."""
    texts = [
        "\n".join(out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.outputs).rstrip()
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    return [re.sub(r"time: \S+ s recorded, \S+ s now", "time", text) for text in texts]


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_is_stored_with_it(path):
    """Each cell of each notebook runs and shows what is stored; `python notebooks/run.py` stores it anew."""
    again = runner.run(path)
    stored = nbformat.read(path, as_version=4)
    assert shown(again) == shown(stored)
    assert kinds(again) == kinds(stored)


def kinds(notebook: nbformat.NotebookNode) -> list[list[str]]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [sorted(output.get("data", [])) for output in outputs]


@pytest.mark.long
def test_the_team_store_notebook_runs_again_on_its_databases(kernel, tmp_path):
    path = next(one for one in NOTEBOOKS if one.stem == "04-a-team-store")
    for _ in range(2):
        assert shown(run(kernel, path, tmp_path))[-2] == shown(nbformat.read(path, as_version=4))[-2]


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_cell_can_be_run_twice(kernel, path, tmp_path):
    run(kernel, path, tmp_path, times=2)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_need_no_kernel_and_name_no_time_id_or_directory_of_the_run(path):
    """GitHub, VS Code and other readers of files show text, HTML and pictures; they run no scripts and load nothing.

    What differs from run to run is replaced, so that a notebook changes only if what it shows has changed.
    """
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert any(shown(notebook))
    for output in [output for cell in code for output in cell.outputs]:
        assert output.output_type != "error"
        assert set(output.get("data", {})) <= {"text/plain", "text/html"}
        html = output.get("data", {}).get("text/html", "")
        assert re.findall(r"<script|javascript:|\bon\w+=|https?://", html) == []
    before = nbformat.writes(notebook)
    assert nbformat.writes(runner.with_stable_outputs(notebook, "/nowhere")) == before
    assert re.findall(r"[/]tmp", before) == []


@needs_browser
@pytest.mark.long
def test_the_first_notebook_is_drawn_where_it_lies(browser, tmp_path):
    exporter = HTMLExporter(mathjax_url="", require_js_url="", jquery_url="")
    drawn, _ = exporter.from_notebook_node(nbformat.read(NOTEBOOKS[0], as_version=4))
    (tmp_path / "page.html").write_text(drawn, encoding="utf-8")
    asked: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "page.html").as_uri())
    sizes = page.evaluate("[...document.images].map(one => [one.complete, one.naturalWidth > 200, one.alt])")
    assert sizes == [[True, True, "notebook: 2 branches, 8 checkpoints, on main-2 at #3"]] * 2
    assert [url for url in asked if not re.match("file:|data:", url)] == []


@pytest.mark.long
def test_the_notebook_for_prompts_runs_in_marimo(tmp_path):
    marimo = [sys.executable, "-m", "marimo"]
    path = FOLDER / "06-ab-prompts.ipynb"
    for command in (["convert", str(path), "-o", "ab.py"], ["export", "html", "ab.py", "-o", "ab.html"]):
        subprocess.run([*marimo, *command], cwd=tmp_path, check=True, capture_output=True)  # noqa: S603  # our own file
    page = (tmp_path / "ab.html").read_text(encoding="utf-8")
    for text in ("3 branches, 13 checkpoints", "diverge at main#3", "two of them 600 euros", "data:image/svg+xml"):
        assert text in page
    with agentgit.open(f"sqlite:///{tmp_path / 'agentgit.db'}") as repo:
        assert repo.session("prompts").branch().name == "friendly-2"


@pytest.mark.long
def test_marimo_shows_our_html():
    from marimo._output.formatting import try_format

    with agentgit.open(":memory:") as repo:
        repo.session("s", create=True)
        for value in (repo.session("s").tree(), repo.session("s").branches(), repo.session("s")):
            shown_as = try_format(value)
            assert (shown_as.mimetype, shown_as.data) == ("text/html", value._repr_html_())
        assert "<marimo-anywidget" in try_format(browse(repo.session("s"))).data


@needs_browser
@pytest.mark.long
def test_very_long_words_stay_inside_their_table_cells(browser):
    """On a narrow page a cell is neither squeezed nor wider than the page, and the picture is not tiny."""
    word = "W" * 3_000

    @tool
    def create_order(item: str, quantity: int = 1) -> dict[str, str]:
        """Order something."""
        if item == word:
            raise RuntimeError(word)
        return {"order": word}

    replies = [call("create_order", item="chair", quantity=2), word, call("create_order", item=word)]
    with agentgit.open(":memory:") as repo:
        agent = repo.wrap(tool_node_graph(scripted(*replies), [create_order]), "s")
        agent.run(f"{word}\n{word}")
        agent.session.tag("HEAD", "x" * 90, branch=agent.branch_id)
        with pytest.raises(RuntimeError):
            agent.run("again")
        agent.fork("main#1", name="b" * 90)
        values = [agent.tool_track(), agent.plan_rollback("main#1"), agent.history()]
        values += [agent.session.diff("main#1", "HEAD"), agent.tree()]
        drawn = "".join(value._repr_html_() for value in values)
    page = browser.new_page(viewport={"width": 760, "height": 800})
    page.set_content(drawn)
    page.evaluate("document.querySelectorAll('td details').forEach(one => { one.open = true })")
    wide = page.evaluate("document.documentElement.scrollWidth")
    calls = page.evaluate("[...document.querySelectorAll('td details')].map(one => one.parentElement.clientWidth)")
    shrunk = page.evaluate("(one => one.clientWidth / one.naturalWidth)(document.images[0])")
    assert wide <= 760
    assert min(calls) >= 150
    assert shrunk >= 0.8
