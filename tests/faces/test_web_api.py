"""The HTTP API: its answers, its failures as problem details, and its access checks."""

from __future__ import annotations

import json
from itertools import islice

import httpx
import pytest
from fastapi.testclient import TestClient
from web_servers import HOSTILE, repo, served, told

import agentgit
from agentgit.demo import EFFECTS, build
from agentgit.web import app

__all__ = ["repo", "told"]  # the fixtures


AT = "https://git.example/api/v1"


class Program:
    """A program that calls the API with a key, as the user of a repository."""

    def __init__(self, repo: agentgit.Repository) -> None:
        key = repo.keys.create("a program", scopes=("admin",)).secret
        self.client = TestClient(app(repo), base_url=AT, headers={"authorization": f"Bearer {key}"})

    def __call__(self, method: str, path: str, expect: int = 200, **body: object):
        """Send a request, check its status and content type, and return its JSON, or None for an empty answer."""
        answer = self.client.request(method, f"{AT}{path}", **({"json": body} if body else {}))
        assert answer.status_code == expect, answer.text
        kind = answer.headers.get("content-type", "")
        assert kind.startswith("application/problem+json" if expect >= 400 else ("application/json", "")[expect == 204])
        return answer.json() if answer.content else None


@pytest.fixture
def ask(repo: agentgit.Repository) -> Program:
    return Program(repo)


def test_the_api_returns_every_part_of_a_session_in_pages(ask, repo):
    session = ask("GET", "/sessions")["items"][0]
    at = f"/sessions/{session['id']}"
    assert (session["session_name"], session["role"]) == ("support-42", "owner")
    assert [one["name"] for one in ask("GET", f"{at}/branches")["items"]] == ["main", "main-2"]
    assert len(ask("GET", f"{at}/tree")["branches"]) == 2
    first = ask("GET", f"{at}/log?limit=3")
    second = ask("GET", f"{at}/log?limit=3&after={first['next']}")
    refs = [point["reference"] for point in first["items"] + second["items"]]
    assert refs == [point.metadata["reference"] for point in repo.session("support-42").log().page(6)]
    assert ask("GET", f"{at}/checkpoint?ref=main%235")["id"] == repo.session("support-42").get_checkpoint("main#5").id
    head = f"{at}/checkpoints/{first['items'][0]['id']}"
    said = ask("GET", f"{head}/messages?offset=1&limit=2")
    assert said["items"] == repo.session("support-42").get_checkpoint("HEAD").conversation_history[1:3]
    assert (said["total"], said["next"]) == (13, 3)
    assert ask("GET", f"{head}/messages?offset=12")["next"] is None
    assert [call["tool_name"] for call in ask("GET", f"{head}/calls?offset=2")["items"]] == ["charge_card", "send_mail"]
    assert ask("GET", f"{head}/state")["items"] == []
    assert ask("GET", f"{at}/search?text=SOFA")["hits"][0]["snippet"]


def test_diff_and_compare_match_the_library(ask, repo):
    session = repo.session("support-42")
    at = f"/sessions/{session.id}"
    assert ask("GET", f"{at}/diff?a=main&b=HEAD") == session.diff("main", "HEAD").to_dict()
    assert ask("GET", f"{at}/compare?a=main&b=main-2")["fork"] == "main#3"


def test_a_rollback_is_planned_run_once_and_reported_over_http(ask, repo):
    at = f"/sessions/{repo.session('support-42').id}"
    plan = ask("GET", f"{at}/plan-rollback?to=main%232")
    assert (plan["is_admissible"], len(repo.session("support-42").branches())) == (False, 2)
    refused = ask("POST", f"{at}/rollback", 409, to="main#2")
    assert refused["type"] == "urn:agentgit:error:RollbackBlocked"
    assert refused["plan"]["steps"] == plan["steps"]
    assert ask("GET", f"{at}/plan-rollback?to=HEAD")["is_admissible"]
    assert not ask("GET", f"{at}/plan-rollback?to=HEAD&replay=execute")["is_admissible"]  # no tools here
    assert "twice" in ask("POST", f"{at}/rollback", 422, to="main#2", replay="execute", tools="keep")["detail"]
    wanted = {"to": "main#2", "force": True, "request_id": "once", "name": "again"}
    report = ask("POST", f"{at}/rollback", 201, **wanted)
    assert [item["invocation"]["tool_name"] for item in report["reversed"]] == ["charge_card", "create_order"]
    assert [item["invocation"]["tool_name"] for item in report["kept"]] == ["send_mail"]
    assert ask("POST", f"{at}/rollback", 201, **wanted)["operation_id"] == report["operation_id"]
    assert [branch.name for branch in repo.session("support-42").branches()] == ["main", "main-2", "again"]
    assert ask("GET", f"/operations/{report['operation_id']}")["status"] == "done"
    assert ask("GET", f"{at}/operations")["items"][0]["id"] == report["operation_id"]
    switched = ask("POST", f"{at}/switch", branch="main")
    assert (switched["branch"]["is_current"], switched["report"]) == (True, None)


def test_a_failed_rollback_is_finished_through_the_api(ask, repo, tmp_path, monkeypatch):
    """A failed reversal is a 409 with the operation and its report; resolve and resume finish it."""
    at = f"/sessions/{repo.session('support-42').id}"
    shop = tmp_path / "elsewhere.db"
    monkeypatch.setenv("AGENTGIT_DEMO_SHOP", str(shop))
    shop.mkdir()  # the shop cannot be opened there
    stopped = ask("POST", f"{at}/rollback", 409, to="main#2", force=True)
    assert stopped["type"] == "urn:agentgit:error:RollbackIncomplete"
    failed = stopped["report"]["failed"][0]["invocation"]
    assert ask("POST", f"/operations/{stopped['operation']}/resume", 409, force=False)["status"] == 409
    resolved = ask("POST", f"/invocations/{failed['id']}/resolve", outcome="happened")
    assert resolved["status"] == "reversed"
    done = ask("POST", f"/operations/{stopped['operation']}/resume", force=True)
    assert done["status"] == "done"


def test_the_api_creates_lists_and_deletes_tags(ask, repo):
    at = f"/sessions/{repo.session('support-42').id}"
    assert ask("POST", f"{at}/tags", 201, ref="main#2", name="v1", description="good")["reference"] == "main#2"
    assert ask("POST", f"{at}/tags", 409, ref="main#3", name="v1")["title"] == "Conflict"
    assert [tag["name"] for tag in ask("GET", f"{at}/tags")["items"]] == ["v1"]
    assert ask("DELETE", f"{at}/tags?name=v1")["reference"] == "main#2"
    ask("DELETE", f"{at}/tags?name=v1", 404)


@pytest.mark.long
def test_a_downloaded_session_can_be_imported(ask, repo, tmp_path):
    answer = ask.client.get(f"{AT}/sessions/{repo.session('support-42').id}/export")
    assert answer.headers["content-disposition"].startswith("attachment")
    (tmp_path / "s.jsonl").write_bytes(answer.content)
    again = repo.import_(tmp_path / "s.jsonl").session
    assert [one.name for one in repo.session(again).branches()] == ["main", "main-2"]


def test_a_session_starts_from_a_checkpoint_of_another_session(ask):
    made = ask("POST", "/sessions", 201, name="mine", template="support-42@main#2")
    log = ask("GET", f"/sessions/{made['id']}/log")
    assert log["items"][0]["message_count"] == 4


def test_a_session_is_shared_by_name_and_by_link_until_it_is_not(repo):
    """A shared session is listed with its owner and the role; a link shows its token once."""
    at = f"/sessions/{repo.session('support-42').id}"
    ask, bob = Program(repo), Program(repo.as_user("bob"))
    assert ask("POST", f"{at}/members", 201, user="bob", role="viewer")["role"] == "viewer"
    (shared,) = bob("GET", "/sessions")["items"]
    assert (shared["owner_name"], shared["role"]) == ("ada", "viewer")
    assert bob("POST", f"{at}/rollback", 403, to="main#2")["title"] == "Forbidden"
    ask("DELETE", f"{at}/members?user=bob", 204)
    bob("GET", at, 404)
    made = ask("POST", f"{at}/links", 201, role="viewer", expires_in=60)
    assert bob("POST", "/links/accept", token=made["token"])["role"] == "viewer"
    assert ask("GET", f"{at}/links")["items"][0]["token"] is None
    assert ask("DELETE", f"/links/{made['id']}")["revoked_at"]
    bob("GET", at, 404)
    bob("POST", "/links/accept", 404, token=made["token"])


def test_an_admin_adds_invites_and_disables_users(repo):
    ask = Program(repo)
    assert ask("GET", "/me")["scopes"] == ["admin", "read", "write"]
    eve = ask("POST", "/users", 201, name="eve")
    assert {user["name"] for user in ask("GET", "/users")["items"]} >= {"ada", "bob", "eve"}
    link = ask("POST", f"/users/{eve['id']}/link", 201)["secret"]
    browser = repo.users.sign_in(link).secret

    def status(credential):
        return ask.client.get(f"{AT}/me", headers={"authorization": f"Bearer {credential}"}).status_code

    assert (status(link), status(browser)) == (401, 200)
    assert ask("PATCH", f"/users/{eve['id']}", disabled=True)["disabled_at"]
    assert status(browser) == 401
    ask("PATCH", f"/users/{eve['id']}", disabled=False)
    assert status(browser) == 200


def test_failures_are_problem_details_with_a_next_step(ask, repo):
    at = f"/sessions/{repo.session('support-42').id}"
    near = ask("GET", f"{at}/checkpoint?ref=before%20the%20tabel", 404)
    assert "before the table" in near["near"]
    assert ask("GET", f"{at}/log?since=2026-01-01T00:00:00", 422)["type"] == "urn:agentgit:error:InvalidInput"
    wrong = ask("POST", f"{at}/rollback", 422, to="main#2", farce=True)
    assert wrong["wrong"][0]["where"] == "body/farce"
    assert ask("GET", "/nothing", 404)["detail"] == (
        "There is no endpoint GET /api/v1/nothing. /api/v1/openapi.json lists the endpoints."
    )
    assert ask("PUT", "/me", 405)["status"] == 405
    anybody = TestClient(app(repo), base_url="https://git.example").get("/api/v1/sessions")
    assert (anybody.status_code, anybody.headers["www-authenticate"]) == (401, 'Bearer realm="agentgit"')


def test_nul_surrogates_and_huge_numbers_survive_the_api(ask, repo, tmp_path):
    agent = repo.wrap(build(tmp_path / "shop.db"), "odd", effects=EFFECTS)
    agent.run("note this")
    odd = {"text": "a\x00b\ud800", "huge": -(2**70), "hostile": HOSTILE}
    point = agent.checkpoint("odd", data=odd)
    found = ask("GET", f"/sessions/{repo.session('odd').id}/checkpoints/{point.id}")
    assert found["data"] == odd


def test_an_event_feed_resumes_after_the_last_received_event(repo):
    """A live feed sends each event with its id, and after a cut resumes without gaps or duplicates."""
    session = repo.session("support-42")
    key = repo.keys.create("feed", scopes=("read",)).secret
    *_, cut, one, two, three = repo.events.newest(session="support-42")

    def received(after: str, count: int) -> list[tuple[str, str]]:
        url, headers = f"/api/v1/events/live?session={session.id}", {"last-event-id": after}
        with client.stream("GET", url, headers=headers) as feed:
            assert feed.headers["content-type"].startswith("text/event-stream")
            told = (line.partition(": ")[2] for line in feed.iter_lines() if line.startswith(("id: ", "data: ")))
            return [(id, json.loads(data)["kind"]) for id, data in islice(zip(told, told, strict=False), count)]

    with (
        served(app(repo)) as address,
        httpx.Client(base_url=address, headers={"authorization": f"Bearer {key}"}, timeout=60) as client,
    ):
        assert received(cut.cursor, 3) == [(event.cursor, event.kind) for event in (one, two, three)]
        session.tag("main#2", "while away")
        [(_, kind)] = received(three.cursor, 1)
        assert kind == "tag.created"


def test_the_api_works_on_sqlite_and_postgresql(database, tmp_path):
    with agentgit.open(database.url) as operator:
        ada = operator.as_user(operator.users.add("ada", is_admin=True))
        ada.wrap(build(tmp_path / "shop.db"), "both", effects=EFFECTS).run("order two chairs")
        ask = Program(ada)
        at = f"/sessions/{ask('GET', '/sessions?name=BOT')['items'][0]['id']}"
        assert [point["reference"] for point in ask("GET", f"{at}/log")["items"]] == ["main#2", "main#1"]
        assert ask("GET", f"{at}/search?text=chairs")["hits"][0]["reference"] == "main#2"
        assert ask("GET", f"{at}/plan-rollback?to=main%231")["is_admissible"]
        report = ask("POST", f"{at}/rollback", 201, to="main#1", request_id="both")
        assert [item["invocation"]["tool_name"] for item in report["reversed"]] == ["create_order"]
        assert ask("DELETE", at)["sessions"] == 1
