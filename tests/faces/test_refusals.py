"""The most usual refusals say the same on every face; each face words the next step."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from chats import chatting
from command_line import run
from mcp_clients import connected
from stubborn_tools import Face
from web_servers import repo, told
from web_visitors import ada

import agentgit
from agentgit import AgentGitError
from agentgit.demo import EFFECTS, build

__all__ = ["ada", "repo", "told"]  # the fixtures

REFUSED: dict[str, Callable[[agentgit.Repository], object]] = {
    "a mail": lambda repo: repo.session("support-42").undo(),
    "a place": lambda repo: repo.session("support-42").plan_rollback("nowhere"),
    "a branch": lambda repo: repo.session("support-42").plan_switch("nowhere"),
    "a session": lambda repo: repo.session(999),
    "an operation": lambda repo: repo.resume(999),
    "a call": lambda repo: repo.resolve(999, "happened"),
    "a tag": lambda repo: repo.session("support-42").tag("main#2", "v1"),
    "files": lambda repo: repo.session("support-42").rewind_files("HEAD"),
}


def sentence(repo: agentgit.Repository, subject: str, face: Face) -> str:
    repo.session("support-42").tag("HEAD", "v1")
    with pytest.raises(AgentGitError) as refused:
        REFUSED[subject](repo)
    return refused.value.worded(face)


@pytest.mark.parametrize(
    ("subject", "command"),
    [
        ("a mail", "undo support-42 --yes --trust agentgit.demo"),
        ("a place", "show support-42 nowhere"),
        ("a branch", "switch support-42 nowhere"),
        ("an operation", "resume 999"),
        ("a call", "resolve 999 happened"),
        ("a tag", "tag support-42 main#2 v1"),
        ("files", "rewind-files support-42 HEAD --yes"),
    ],
)
def test_the_command_line_says_what_the_library_says(repo, tmp_path, monkeypatch, subject, command):
    said = sentence(repo, subject, "cli")
    monkeypatch.setenv("AGENTGIT_DATABASE_URL", str(tmp_path / "agentgit.db"))
    monkeypatch.setenv("AGENTGIT_USER", "ada")
    done = run(*command.split())
    assert done.code > 0
    # A command that the command line proposes names the session that was named.
    assert f"error: {said}".replace(" support-42", "") in done.err.replace(" support-42", "")


@pytest.fixture
def chat(repo: agentgit.Repository, tmp_path: Path) -> Iterator[Any]:
    agent = repo.wrap(build(tmp_path / "shop.db"), "support-42", effects=EFFECTS)
    with chatting(repo, agent, yes=True) as opened:
        yield opened


def answer(chat: Any, line: str) -> str:
    """Enter a line that is refused, and return what the chat says."""
    said = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(said):
        chat.handle_line(line)
    return said.getvalue()


@pytest.mark.parametrize(
    ("subject", "line"), [("a mail", "/undo"), ("a place", "/rollback nowhere"), ("a branch", "/switch nowhere")]
)
def test_the_chat_says_what_the_library_says(repo, chat, subject, line):
    assert answer(chat, line) == f"error: {sentence(repo, subject, 'chat')}\n"


def test_the_chat_says_how_to_follow_a_branch_that_has_moved(repo, chat, tmp_path):
    repo.wrap(build(tmp_path / "shop.db"), "support-42", effects=EFFECTS).run("order a lamp")
    assert "/switch main-2 continues at its head. /fork begins a branch of its own." in answer(chat, "order a chair")
    chat.handle_line("/switch main-2")
    chat.handle_line("order a chair")
    assert len(chat.agent.tool_track()) == 6


@pytest.mark.parametrize(
    ("subject", "path"),
    [
        ("a session", "/sessions/999"),
        ("an operation", "/operations/999"),
        ("a place", "{at}/rollback?to=nowhere"),
        ("a branch", "{at}/switch?branch=nowhere"),
    ],
)
def test_a_page_says_what_the_library_says(repo, ada, subject, path):
    said = sentence(repo, subject, "page")
    page = ada.get(path.format(at=f"/sessions/{repo.session('support-42').id}"), 404)
    assert f'role="alert">{said}</p>' in html.unescape(page.text)


@pytest.mark.parametrize(
    ("subject", "tool", "arguments"),
    [
        ("a place", "plan_rollback", {"checkpoint": "nowhere"}),
        ("a branch", "plan_switch", {"branch": "nowhere"}),
        ("an operation", "resume", {"operation": 999}),
    ],
)
async def test_mcp_says_what_the_library_says(repo, subject, tool, arguments):
    said = sentence(repo, subject, "mcp")
    async with connected(repo, repo.session("support-42")) as client:
        refused = await client.call_tool(tool, arguments)
    assert refused.isError
    assert said in refused.content[0].text
    assert said in refused.structuredContent["message"]
