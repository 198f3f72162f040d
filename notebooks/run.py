"""Run the notebooks and store their outputs, so that they can be read where they lie: `python notebooks/run.py`.

What differs from run to run is replaced: times, ids, and the directory of the run. A notebook changes only if what it
shows has changed.
"""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

_UNSTABLE = (
    (re.compile(r"\d{4}-\d\d-\d\d([ T])\d\d:\d\d(:\d\d(\.\d+)?)?"), r"2026-01-01\g<1>12:00"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "00000000-0000-0000-0000-000000000000"),
    (re.compile(r"\bcall-[0-9a-f]{8}\b"), "call-00000000"),
    (re.compile(r"\b\d{14,16}\b"), "1"),  # ids of rows
)
"""What differs from run to run, and what is written in its place."""

_IMAGE = re.compile(r"(?<=data:image/svg\+xml;base64,)[A-Za-z0-9+/=]+")


def stable(text: str, folder: str) -> str:
    """Replace what differs from run to run in a text, and inside the images that it has.

    Args:
        text: The text or HTML of an output.
        folder: The directory in which the notebook ran.

    Example:
        >>> stable("main#1  2026-11-27 07:30 /tmp/x/shop.db", "/tmp/x")
        'main#1  2026-01-01 12:00 shop.db'
    """
    text = text.replace(f"{folder}{os.sep}", "")
    for length in range(len(folder), 1, -1):  # a long text is cut, also in the middle of a path
        text = text.replace(f"{folder[:length]}…", "…")
    for pattern, replacement in _UNSTABLE:
        text = pattern.sub(replacement, text)
    return _IMAGE.sub(lambda image: _encoded(stable(base64.b64decode(image[0]).decode(), folder)), text)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def with_stable_outputs(notebook: Any, folder: str) -> Any:
    """Replace what differs from run to run in the outputs of a notebook that ran in a directory.

    A stored notebook has no kernel, so the clickable tree keeps its picture and its text but not its widget.
    """
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            for kind in [kind for kind in data if not kind.startswith("text/")]:
                del data[kind]
            for where in (output, data):
                for name in where.keys() & {"text", "text/plain", "text/html"}:
                    where[name] = stable(where[name], folder)
            output.get("metadata", {}).clear()
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def run(path: Path) -> Any:
    """Run a notebook in an empty directory, and return it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    # The outputs are cut and wrapped with the path of the directory in them, so that its length must not vary.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        place = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, resources=place, timeout=600, coalesce_streams=True, kernel_name="python3")
        return with_stable_outputs(client.execute(), folder)


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or NOTEBOOKS:
        nbformat.write(run(path), path)
