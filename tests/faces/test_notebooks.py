"""The notebooks run from top to bottom, show the expected output, and are stored without outputs (D6, D4)."""

import re
import shutil
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from langchain_core.tools import tool
from nbclient import NotebookClient
from scripted import call, scripted, tool_node_graph

import agentgit
from agentgit import Diff, RollbackPlan
from agentgit.effects.plan import PlanStep
from agentgit.sessions.tree import Branch, Point, Tree

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
CHROMIUM = shutil.which("chromium")

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
    """Return the output of each code cell as text."""
    return [
        "\n".join(out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.outputs).rstrip()
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


SHOWN = {
    "01-first-branch": [
        "",
        "'Ordered 2 chairs for 80 euros (chair-1).'",
        "'Ordered 1 table for 120 euros (table-1).'",
        "table-1   1 table    120 euros  open",
        "reverse  create_order(item='table', quantity=1)",
        "Rollback done: branch main-2",
        "'Ordered 1 sofa for 300 euros (sofa-1).'",
        "├─● main-2#3  (HEAD -> main-2 *) rather a sofa",
        "+ user: rather a sofa",
        "RollbackAgent(session='notebook', branch='main'",
        "main#5 ",
        "",
    ],
    "02-undo-what-tools-did": [
        "'charge_card': 'compensable'",
        "Ordered 1 lamp for 25 euros (lamp-1).",
        "'Charged 105 euros to your card.'",
        "2  compensable  done  charge_card(amount=105)",
        "reverse  charge_card(amount=105)  compensable  its undo compensates for it",
        "agent is on branch main-2",
        "Mailed the receipt to you@example.org.",
        "Nothing was done. send_mail(",
        "1 reversed, 1 kept.",
        "2  irreversible  done  send_mail(to='you@example.org'",
        "RollbackAgent(session='undo', branch='main-3'",
        "reversed  create_order(item='sofa', quantity=1)",
        "now:\n  chair-1   2 chairs    80 euros  open\n  lamp-1    1 lamp      25 euros  open",
        "",
    ],
    "03-explore-and-compare": [
        "'Ordered 1 table for 120 euros (table-1).'",
        "branch lamps is at lamps#3; agent is on main again",
        "('main',\n ['lamp-1    2 lamps     50 euros  cancelled',",
        "explore, from main: 6 turns, 4 leaves",
        "├─● lamps#3          (lamps) two lamps, please",
        "explore/1/1#3 and explore/2/2#3 diverge at main#2",
        "2 redone, 2 drifted.",
        "chair-5   1 chair     40 euros  open",
        "",
    ],
    "04-a-team-store": [
        "",
        "'Ordered 1 table for 120 euros (table-1).'",
        "no sessions yet",
        "you are forker",
        "● main#5  (HEAD -> main *) a table, please",
        "'access.denied'",
        "Ordered 1 sofa for 300 euros (sofa-1).",
        "('viewer', ['viewer'])",
        "",
    ],
    "05-files-and-conversation": [
        "",
        "",
        "['index.html', 'notes.txt']",
        "Files: 1 file restored, 1 file deleted.",
        "(['index.html'], '<h1>Hello</h1>')",
        "'<h1>A draft</h1>'",
        "('<h1>Hello</h1>', 12)",
        "~ index.html",
        "",
    ],
}
"""The output of each cell, or a part of it; an empty text means no output."""


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_d6_every_cell_of_a_notebook_shows_the_expected_output(kernel, path, tmp_path):
    """D6, D4: each cell of each notebook runs and shows its expected output."""
    notebook = run(kernel, path, tmp_path)
    for said, wanted in zip(shown(notebook), SHOWN[path.stem], strict=True):
        assert wanted in said if wanted else said == ""
    if path == NOTEBOOKS[0]:
        _is_drawn_in_a_browser(notebook, tmp_path)


@pytest.mark.long
def test_d6_the_team_store_notebook_runs_again_on_its_databases(kernel, tmp_path):
    """D6, D4: the notebook with a template runs a second time on the databases of its first run."""
    path = next(one for one in NOTEBOOKS if one.stem == "04-a-team-store")
    for _ in range(2):
        assert shown(run(kernel, path, tmp_path))[-2] == SHOWN[path.stem][-2]


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_d4_each_cell_can_be_run_twice(kernel, path, tmp_path):
    """D4: running each cell twice in a row breaks neither that cell nor the following ones."""
    run(kernel, path, tmp_path, times=2)


def _is_drawn_in_a_browser(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Check that a browser draws the pictures of the notebook and loads nothing from elsewhere (D4)."""
    if CHROMIUM is None:
        pytest.skip("The notebook ran; there is no Chromium to look at its page with.")
    from nbconvert import HTMLExporter
    from playwright.sync_api import sync_playwright

    exporter = HTMLExporter(mathjax_url="", require_js_url="", jquery_url="")
    page_file = folder / "page.html"
    page_file.write_text(exporter.from_notebook_node(notebook)[0], encoding="utf-8")
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(page_file.as_uri())
        sizes = page.evaluate("[...document.images].map(one => [one.complete, one.naturalWidth, one.alt])")
        browser.close()
    assert len(sizes) == 2
    for complete, width, text in sizes:
        assert complete
        assert width > 200
        assert text == "notebook: 2 branches, 8 checkpoints, on main-2 at #3"
    assert [url for url in asked if not re.match("file:|data:", url)] == []


def test_d6_every_notebook_has_expected_outputs():
    """D6: every notebook has an entry in the expected outputs."""
    assert [path.stem for path in NOTEBOOKS] == list(SHOWN)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_d6_notebooks_are_stored_without_outputs(path):
    """D6: committed notebooks have no outputs and no execution counts."""
    for cell in nbformat.read(path, as_version=4).cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


@pytest.mark.long
def test_d4_marimo_shows_our_html():
    """D4: marimo's formatter shows the HTML of a tree, of a session and of a list of branches."""
    from marimo._output.formatting import try_format

    with agentgit.open(":memory:") as repo:
        repo.session("s", create=True)
        for value in (repo.session("s").tree(), repo.session("s").branches(), repo.session("s")):
            shown_as = try_format(value)
            assert (shown_as.mimetype, shown_as.data) == ("text/html", value._repr_html_())


@pytest.mark.long
def test_d4_very_long_words_stay_inside_their_table_cells():
    """D4: on a narrow page a cell is neither squeezed nor wider than the page, and the picture is not tiny."""
    if CHROMIUM is None:
        pytest.skip("There is no Chromium to look at pages with.")
    from playwright.sync_api import sync_playwright

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
        with pytest.raises(RuntimeError):
            agent.run("again")
        track, history = agent.tool_track(), agent.history()
    step = PlanStep(invocation=track[0], action="keep", why=f"it returned {word}")
    main = Branch(id=1, name="b" * 90, points=[Point(id=1, number=1, title="t" * 90, tags=("v1", "x" * 90))])
    shown = [
        track,
        RollbackPlan(checkpoint_id=1, target="main#1", position=0, steps=[step]),
        history,
        Diff(from_id=1, to_id=2, added_messages=[{"role": "user", "content": word}]),
        Tree(session_name="s", roots=[main]),
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 760, "height": 800})
        page.set_content("".join(value._repr_html_() for value in shown))
        page.evaluate("document.querySelectorAll('td details').forEach(one => { one.open = true })")
        wide = page.evaluate("document.documentElement.scrollWidth")
        calls = page.evaluate("[...document.querySelectorAll('code')].map(one => one.parentElement.clientWidth)")
        shrunk = page.evaluate("(one => one.clientWidth / one.naturalWidth)(document.images[0])")
        browser.close()
    assert wide <= 760
    assert min(calls) >= 150
    assert shrunk >= 0.8
