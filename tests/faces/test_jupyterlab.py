"""The clickable tree in a real JupyterLab. Skipped where JupyterLab is not installed: `pip install jupyterlab`."""

import importlib.util
import sys

import nbformat
import pytest
from browsers import browser, needs_browser
from web_servers import free_port, running

import agentgit

__all__ = ["browser"]  # a fixture

CELLS = (
    "import agentgit\nfrom agentgit.demo import EFFECTS, build, open_shop\nfrom agentgit.notebook import browse\n\n"
    'agent = agentgit.open("lab.db").wrap(build(open_shop("shop.db")), session="lab", effects=EFFECTS)\n'
    'agent.run("order two chairs")\nagent.run("a table, please")',
    "tree = browse(agent)\ntree",
)


@pytest.fixture
def lab(tmp_path):
    """Start JupyterLab on a notebook, and return the address of the notebook."""
    if importlib.util.find_spec("jupyterlab") is None:
        pytest.skip("JupyterLab is not installed.")
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    python = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=python), tmp_path / "a.ipynb")
    port = free_port()
    options = (
        f"--port={port}",
        "--no-browser",
        "--allow-root",
        "--ServerApp.port_retries=0",
        "--IdentityProvider.token=",
    )
    given = {"HOME": str(tmp_path), "JUPYTER_PREFER_ENV_PATH": "1"}
    with running([sys.executable, "-m", "jupyterlab", *options], port, tmp_path / "lab.log", tmp_path, **given) as url:
        yield f"{url}/lab/tree/a.ipynb"


@needs_browser
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_clicks_in_jupyterlab_roll_back(lab, browser, tmp_path):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(60_000)
    page.goto(lab)
    page.get_by_text("| Idle").wait_for()
    page.locator(".jp-Cell").first.click()
    for _ in CELLS:
        page.keyboard.press("Shift+Enter")
    page.locator(".agentgit-picture a").first.wait_for()
    page.locator(".agentgit-picture a text", has_text="main#2").first.click()
    page.get_by_role("button", name="Roll back to here…").click()
    page.get_by_role("button", name="Roll back", exact=True).click()
    page.locator(".agentgit-note", has_text="session lab is on branch main-2").wait_for()
    with agentgit.open(f"sqlite:///{tmp_path / 'lab.db'}") as repo:
        session = repo.session("lab")
        assert [branch.name for branch in session.branches()] == ["main", "main-2"]
        assert session.branch().name == "main-2"
        assert [call.status for call in session.tool_track(branch="main")] == ["done", "reversed"]
