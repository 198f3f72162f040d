"""The most usual refusals name the next step in the words of the face that shows them."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from chats import chatting
from command_line import run
from mcp_clients import connected
from spoken_words import SHELL, speaks_python
from web_servers import quick_passwords, repo, told
from web_visitors import Visitor, ada

import agentgit
from agentgit import RollbackIncomplete
from agentgit.demo import EFFECTS, build

__all__ = ["ada", "quick_passwords", "repo", "told"]  # the fixtures

BLOCKED = "send_mail(to='you@example.org', text='You pay 380 euros.'): it cannot be undone. "


@pytest.fixture
def no_shop(repo: agentgit.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the undo functions of the demo fail."""
    (tmp_path / "closed").mkdir()
    monkeypatch.setenv("AGENTGIT_DEMO_SHOP", str(tmp_path / "closed"))


# -- on the command line


def refusal(folder: Path, *words: str, user: str = "ada") -> str:
    """Run a command that is refused, and return what it says."""
    done = run("--db", folder / "agentgit.db", "--user", user, *words)
    assert done.code > 0
    assert not speaks_python(done.out + done.err)
    return done.err


@pytest.mark.parametrize(
    ("command", "next_step"),
    [
        ("undo support-42 --yes --trust agentgit.demo", f"{BLOCKED}--force keeps what cannot be reversed."),
        ("undo support-42 --yes", "name the module that declares it with --trust MODULE"),
        ("show nowhere", "agentgit log SESSION lists them."),
        ("switch support-42 nowhere", "agentgit branches SESSION lists them."),
        ("tree nowhere", "agentgit sessions lists them."),
        ("resume 999", "agentgit operations SESSION lists those of a session."),
        ("resolve 999 happened", "agentgit tool-track SESSION lists a branch's calls."),
        ("tag support-42 main#2 v1", "Remove it first: agentgit tag SESSION --delete v1."),
        ("rewind-files support-42 HEAD", "Use agentgit chat --workspace DIR to keep its files from then on."),
        ("rollback support-42 HEAD --no-conversation --name x --yes", "--no-conversation makes no new branch"),
        ("rollback support-42 HEAD --on-error never --yes", "--on-error must be 'stop' or 'continue'"),
        ("search chairs --after nowhere", "--after nowhere is not a cursor"),
    ],
)
def test_the_command_line_names_commands(repo, tmp_path, command, next_step):
    """A refusal on the command line names a command or an option."""
    repo.session("support-42").tag("HEAD", "v1")
    assert next_step in refusal(tmp_path, *command.split())


def test_the_command_line_names_the_sessions_to_choose_from(repo, tmp_path):
    """A change without a session, where there are several, says how to name one."""
    repo.session("another", create=True)
    assert "agentgit undo SESSION. Sessions: another, support-42." in refusal(tmp_path, "undo")


def test_the_command_line_names_the_command_that_grants_a_role(repo, tmp_path):
    """A viewer who rolls back learns what the owner has to run."""
    repo.session("support-42").sharing.share("bob", "viewer")
    said = refusal(tmp_path, "undo", "support-42", "--yes", user="bob")
    assert "The owner can grant it: agentgit share SESSION bob --role editor." in said


@pytest.mark.usefixtures("no_shop")
def test_the_command_line_names_the_command_that_resumes(repo, tmp_path):
    """A rollback that stopped half way says which command finishes it, and which resolves the failed call."""
    words = ("rollback", "support-42", "main#2", "--yes", "--force", "--trust", "agentgit.demo")
    said = refusal(tmp_path, *words)
    (operation, *_) = repo.session("support-42").operations()
    assert f"then run agentgit resume {operation.id}; or" in said
    assert re.search(r"run agentgit resolve \d+ happened, and resume; or resume with --force", said)


# -- in the chat


@pytest.fixture
def chat(repo: agentgit.Repository, tmp_path: Path) -> Iterator[Any]:
    """Open a chat with the demo."""
    agent = repo.wrap(build(tmp_path / "shop.db"), "support-42", effects=EFFECTS)
    with chatting(repo, agent, yes=True) as opened:
        yield opened


def answer(chat: Any, line: str) -> str:
    """Enter a line that is refused, and return what the chat says."""
    shown, said = io.StringIO(), io.StringIO()
    with redirect_stdout(shown), redirect_stderr(said):
        chat.handle_line(line)
    assert said.getvalue().startswith("error: ")
    assert not speaks_python(shown.getvalue() + said.getvalue())
    return said.getvalue()


@pytest.mark.parametrize(
    ("line", "next_step"),
    [
        ("/undo", f"{BLOCKED}--force keeps what cannot be reversed."),
        ("/rollback nowhere", "/log lists them."),
        ("/switch nowhere", "/branches lists them."),
        ("/resume 999", "agentgit operations SESSION lists those of a session."),
        ("/resolve 999 happened", "/tool-track lists a branch's calls."),
        ("/tag main#2 v1", "Remove it first: /untag v1."),
        ("/untag v2", "/tags lists them."),
        ("/rewind-files HEAD", "Start the chat with --workspace DIR to keep its files from then on."),
    ],
)
def test_the_chat_names_slash_commands(chat, line, next_step):
    """A refusal in the chat names a slash command or an option of it."""
    chat.agent.session.tag("HEAD", "v1")
    assert next_step in answer(chat, line)


def test_the_chat_says_how_to_follow_a_branch_that_has_moved(repo, chat, tmp_path):
    """A message on a branch that another process continued is refused, and the chat says how to go there."""
    repo.wrap(build(tmp_path / "shop.db"), "support-42", effects=EFFECTS).run("order a lamp")
    assert "/switch main-2 goes there. Or branch off with /fork." in answer(chat, "order a chair")
    chat.handle_line("/switch main-2")
    chat.handle_line("order a chair")
    assert len(chat.agent.tool_track()) == 6


def test_the_chat_says_how_to_restore_the_world(chat):
    """A branch whose world was changed by another one is not continued, and the chat says how it can be."""
    chat.handle_line("/switch main")
    said = answer(chat, "order a chair")
    assert "Restore it with /switch main --sync world, tell the model with --sync note, or" in said
    assert said.endswith("continue anyway with --sync ignore.\n")


@pytest.mark.usefixtures("no_shop")
def test_the_chat_names_the_command_that_resumes(repo, chat):
    """A rollback that stopped half way says which slash command finishes it."""
    said = answer(chat, "/rollback main#2 --force")
    (operation, *_) = repo.session("support-42").operations()
    assert f"then run /resume {operation.id}; or do it by hand, run /resolve" in said


# -- on a page


def alert(visitor: Visitor, path: str, expect: int) -> str:
    """Return the message of a page."""
    (text,) = re.findall(r'role="alert">(.*?)</p>', visitor.get(path, expect).text, re.S)
    return spoken(text)


def spoken(text: str) -> str:
    """Return a text of a page, after a check that it names no call and no command."""
    shown = html.unescape(re.sub(r"<[^>]*>", " ", text))
    assert not speaks_python(shown)
    assert SHELL.search(shown) is None
    return shown


@pytest.mark.parametrize(
    ("path", "next_step"),
    [
        ("/sessions/999", "“Sessions” lists them."),
        ("/operations/999", "“Operations” lists those of a session."),
        ("{at}/rollback?to=nowhere", "“Tree” lists them."),
        ("{at}/rollback?to=main%2399", "“Tree” lists them."),
        ("{at}/switch?branch=nowhere", "“Tree” lists them."),
    ],
)
def test_a_page_names_pages(repo, ada, path, next_step):
    """A page that finds nothing names the page that lists what there is."""
    assert next_step in alert(ada, path.format(at=f"/sessions/{repo.session('support-42').id}"), 404)


def test_a_page_says_what_its_button_does(repo, ada):
    """The page of a blocked rollback, and the answer to its form without the consent, speak of the button."""
    at = f"/sessions/{repo.session('support-42').id}"
    page = ada.get(f"{at}/rollback?to=before%20the%20mail")
    (note,) = re.findall(r'<p class="note bad">(.*?)</p>', page.text)
    assert "If you choose “anyway”: 1 will be reversed, 1 stays." in spoken(note)
    (said,) = re.findall(r'role="alert">(.*?)</p>', ada.post(page, f"{at}/rollback", 409).text, re.S)
    assert "Choosing “anyway” keeps what cannot be reversed." in spoken(said)


@pytest.mark.usefixtures("no_shop")
def test_a_page_says_how_to_finish_a_rollback(repo, ada):
    """The page of a rollback that stopped half way has the button that finishes it, and says so."""
    with pytest.raises(RollbackIncomplete) as stopped:
        repo.session("support-42").rollback("main#2", force=True)
    page = ada.get(f"/operations/{stopped.value.operation}")
    (status,) = re.findall(r'role="status">(.*?)</p>', page.text)
    assert spoken(status).endswith("To finish, resume it.")
    assert "<button>Resume</button>" in page.text


def test_a_page_names_the_page_that_grants_a_role(repo, told, tmp_path):
    """A viewer who sends the form of a rollback learns where the owner can change the role."""
    session = repo.session("support-42")
    session.sharing.share("bob", "editor")
    with agentgit.open(tmp_path / "agentgit.db", user="bob", trust=["agentgit.demo"]) as bobs:
        bob = Visitor(bobs)
        page = bob.get(f"/sessions/{session.id}/rollback?to=before%20the%20mail")
        session.sharing.share("bob", "viewer")
        (said,) = re.findall(
            r'role="alert">(.*?)</p>', bob.post(page, f"/sessions/{session.id}/rollback", 403, force="true").text, re.S
        )
    assert "The owner can grant it under “Sharing”." in spoken(said)


# -- in MCP


@pytest.mark.parametrize(
    ("tool", "arguments", "next_step"),
    [
        ("plan_rollback", {"checkpoint": "nowhere"}, "list_checkpoints lists them."),
        ("plan_switch", {"branch": "nowhere"}, "branches lists them."),
        ("resume", {"operation": 999}, "operations lists those of a session."),
        (
            "rollback_to_checkpoint",
            {"checkpoint": "before the mail", "confirm": "seen"},
            f"{BLOCKED}force=true, if this server allows it, keeps what cannot be reversed.",
        ),
    ],
)
async def test_mcp_names_tools(repo, tool, arguments, next_step):
    """A refusal of an MCP tool names a tool or an argument of one, in its text and in its data."""
    async with connected(repo, repo.session("support-42")) as client:
        refused = await client.call_tool(tool, arguments)
    assert refused.isError
    assert next_step in refused.content[0].text
    assert next_step in refused.structuredContent["message"]
    assert not speaks_python(refused.content[0].text)
