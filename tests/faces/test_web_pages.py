"""The forms and links of the pages: confirmed plans, large sessions, colours, sharing, users and roles."""

from __future__ import annotations

import html
import re

import backend
import pytest
from fastapi.testclient import TestClient
from file_tools import Desk
from langchain_core.tools import tool
from scripted import call, scripted, tool_node_graph
from sqlalchemy import insert, select
from web_servers import repo, told
from web_visitors import Visitor, ada, mark, sign_in

import agentgit
from agentgit import NotAllowed, RollbackIncomplete
from agentgit.demo import EFFECTS, build
from agentgit.web import app

__all__ = ["ada", "repo", "told"]  # the fixtures


@pytest.mark.long
def test_a_form_runs_only_the_plan_that_was_shown(ada, repo, tmp_path):
    at = f"/sessions/{repo.session('support-42').id}"
    page = ada.get(f"{at}/rollback?to=before%20the%20mail")
    assert "Blocked by 1 call (send_mail)" in page.text
    repo.wrap(build(tmp_path / "shop.db"), "support-42", effects=EFFECTS).run("order a chair")
    stale = ada.post(page, f"{at}/rollback", 409, force="true")
    assert "the confirmed plan is not what would be done now" in stale.text
    assert "create_order" in stale.text
    assert "The button under “Back to the plan” confirms what would be done now." in stale.text
    (back,) = re.findall('href="([^"]+)">Back to the plan', stale.text)
    assert "Blocked by 1 call (send_mail)" in ada.get(html.unescape(back)).text
    assert len(repo.session("support-42").branches()) == 2
    page = ada.get(f"{at}/rollback?to=before%20the%20mail")
    blocked = ada.post(page, f"{at}/rollback", 409)
    assert "send_mail" in blocked.text
    done = ada.post(page, f"{at}/rollback", force="true", name="again")
    assert re.search(r"Rollback done: session \S+, branch again", done.text)
    assert ada.post(page, f"{at}/rollback", force="true", name="again").url == done.url
    assert [branch.name for branch in repo.session("support-42").branches()] == ["main", "main-2", "again"]


def test_a_failed_rollback_is_resolved_and_resumed_on_its_page(ada, repo, tmp_path, monkeypatch):
    at = f"/sessions/{repo.session('support-42').id}"
    shop = tmp_path / "elsewhere.db"
    monkeypatch.setenv("AGENTGIT_DEMO_SHOP", str(shop))
    shop.mkdir()  # the shop cannot be opened there
    page = ada.post(ada.get(f"{at}/rollback?to=main%232"), f"{at}/rollback", force="true")
    assert "A rollback is incomplete" in ada.get(at).text
    failed = repo.report(repo.session("support-42").operations()[0]).failed[0].invocation
    page = ada.post(page, f"/invocations/{failed.id}/resolve", outcome="happened")
    page = ada.post(page, page.url.path + "/resume", force="true")
    assert "Rollback done" in page.text
    assert repo.session("support-42").operations()[0].status == "done"


def test_a_call_that_may_have_run_again_is_resolved_on_the_page_of_its_redo(ada, repo):
    answers = iter([{"charged": 5}, ConnectionError("no answer")])

    @tool
    def charge(euros: int) -> dict[str, int]:
        """Charge a card."""
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    graph = tool_node_graph(scripted(call("charge", euros=5), "charged"), [charge])
    agent = repo.wrap(graph, "till", effects={"charge": agentgit.compensable(lambda args, result: None)})
    agent.checkpoint("before")
    agent.run("charge")
    with pytest.raises(RollbackIncomplete) as stopped:
        agent.rollback("before").redo()
    page = ada.get(f"/operations/{stopped.value.operation}")
    assert "may have happened" in page.text
    (resolve,) = re.findall(r'action="(/invocations/\d+/resolve)"', page.text)
    page = ada.post(page, resolve, outcome="happened", result='{"charged": 5}')
    page = ada.post(page, page.url.path + "/resume")
    assert "Switch done" in page.text
    assert repo.session("till").operations()[0].status == "done"


def test_a_stale_plan_has_the_controls_that_its_steps_name(ada, repo):
    @tool
    def charge(euros: int) -> None:
        """Charge a card."""
        raise ConnectionError

    graph = tool_node_graph(scripted("hm", call("charge", euros=5), call("charge", euros=6)), [charge])
    agent = repo.wrap(graph, "till", effects={"charge": "irreversible"})
    agent.run("hello")
    for _ in range(2):
        page = ada.get(f"/sessions/{agent.session.id}/rollback?to=main%231")
        with pytest.raises(ConnectionError):
            agent.run("charge")
    stale = ada.post(page, page.url.path, 409, force="true")
    controls = [button for button in ("It happened", "It did not happen") if f"“{button}”" in stale.text]
    assert controls
    assert all(f">{button}</button>" in stale.text for button in controls)


@pytest.mark.long
def test_the_page_of_ten_thousand_checkpoints_is_small(ada, repo):
    """With 10,000 more checkpoints the tree is folded, the conversation is paged and the page stays small."""
    head = repo.session("support-42").get_checkpoint("HEAD")
    before = len(ada.get(f"/sessions/{repo.session('support-42').id}").content)

    def more(connection):
        table = backend.table("checkpoint")
        row = connection.execute(select(table).where(table.c.id == head.id)).mappings().one()
        copies = [{**row, "id": row["id"] + n, "number": row["number"] + n} for n in range(1, 10_001)]
        connection.execute(insert(table), copies)

    backend.write(repo, more)
    page = ada.get(f"/sessions/{repo.session('support-42').id}")
    assert "10,011 checkpoints" in page.text
    assert len(page.content) < before + 60_000
    older = re.search(r'href="([^"]*before=[^"]*)#talk" rel="next"', page.text).group(1).replace("&amp;", "&")
    assert "main-2#9940" in ada.get(older).text


def test_forms_share_a_session_and_withdraw_access(ada, repo):
    """Forms ignore spaces around names, so that one finds what another has created."""
    at = f"/sessions/{repo.session('support-42').id}"
    bob = Visitor(repo.as_user("bob"))
    bob.get(at, 404)
    page = ada.post(ada.get(f"{at}/sharing"), f"{at}/members", user="bob ", role="viewer", days="7")
    assert "bob" in page.text
    assert "Delete this session" not in bob.get(at).text
    assert "Create link" not in bob.get(f"{at}/sharing").text
    ada.post(page, f"{at}/members/delete")
    bob.get(at, 404)
    page = ada.post(ada.get(f"{at}/sharing"), f"{at}/links", role="viewer", days="1")
    token = re.search(r"<pre>(agitlink_\S+)</pre>", page.text).group(1)
    assert token not in ada.get(f"{at}/sharing").text
    joined = bob.post(bob.get("/join"), "/join", token=token)
    assert joined.url.path == at
    begun = bob.get(f"{at}/checkpoints/{repo.session('support-42').get_checkpoint('main#2').id}")
    bob.post(begun, "/sessions", name=" mine ")
    assert repo.as_user("bob").session("mine").name == "mine"


def test_forms_create_and_disable_users_and_create_keys(ada, repo):
    page = ada.post(ada.get("/users"), "/users", name=" eve ")
    assert "eve" in page.text
    eve = next(user for user in repo.users.list() if user.name == "eve")
    change = {"csrf": mark(page), "user": str(eve.id), "what": "disable"}
    assert "disabled" in ada.client.post("/users/change", data=change).text
    assert repo.users.find("eve").disabled_at is not None
    page = ada.post(ada.get("/keys"), "/keys", name="robot", scope="read", days="1")
    secret = re.search(r'<pre id="secret">(agit_\S+)</pre>', page.text).group(1)
    robot = repo.authenticate(secret)
    assert robot.sessions()
    with pytest.raises(NotAllowed):
        robot.session("mine", create=True)
    assert [sorted(key.scopes) for key in repo.keys.list() if key.name == "robot"] == [["read"]]
    assert secret not in ada.get("/keys").text
    browser = TestClient(app(repo), base_url="https://git.example", headers={"origin": "https://git.example"})
    assert sign_in(browser, f" {secret} ").url.path == "/sessions"
    Visitor(repo.as_user("bob")).get("/users", 403)


def test_erasing_a_session_or_a_user_requires_the_exact_name(ada, repo):
    at = f"/sessions/{repo.session('support-42').id}"
    page = ada.get(at)
    assert "Nothing was deleted" in ada.post(page, f"{at}/delete", 422, name="support").text
    assert "nobody could undo 4 effects" in ada.post(page, f"{at}/delete", 409, name="support-42").text
    assert "Deleted support-42" in ada.post(page, f"{at}/delete", name="support-42", force="true").text
    assert repo.sessions() == []
    eve = repo.users.add("eve")
    repo.as_user(eve).session("hers", create=True)
    form = {"csrf": mark(ada.get("/users")), "user": str(eve.id), "name": "ev"}
    assert "Nothing was deleted" in ada.client.post("/users/delete", data=form).text
    assert "Deleted eve" in ada.client.post("/users/delete", data=form | {"name": "eve"}).text
    assert "eve" not in [user.name for user in repo.users.list()]


def test_pages_show_only_the_forms_that_the_role_allows(ada, repo):
    session, point = repo.session("support-42"), repo.session("support-42").get_checkpoint("before the table")
    at = f"/sessions/{session.id}"
    bob = Visitor(repo.as_user("bob"))
    for role, offered in (("viewer", False), ("editor", True)):
        session.sharing.share("bob", role)
        page, plan, tree = (
            bob.get(f"{at}{to}").text for to in (f"/checkpoints/{point.id}", "/rollback?to=main%231", "?branch=main")
        )
        assert (f'action="{at}/tags"' in page) is offered
        assert (f'method="post" action="{at}/rollback?' in plan) is offered
        assert (f'href="{at}/switch?' in tree) is offered
        assert ("Your role here is viewer" in page and "Your role here is viewer" in plan) is not offered


def test_a_name_in_the_place_of_an_id_is_not_found_and_a_parameter_that_no_page_has_is_ignored(ada, repo):
    for path in ("demo", "demo/tool-track", "1/checkpoints/main", "0"):
        page = ada.get(f"/sessions/{path}", 404)
        assert "is not an id" in page.text
        assert "session_id" not in page.text
    for name in ("self", "_loop_vars", "_Context__obj", "request"):
        for path in ("", "/tree", "/diff"):
            ada.get(f"/sessions/{repo.session('support-42').id}{path}?{name}=1")


@pytest.mark.parametrize("choice", ["leave", "overwrite"])
def test_a_file_in_conflict_stays_or_is_overwritten_as_its_page_says(ada, repo, tmp_path, monkeypatch, choice):
    monkeypatch.setenv("AGENTGIT_HOME", str(tmp_path / "home"))
    desk = Desk(tmp_path / "work")
    agent = repo.wrap(desk.graph(), "s", check_effects=False, workspace=desk.root)
    agent.run("write a.txt one")
    agent.checkpoint("before")
    agent.run("write a.txt two; write b.txt two")
    (desk.root / "a.txt").write_text("mine")
    at = f"/sessions/{agent.session.id}"
    page = ada.get(f"{at}/rollback?to=before&scope={'overwrite' if choice == 'overwrite' else 'all'}")
    if choice == "leave":
        assert "a turn changed it, and so did somebody else" in page.text
        assert "leaves files in conflict as they are" in page.text
        ada.post(page, f"{at}/rollback", force="true")
        assert desk.files == {"a.txt": "mine"}
    else:
        assert "a safety snapshot will have the other&#39;s version" in page.text
        assert "Roll back anyway" not in page.text
        done = ada.post(page, f"{at}/rollback")
        assert desk.files == {"a.txt": "one"}
        assert "overwritten" in done.text
