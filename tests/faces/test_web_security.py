"""The guard of the web application: signing in, forms, security headers, limits and errors."""

from __future__ import annotations

import logging
import re
import socket
import time

import httpx
import pytest
from fastapi.testclient import TestClient
from faults import quick_feeds
from web_servers import served, story  # a fixture
from web_visitors import mark, sign_in

import agentgit
from agentgit import NotAllowed
from agentgit.web import Limits, OwnerLink, app


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory):
    with story(tmp_path_factory.mktemp("security")) as repo:
        repo.users.add("ada")
        yield repo


@pytest.fixture
def key(repo: agentgit.Repository) -> str:
    return repo.keys.create("mine", "admin", user="ada").secret


def visitor(repo: agentgit.Repository, host: str = "https://git.example", **options: object) -> TestClient:
    """Create a browser that is not signed in; the pages require a key."""
    return TestClient(app(repo, **options), base_url=host, headers={"origin": host}, follow_redirects=False)


def at_home(repo: agentgit.Repository, **options: object) -> TestClient:
    """Create a browser that has signed in with the link of `agentgit serve`."""
    link = OwnerLink()
    client = visitor(repo, "http://localhost:8700", link=link, hosts=["localhost"], **options)
    assert client.get(f"/sign-in?token={link.token}").status_code == 303
    return client


# -- signing in


def test_the_link_of_the_server_works_for_any_number_of_browsers(repo):
    link = OwnerLink()
    made = app(repo, link=link)
    preview, one, other, late = (
        TestClient(made, base_url="http://localhost:8700", follow_redirects=False) for _ in range(4)
    )
    for client in (preview, one, one, other):
        assert client.get(f"/sign-in?token={link.token}").headers["location"] == "/"
    assert [client.get("/sessions").status_code for client in (one, other)] == [200, 200]
    one.post("/sign-out", data={"csrf": mark(one.get("/sessions"))}, headers={"origin": "http://localhost:8700"})
    assert [client.get("/sessions").status_code for client in (one, other)] == [303, 200]
    for token in (OwnerLink().token, "", "x", link.token[:-1]):
        page = late.get(f"/sign-in?token={token}")
        assert (page.status_code, "agentgit-8700" in late.cookies) == (200, False)
    assert late.get("/sessions").headers["location"] == "/sign-in?next=/sessions"
    assert sign_in(late, link.token).status_code == 403  # a form needs an origin
    late.headers["origin"] = "http://localhost:8700"
    assert sign_in(late, link.token).status_code == 303  # pasted into the field
    assert link.token not in repr(link)


def test_a_sign_in_link_shows_a_form_that_works_once(repo):
    link = repo.users.create_link("ada").secret
    preview, one, other = (visitor(repo) for _ in range(3))
    for client in (preview, one, preview, other):
        page = client.get(f"/sign-in?token={link}")
        assert (page.status_code, f'value="{link}"' in page.text) == (200, True)
    answers = [
        client.post("/sign-in", data={"key": link, "csrf": mark(client.get(f"/sign-in?token={link}")), "next": "/keys"})
        for client in (one, other)
    ]
    assert [answer.status_code for answer in answers] == [303, 401]
    assert answers[0].headers["location"] == "/keys"
    assert 'role="alert"' in answers[1].text
    assert link not in answers[1].text
    page = one.get("/keys")
    assert "sign-in" in page.text
    made_by_ada = one.post("/keys", data={"csrf": mark(page), "name": "ci", "scope": "read", "days": "1"})
    secret = re.search(r'<pre id="secret">(agit_[^<]+)</pre>', made_by_ada.text)[1]
    assert repo.authenticate(secret).context.principal.scopes == {"read"}


def test_the_cookie_of_a_browser_is_protected_and_needs_https(repo, key):
    """Keys and links over remote plain http are refused, and not used up."""
    answer = sign_in(visitor(repo), key)
    cookie = next(one for one in answer.headers.get_list("set-cookie") if one.startswith("__Host-agentgit="))
    assert {"HttpOnly", "Secure", "SameSite=lax", "Path=/", f"Max-Age={30 * 86_400}"} <= set(cookie.split("; "))
    open_line = visitor(repo, "http://git.example")
    for refused in (
        open_line.get("/sign-in"),  # not even the form is shown
        open_line.post("/sign-in", data={"key": key}),
    ):
        assert (refused.status_code, key in str(refused.headers)) == (403, False)
        assert "--no-proxy" in refused.text
    link = OwnerLink()
    by = [visitor(repo, f"{scheme}://git.example", link=link) for scheme in ("http", "https")]
    assert [one.get(f"/sign-in?token={link.token}").status_code for one in by] == [403, 303]


def test_the_form_takes_one_key_and_says_who_makes_one(repo, key):
    """The page has one field; a wrong key is a 401 whose text is the same for every cause, and is not shown again."""
    client = visitor(repo)
    page = client.get("/sign-in")
    assert re.findall(r'<input id="(\w+)"', page.text) == ["key"]
    assert "agentgit users link NAME" in page.text
    repo.users.add("gone")
    of_gone = repo.keys.create("k", user="gone").secret
    repo.users.delete("gone")
    answers = [sign_in(visitor(repo), wrong) for wrong in (f"{key[:-1]}!", "nonsense", of_gone, "\0")]
    assert [answer.status_code for answer in answers] == [401] * 4
    assert len({re.search(r'role="alert">(.*?)<', answer.text)[1] for answer in answers}) == 1
    assert of_gone not in answers[2].text


def test_a_browser_is_signed_out_when_its_key_ends(repo):
    made = repo.keys.create("mine", "read", user="ada")
    client = visitor(repo)
    assert sign_in(client, f" {made.secret} ").headers["location"] == "/"
    assert client.get("/sessions").status_code == 200
    repo.users.disable("ada")
    assert client.get("/sessions").headers["location"] == "/sign-in?next=/sessions"
    repo.users.enable("ada")
    assert client.get("/sessions").status_code == 200
    repo.keys.revoke(made.key)
    assert client.get("/sessions").headers["location"] == "/sign-in?next=/sessions"


def test_signing_out_revokes_the_key_of_the_browser_but_not_one_that_a_person_made(repo, key):
    """Signing out revokes every copy of a browser's key; programs may use a key that was typed."""
    client = visitor(repo)
    sign_in(client, repo.users.create_link("ada").secret)
    page = client.get("/sessions")
    secret = client.cookies["__Host-agentgit"]
    assert client.post("/sign-out", data={"csrf": mark(page)}).status_code == 303
    with pytest.raises(NotAllowed):
        repo.authenticate(secret)
    stolen = TestClient(app(repo), base_url="https://git.example", cookies={"__Host-agentgit": secret})
    assert stolen.get("/sessions", follow_redirects=False).headers["location"].startswith("/sign-in")
    sign_in(client, key)
    client.post("/sign-out", data={"csrf": mark(client.get("/sessions"))})
    assert client.get("/sessions").status_code == 303
    assert repo.authenticate(key).user.name == "ada"


def test_a_read_key_can_revoke_itself_but_not_another_key(repo):
    ada = repo.as_user("ada")
    key, other = ada.keys.create("to look", "read"), ada.keys.create("other", "read")
    client = visitor(repo, link=OwnerLink())
    client.headers["authorization"] = f"Bearer {key.secret}"
    assert client.delete(f"/api/v1/keys/{other.key.id}").status_code == 403
    assert client.delete(f"/api/v1/keys/{key.key.id}").status_code == 204
    assert client.get("/api/v1/me").status_code == 401
    assert repo.authenticate(other.secret).user.name == "ada"


def test_signing_in_redirects_only_to_a_page_of_this_site(repo, key):
    """A page that is too long for `next` is not remembered either."""
    assert visitor(repo).get("/sessions?name=" + "a" * 3_000).headers["location"] == "/sign-in"
    for place in ("//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nb: c"):
        assert sign_in(visitor(repo), key, next=place).headers["location"] == "/", place
        link = OwnerLink()
        answer = visitor(repo, link=link).get("/sign-in", params={"token": link.token, "next": place})
        assert answer.headers["location"] == "/", place


# -- forms


def test_a_form_from_another_site_is_refused(repo):
    """A form without the CSRF token of this browser or from another origin is a 403 and changes nothing."""
    client = at_home(repo)
    good = {"csrf": mark(client.get("/sessions")), "name": "made by a form"}
    other = mark(at_home(repo).get("/sessions"))
    for data, headers in [
        (good | {"csrf": ""}, {}),
        (good | {"csrf": other}, {}),
        (good, {"origin": "https://evil.example"}),
        (good, {"origin": "null"}),
        (good, {"origin": "http://localhost:9999"}),
    ]:
        assert client.post("/sessions", data=data, headers=headers).status_code == 403
    del client.headers["origin"]
    assert client.post("/sessions", data=good).status_code == 403
    assert "made by a form" not in {one.session_name for one in repo.sessions()}
    assert client.post("/sessions", data=good, headers={"sec-fetch-site": "same-origin"}).status_code == 303
    assert "made by a form" in {one.session_name for one in repo.sessions()}


def test_a_cookie_alone_cannot_write_through_the_api(repo):
    client = at_home(repo)
    assert client.get("/api/v1/me").json()["name"] == "local"
    assert client.post("/api/v1/sessions", json={"name": "sneaked in"}).status_code == 401
    assert "sneaked in" not in {one.session_name for one in repo.sessions()}


# -- the headers of every answer


def test_every_answer_has_security_headers_and_no_page_has_inline_code(repo):
    """Headers of pages, API, files and failures forbid inline code, frames, sniffing and caching."""
    client = at_home(repo)
    at = f"/sessions/{repo.session('support-42').id}"
    pages = ("/sessions", at, f"{at}/checkpoints/{repo.session('support-42').get_checkpoint('HEAD').id}", "/audit")
    for path in (*pages, "/api/v1/sessions", "/api/v1/nothing", "/nothing", "/static/agentgit.js", "/sign-in"):
        answer = client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == ("no-cache" if "static" in path else "no-store")
        assert path not in pages or not re.search(r"<style|\sstyle=|\son\w+=|<script(?! src=)", answer.text), path
    assert "strict-transport-security" in visitor(repo).get("/sign-in").headers


def test_a_head_request_matches_get_without_a_body(repo):
    """HEAD has the status and the type of GET and no body; the live feed refuses it."""
    client = at_home(repo)
    export = f"/sessions/{repo.session('support-42').id}/export"
    for path in ("/sessions", "/api/v1/sessions", "/api/v1/nothing", "/nothing", "/static/agentgit.js", export):
        head, whole = client.head(path), client.get(path)
        assert (head.status_code, head.content) == (whole.status_code, b""), path
        assert head.headers.get("content-type") == whole.headers.get("content-type")
        assert whole.content
    assert client.head("/api/v1/events/live").status_code == 405  # it never ends


def test_a_request_with_an_unknown_host_name_is_refused(repo):
    """A request with an unknown host name, as in DNS rebinding, is a 400 and reads nothing."""
    client = at_home(repo)
    for host in ("evil.example", "localhost.evil.example", "evil.example:8700", ""):
        answer = client.get("/api/v1/sessions", headers={"host": host})
        assert (answer.status_code, "support-42" in answer.text) == (400, False), host
        assert answer.headers["content-security-policy"]


# -- limits


def test_an_oversized_request_is_refused(repo):
    client = at_home(repo, limits=Limits(body=1_000))
    page = client.get("/sessions")
    for body in (b"x" * 1_001, iter([b"csrf=", b"x" * 1_000])):
        kind = {"content-type": "application/x-www-form-urlencoded"}
        assert client.post("/sessions", content=body, headers=kind).status_code == 413
    for announced in ("9" * 5_000, "-1", "1e3"):
        kind = {"content-type": "application/x-www-form-urlencoded", "content-length": announced}
        assert client.post("/sessions", content=b"x", headers=kind).status_code == 413
    assert client.post("/sessions", data={"csrf": mark(page), "name": "small"}).status_code == 303
    answer = client.get("/api/v1/sessions?limit=1001")
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")


def test_an_unfinished_request_delays_no_other(repo):
    with (
        served(app(repo)) as address,
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as slow,
    ):
        slow.sendall(
            b"POST /api/v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 50\r\n\r\n{"
        )
        assert httpx.get(f"{address}/sign-in", timeout=60).status_code == 200


@pytest.mark.long
def test_signing_out_ends_the_live_feeds_of_the_browser(repo):
    made = repo.users.sign_in(repo.users.create_link("ada").secret)
    with quick_feeds(), served(app(repo)) as address:
        name = f"agentgit-{address.rpartition(':')[2]}"
        with (
            httpx.Client(base_url=address, cookies={name: made.secret}, timeout=60) as client,
            client.stream("GET", "/api/v1/events/live") as feed,
        ):
            lines = feed.iter_lines()
            assert next(lines).startswith("retry:")
            repo.keys.revoke(made.key)
            assert [line for line in lines if line] == []


@pytest.mark.long
def test_the_live_feeds_of_a_user_are_limited(repo):
    link = OwnerLink()
    made = app(repo, link=link, limits=Limits(feeds=2))
    with served(made) as address:
        jar = {f"agentgit-{address.rpartition(':')[2]}": link.token}
        with httpx.Client(base_url=address, cookies=jar, timeout=60) as client:
            url = "/api/v1/events/live"
            with client.stream("GET", url) as first, client.stream("GET", url):
                assert first.status_code == 200
                refused = client.get(url)
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
            until = time.monotonic() + 60
            while True:  # the server notices a closed connection only after a while
                with client.stream("GET", url) as again:
                    if again.status_code == 200 or time.monotonic() > until:
                        break
                time.sleep(0.01)
            assert again.status_code == 200


# -- errors


def test_an_unexpected_error_reveals_nothing_to_the_client(repo, monkeypatch, caplog):
    """An exception in our code is a plain 500 for the client and a traceback in the log."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret of the house")

    client = at_home(repo)
    monkeypatch.setattr(type(repo), "sessions", broken)
    with caplog.at_level(logging.ERROR):
        answers = [client.get("/sessions"), client.get("/api/v1/sessions")]
    for answer in answers:
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert "Traceback" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "the secret of the house" in caplog.text
