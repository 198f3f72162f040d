"""The notebooks: they run from top to bottom in an empty folder, and are stored without outputs (D6, part of D4)."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def run(path: Path, folder: Path) -> str:
    """Run a notebook; give what its cells print and show."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "\n".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs)


# Jupyter's client leaves its sockets to the collector.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::DeprecationWarning", "default::pytest.PytestUnraisableExceptionWarning"
)
def test_d6_the_first_notebook_tells_its_story(tmp_path):
    """D6, D4: the notebook rolls back, and what it shows is true."""
    shown = run(NOTEBOOKS[0], tmp_path)
    for text in (
        "reverse  create_order(item='table', quantity=1)",
        "Rollback done: branch main-2",
        "├─● main-2#3  (HEAD",
    ):
        assert text in shown
    assert (tmp_path / "shop.db").exists()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_d6_notebooks_are_stored_without_outputs(path):
    """D6: what is committed is what a person wrote, not what a run left."""
    for cell in nbformat.read(path, as_version=4).cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
