"""The forms in a conversation: fork, rename, tag, and edit a message and run it again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import httpx
import points
import pytest
from echo_graph import echo
from langchain_core.tools import tool
from langgraph.types import interrupt
from scripted import call, node_graph, scripted, tool_node_graph
from web_servers import PIXEL, repo, told
from web_visitors import Visitor, ada, fields_of

import agentgit
from agentgit import InvalidInput
from agentgit.demo import EFFECTS, ScriptedModel, build
from agentgit.web import app

__all__ = ["ada", "repo", "told"]  # the fixtures


def wait_for_turns() -> None:
    for thread in threading.enumerate():
        if thread.name == "agentgit-page-turn":
            thread.join()


def test_a_fork_form_that_is_sent_twice_makes_one_branch(ada, repo):
    """A double click or a reload without scripts forks once; a new form, or a changed one, forks again."""
    session = repo.session("support-42")
    at, before = f"/sessions/{session.id}", len(session.branches())
    page = ada.get(f"{at}?at={session.get_checkpoint('main#2').id}")
    first, second = (ada.post(page, f"{at}/fork", name="").url for _ in range(2))
    assert first == second
    assert len(session.branches()) == before + 1
    ada.post(page, f"{at}/fork", name="changed")
    ada.post(ada.get(page.url.raw_path.decode()), f"{at}/fork", name="")
    assert len(session.branches()) == before + 3
    # The id of a form is that of its request; the id of a rollback is refused.
    branch = session.fork("main#2", request_id="a").branch
    assert session.fork("main#2", request_id="a").branch == branch
    session.rollback("main#2", request_id="c", force=True)
    for id, wrong in (("c", "used for a rollback"), ("", "printable string")):
        with pytest.raises(InvalidInput, match=wrong):
            session.fork("main#2", request_id=id)


def test_forms_fork_rename_and_tag_in_place(ada, repo):
    session = repo.session("support-42")
    at, point = f"/sessions/{session.id}", session.get_checkpoint("main#2")
    page = ada.post(ada.get(f"{at}?at={point.id}"), f"{at}/fork", name="try-2")
    assert "Branch" in page.text
    assert page.url.params["branch"] == "try-2"
    page = ada.post(page, f"{at}/branches/rename", name="try-3")
    assert page.url.params["branch"] == "try-3"
    page = ada.post(ada.get(f"{at}?at={point.id}"), f"{at}/checkpoints/rename", name="two chairs")
    assert "two chairs" in page.text
    page = ada.post(page, f"{at}/tags", name=" v1")
    assert (page.url.params["at"], [tag.name for tag in session.tags()]) == (str(point.id), ["v1"])
    assert session.get_checkpoint("main#2").checkpoint_name == "two chairs"
    assert {branch.name for branch in session.branches()} == {"main", "main-2", "try-3"}
    ada.post(page, f"{at}/checkpoints/rename", name="")
    assert session.get_checkpoint("main#2").checkpoint_name is None


@pytest.mark.long
def test_a_message_is_edited_and_run_again_where_the_graph_is_served(ada, repo, tmp_path):
    session = repo.session("support-42")
    at, message = f"/sessions/{session.id}", session.branch("main-2").conversation_history[4]
    edit = f"{at}/edit?branch=main-2&message={message['id']}"
    assert "/edit?" not in ada.get(at).text
    assert "cannot run the agent" in ada.get(edit).text
    agent = repo.wrap(build(tmp_path / "shop.db"), "support-42", effects=EFFECTS)
    assert agent.branch.name == "main-2"
    assert "/edit?" in ada.get(at).text
    page = ada.get(edit)
    assert "rather a sofa" in page.text
    assert "Blocked by 1 call (send_mail)" in page.text
    ada.post(page, f"{at}/edit", 409, text="a lamp")
    ada.post(page, f"{at}/edit", 422, text=" ", force="true")
    reserve, release = (getattr(*point.place) for point in (points.RESERVE_RUN_OF_PAGES, points.RELEASE_RUN_OF_PAGES))
    for _ in range(8):
        reserve()
    busy = ada.post(page, f"{at}/edit", 409, text="a lamp", force="true").text
    assert "Nothing was changed: 8 turns are running on this server" in busy
    assert len(session.branches()) == 2
    for _ in range(8):
        release()
    for _ in range(2):  # a form that is sent twice
        shown = ada.post(page, f"{at}/edit", text="a lamp", force="true")
        assert shown.url.params["branch"] == "main-3"
    for _ in range(7):
        reserve()
    assert ada.post(page, f"{at}/edit", text="a lamp", force="true").url == shown.url
    for _ in range(7):
        release()
    wait_for_turns()
    said = [one["content"] for one in session.branch("main-3").conversation_history if one["role"] == "user"]
    assert said == ["order two chairs", "a lamp"]
    length = len(session.log(branch="main-3"))
    assert ada.post(page, f"{at}/edit", text="a lamp", force="true").url == shown.url
    assert len(session.log(branch="main-3")) == length
    assert "1 lamp" in ada.get(f"{at}?branch=main-3").text
    assert len(session.branches()) == 3
    session.sharing.share("bob", "viewer")
    bob = Visitor(repo.as_user("bob"))
    assert "/edit?" not in bob.get(at).text
    assert "cannot run turns" in bob.get(edit).text


@pytest.mark.long
def test_a_graph_for_all_sessions_runs_those_that_no_other_graph_runs(repo, tmp_path):
    """An application with a graph edits messages of each session that `wrap` made elsewhere, but not of one that
    another served graph has made. A workspace is refused, because it would be that of all sessions.
    """
    app(repo, graph=repo.graph(build(tmp_path / "shop.db"), effects=EFFECTS))
    with agentgit.open(tmp_path / "agentgit.db", user="ada") as elsewhere:
        other = tool_node_graph(ScriptedModel(replies=["I see."]), [echo]).copy({"name": "another"})
        elsewhere.graph(other).invoke({"messages": [("user", "hi")]}, {"configurable": {"thread_id": "made"}})
    ada = Visitor(repo)
    assert "/edit?" in ada.get(f"/sessions/{repo.session('support-42').id}").text
    assert "/edit?" not in ada.get(f"/sessions/{repo.session('made').id}").text
    with pytest.raises(InvalidInput, match="would be that of all sessions"):
        app(repo, graph=repo.graph(build(tmp_path / "shop.db"), effects=EFFECTS, workspace=tmp_path / "work"))


def test_a_turn_that_another_member_starts_is_recorded_as_theirs(repo, tmp_path):
    ada, bob = repo.as_user("ada"), repo.as_user("bob")
    ada.wrap(build(tmp_path / "shop.db"), "shared", effects=EFFECTS).run("order a chair")
    ada.session("shared").sharing.share("bob", "editor")
    session = bob.session("ada/shared")
    agent = session.agent(session.rollback("main#1").branch)
    agent.run("order a lamp")
    assert {point.metadata["kind"] for point in session.log(branch="main-2", author="bob")} >= {"before", "after"}
    ids = {bob.user.id: "bob", ada.user.id: "ada"}
    done = [ids[event.user_id] for event in ada.events.newest(session="shared", kinds="turn.done")]
    assert done == ["ada", "bob"]


def test_a_form_sends_a_text_back_as_it_is(repo, tmp_path):
    strange = "line one\nline\u200b two \u200fhe"
    agent = repo.wrap(build(tmp_path / "shop.db"), "strange", effects=EFFECTS)
    agent.run(strange)
    session, visitor = repo.session("strange"), Visitor(repo)
    message = session.branch("main").conversation_history[0]["id"]
    page = visitor.get(f"/sessions/{session.id}/edit?message={message}")
    assert strange in page.text
    session.rename_branch("main", "a\u200fb")
    visitor.post(visitor.get(f"/sessions/{session.id}"), f"/sessions/{session.id}/fork", ref="a\u200fb", name="forked")
    assert "forked" in [branch.name for branch in session.branches()]


def test_a_form_that_two_processes_receive_makes_one_branch_and_runs_one_turn(ada, repo, tmp_path, monkeypatch):
    turns: list[tuple[Any, Any]] = []
    run_turn = getattr(*points.PAGES_RUN_TURN.place)
    monkeypatch.setattr(*points.PAGES_RUN_TURN.place, lambda *turn: turns.append(turn))
    with agentgit.open(tmp_path / "agentgit.db", user="ada", trust=["agentgit.demo"]) as other:
        for process in (repo, other):
            process.wrap(build(tmp_path / "shop.db"), "support-42", effects=EFFECTS)
        session, visitors = repo.session("support-42"), (ada, Visitor(other))
        visitors[1].client.cookies = ada.client.cookies  # one browser
        message = session.branch("main-2").conversation_history[4]["id"]
        page = ada.get(f"/sessions/{session.id}/edit?branch=main-2&message={message}")
        form = {"text": "a lamp", "force": "true"} | fields_of(page)
        start = threading.Barrier(2)

        def send(visitor: Visitor) -> httpx.Response:
            start.wait()
            return visitor.client.post(page.url.path, data=form)

        with ThreadPoolExecutor(2) as threads:
            answers = list(threads.map(send, visitors))
        assert {answer.status_code for answer in answers} <= {200, 409}
        assert [branch.name for branch in session.branches()] == ["main", "main-2", "main-3"]
        is_new, checks = getattr(*points.PAGES_BRANCH_IS_NEW.place), count(1)

        def late(*asked: Any) -> bool:
            """Let the turn of the other process run between the check that decides on the start, and the start."""
            answer: bool = is_new(*asked)
            if next(checks) == 2:
                run_turn(*turns.pop())
            return answer

        monkeypatch.setattr(*points.PAGES_BRANCH_IS_NEW.place, late)
        assert turns
        assert visitors[1].client.post(page.url.path, data=form).url.params["branch"] == "main-3"
        for turn in turns:
            run_turn(*turn)
    said = [one["content"] for one in session.branch("main-3").conversation_history if one["role"] == "user"]
    assert said == ["order two chairs", "a lamp"]


def test_an_edited_message_keeps_its_images(ada, repo):
    agent = repo.wrap(tool_node_graph(ScriptedModel(replies=["I see."]), [echo]), "pictures")
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    note = {"type": "text-plain", "text": "of a file", "mime_type": "text/plain"}
    blocks = [{"type": "text", "text": "see "}, image, {"type": "text", "text": "this"}, note]
    agent.invoke({"messages": [{"role": "user", "content": blocks}]})
    edited = [{"type": "text", "text": "look"}, image, note]
    at, message = f"/sessions/{agent.session.id}", agent.history()[0]["id"]
    assert agent.edit(message, "look").history()[0]["content"] == edited
    page = ada.get(f"{at}/edit?at={agent.head.id}")
    assert "see this</textarea>" in page.text
    assert "images and files of the message are sent again" in page.text
    ada.post(page, f"{at}/edit", text="look")
    wait_for_turns()
    assert agent.session.branch("main-3").conversation_history[0]["content"] == edited


def test_a_checkpoint_before_any_message_has_none_to_edit(ada, repo, tmp_path):
    repo.wrap(build(tmp_path / "shop.db"), "support-42", effects=EFFECTS)
    session = repo.session("support-42")
    first = ada.get(f"/sessions/{session.id}/edit?at={session.get_checkpoint('main#1').id}", 404)
    assert "No user has written a message before this checkpoint" in first.text
    last = ada.get(f"/sessions/{session.id}/edit?at={session.get_checkpoint('main').id}")
    assert "a table and two lamps" in last.text


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("request_id", "", 422),
        ("request_id", "a\x00", 422),
        ("request_id", "x" * 65, 422),
        ("text", "x" * 100_001, 422),
        ("branch", "nowhere", 404),
        ("message", "nothing", 404),
        ("plan", "old", 409),
    ],
)
def test_an_edit_form_with_a_wrong_value_changes_nothing(ada, repo, tmp_path, field, value, status):
    repo.wrap(build(tmp_path / "shop.db"), "support-42", effects=EFFECTS)
    session = repo.session("support-42")
    page = ada.get(f"/sessions/{session.id}/edit?at={session.get_checkpoint('main-2').id}")
    ada.post(page, page.url.path, status, **{"text": "a lamp", "force": "true", field: value})
    assert len(session.branches()) == 2


def test_forms_refuse_a_checkpoint_of_another_session(ada, repo):
    session, other = repo.session("support-42"), repo.session("other", create=True)
    session.sharing.share("bob", "editor")
    point, at = other.checkpoint("theirs"), f"/sessions/{session.id}"
    bob = Visitor(repo.as_user("bob"))
    for visitor, status in ((ada, 422), (bob, 404)):
        for path in (f"?at={point.id}", f"/edit?at={point.id}", f"/rollback?to={point.id}", f"?before={point.id}"):
            visitor.get(f"{at}{path}", status)
        page = visitor.get(f"{at}?at={session.get_checkpoint('main#2').id}")
        for form in ("fork", "tags", "checkpoints/rename"):
            visitor.post(page, f"{at}/{form}", status, ref=str(point.id), name="mine")
    assert [one.checkpoint_name for one in other.checkpoints()] == ["theirs"]


def test_the_panel_of_an_edit_resolves_the_calls_whose_outcome_is_unknown(ada, repo):
    @tool
    def pay() -> str:
        """Pay."""
        raise OSError("the line is dead")

    agent = repo.wrap(tool_node_graph(scripted(call("pay")), [pay]), "paid", effects={"pay": "irreversible"})
    with pytest.raises(OSError, match="dead"):
        agent.run("pay")
    at, message = f"/sessions/{agent.session.id}", agent.history()[0]["id"]
    page = ada.get(f"{at}/edit?branch=main&message={message}")
    assert "“It happened” or “It did not happen” records what you find" in page.text
    (pending,) = agent.tool_track()
    shown = ada.post(page, f"/invocations/{pending.id}/resolve", outcome="did_not_happen")
    assert shown.url.path == f"{at}/edit"
    assert "check, then resolve" not in shown.text


def test_the_page_of_a_session_shows_what_it_waits_for(ada, repo):
    graph = node_graph(lambda state: {"messages": [("ai", str(interrupt("Send <it>?")))]})
    agent = repo.wrap(graph, "asking")
    agent.invoke({"messages": [("user", "send")]})
    assert ada.get(f"/sessions/{agent.session.id}").text.count("waits for an answer: Send &lt;it&gt;?") == 2
