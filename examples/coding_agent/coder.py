"""A coding agent whose files are part of the session: a rollback brings them back. Run it with: python coder.py"""

import os
import subprocess
import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

import agentgit
from agentgit.demo import ScriptedModel

PROJECT = Path("project")
"""The folder that the agent works in."""

EFFECTS = {"read_file": "read_only", "write_file": "workspace", "run_tests": "workspace"}
"""What the tools change: nothing, or files of the workspace."""


def inside(path: str) -> Path:
    """Return the path of a file in the project, and refuse any other."""
    full = (PROJECT / path).resolve()
    if not full.is_relative_to(PROJECT.resolve()):
        raise ValueError(f"{path} is not in the project")
    return full


@tool
def read_file(path: str) -> str:
    """Read a file of the project."""
    return inside(path).read_text()


@tool
def write_file(path: str, text: str) -> str:
    """Write a file of the project."""
    inside(path).parent.mkdir(parents=True, exist_ok=True)
    inside(path).write_text(text)
    return f"{path} is written."


@tool
def run_tests() -> str:
    """Run the tests of the project."""
    command = [sys.executable, "-m", "unittest", "-q"]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    return "The tests pass." if result.returncode == 0 else result.stderr


# -- the script, if no model is configured

TESTS = """import unittest
from price import price


class Prices(unittest.TestCase):
    def test_two_chairs(self):
        self.assertEqual(price(2), 80)
"""

WORK = {
    "write it": ("write_file", {"path": "price.py", "text": "def price(chairs):\n    return 40 * chairs\n"}),
    "make it shorter": ("write_file", {"path": "price.py", "text": "price = lambda chairs: 40 + chairs\n"}),
    "run the tests": ("run_tests", {}),
}


def obey(messages: list) -> AIMessage:
    """Answer a user's request with the call that the script has for it, and then with the call's result."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return AIMessage(last.text)
    name, args = WORK[last.text]
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": None}])


def main() -> None:
    """Let the agent write a function, break it, and take the second change back."""
    PROJECT.mkdir(exist_ok=True)
    (PROJECT / "test_price.py").write_text(TESTS)
    # MODEL=anthropic:claude-sonnet-4-5 uses a real model. Without it, a scripted one answers.
    model = init_chat_model(os.environ["MODEL"]) if "MODEL" in os.environ else ScriptedModel(rule=obey)
    graph = create_agent(model, [read_file, write_file, run_tests], system_prompt="You write Python.")

    repo = agentgit.open("agentgit.db")
    agent = repo.wrap(graph, session="price", effects=EFFECTS, workspace=PROJECT)
    for request in ("write it", "run the tests"):
        print(f"> {request}\n{agent.run(request)}")
    agent.checkpoint("it works")
    for request in ("make it shorter", "run the tests"):
        print(f"> {request}\n{agent.run(request)}")

    print(agent.plan_rollback("it works"))
    agent = agent.rollback("it works")
    print(agent.report)
    print(f"> run the tests\n{agent.run('run the tests')}")
    print((PROJECT / "price.py").read_text())


if __name__ == "__main__":
    main()
