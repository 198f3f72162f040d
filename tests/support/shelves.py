"""A module of tools whose world is a file, as a user would write it beside a database."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

SHELF = '''
import json, pathlib
from langchain_core.tools import tool
from agentgit import effect, reversible

FILE = pathlib.Path(__file__).with_name("shelf.json")

def items():
    return json.loads(FILE.read_text()) if FILE.exists() else []

def take(args, result):
    left = items()
    if args["item"] == "stuck":
        raise RuntimeError("it does not move")
    left.remove(result["item"] if result else args["item"])
    FILE.write_text(json.dumps(left))

@tool
@reversible(take)
def put(item: str) -> dict:
    """Put an item on the shelf."""
    FILE.write_text(json.dumps([*items(), item]))
    return {"item": item}

@tool
@effect("irreversible")
def shout(text: str) -> str:
    """Say something that cannot be unsaid."""
    return "heard"

@tool
@reversible(take)
def drop(item: str) -> dict:
    """Put an item down, and die."""
    put.func(item)
    raise KeyboardInterrupt
'''
"""The text of the module `shelf`."""

GRAPH = """
from scripted import call, scripted, tool_node_graph

def graph(*items):
    replies = [reply for item in items for reply in (call("put", item=item), "ok")]
    return tool_node_graph(scripted(*replies), [put])

GRAPH = graph()
"""
"""The graphs of the module, to add to its text."""


@contextmanager
def shelf_in(folder: Path, text: str = SHELF) -> Iterator[ModuleType]:
    """Write the module `shelf` into a folder, yield it, and forget it at the end."""
    (folder / "shelf.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("shelf")
    sys.modules.pop("shelf")
