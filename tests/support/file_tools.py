"""A directory, tools that work in it, and a model that obeys the user's message, for tests with files."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import BaseTool, tool
from scripted import Graph, World, call, calls, tool_node_graph

from agentgit.demo import ScriptedModel


class Desk:
    """A directory with tools: `write_file`, `delete_file`, `shell`, and `add`, which changes a world of lists."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.world = World()
        root.mkdir(parents=True, exist_ok=True)

    @property
    def files(self) -> dict[str, str]:
        """The text of each file in the directory, by path."""
        return {
            path.relative_to(self.root).as_posix(): path.read_text("utf-8")
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }

    def shell(self, command: str) -> str:
        """Run a command in the directory, and return what it prints."""
        run = subprocess.run(command, shell=True, cwd=self.root, capture_output=True, text=True, check=True)  # noqa: S602  # the test's own
        return run.stdout

    def graph(self) -> Graph:
        """Build a graph that obeys messages like `write a.txt hello; delete b.txt; shell mkdir c; add chair`.

        Each ` then ` begins another message of the model.
        """
        return tool_node_graph(ScriptedModel(rule=_obey), self.tools())

    def tools(self) -> list[BaseTool]:
        def write_file(path: str, text: str) -> str:
            """Write a file."""
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
            return f"wrote {path}"

        def delete_file(path: str) -> str:
            """Delete a file."""
            (self.root / path).unlink()
            return f"deleted {path}"

        def shell(command: str) -> str:
            """Run a command in the directory."""
            return self.shell(command)

        return [tool(write_file), tool(delete_file), tool(shell), self.world.tool("add")]


def _obey(messages: Sequence[BaseMessage]) -> AIMessage:
    asked = max(n for n, message in enumerate(messages) if message.type == "human")
    steps = str(messages[asked].content).split(" then ")
    done = sum(message.type == "ai" for message in messages[asked:])
    if done == len(steps) or (done and messages[-1].type != "tool"):
        return AIMessage("done")
    wanted = [_wanted(*order.split(maxsplit=2)) for order in steps[done].split(";")]
    return calls(*(one for one in wanted if one is not None), text="hm")


def _wanted(name: str = "", first: str = "", rest: str = ""):
    if name == "write":
        return call("write_file", path=first, text=rest)
    if name == "delete":
        return call("delete_file", path=first)
    if name == "shell":
        return call("shell", command=f"{first} {rest}")
    return call("add", item=first) if name == "add" else None


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "work")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store workspaces in a folder of the test."""
    monkeypatch.setenv("AGENTGIT_HOME", str(tmp_path / "home"))
