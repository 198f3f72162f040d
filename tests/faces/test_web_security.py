"""The guard before the web face: who comes in, where forms come from, what every answer says, how much one may ask."""

from __future__ import annotations

import logging
import re
import time
from contextlib import suppress
from pathlib import Path

import backend
import httpx
import pytest
from fastapi.testclient import TestClient
from faults import quick_feeds
from sites import quick_passwords, served, story  # noqa: F401  # a fixture

import agentgit
from agentgit import NotAllowed
from agentgit.web import Limits, OwnerLink, app

PASSWORD = "correct horse battery staple"  # noqa: S105  # of accounts that the tests make


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the repository of this file is."""
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="module")
def repo(folder: Path):
    """A repository with a story and an account."""
    with story(folder) as repo:
        repo.users.add("ada", PASSWORD)
        yield repo


def visitor(repo: agentgit.Repository, host: str = "https://git.example", **options: object) -> TestClient:
    """Give a browser that is not in; pages ask for accounts."""
    return TestClient(app(repo, **options), base_url=host, headers={"origin": host}, follow_redirects=False)


def at_home(repo: agentgit.Repository, **options: object) -> TestClient:
    """Give a browser that is in by the link."""
    link = OwnerLink(repo)
    client = visitor(repo, "http://localhost:8700", link=link, hosts=["localhost"], **options)
    assert client.get(f"/enter?token={link.token}").status_code == 303
    return client


def mark(page: httpx.Response) -> str:
    """Give what the forms of a page bring back."""
    return re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text).group(1)


def log_in(client: TestClient, name: str = "ada", password: str = PASSWORD, **more: str) -> httpx.Response:
    """Send the form of the login page."""
    form = {"name": name, "password": password, "csrf": mark(client.get("/login")), **more}
    return client.post("/login", data=form)


# -- coming in


def test_q6_the_link_works_until_it_ends_and_a_preview_spends_nothing(repo, monkeypatch):
    """Q6: the link may be opened again, by another browser and after a preview; after 12 hours it lets nobody in."""
    link = OwnerLink(repo)
    made = app(repo, link=link)
    preview, one, other, late = (
        TestClient(made, base_url="http://localhost:8700", follow_redirects=False) for _ in range(4)
    )
    for client in (preview, one, one, other):
        assert client.get(f"/enter?token={link.token}").headers["location"] == "/"
    assert [client.get("/sessions").status_code for client in (one, other)] == [200, 200]
    assert len({client.cookies.get("agentgit-8700") for client in (preview, one, other)}) == 3  # each has its own
    one.post("/logout", data={"csrf": mark(one.get("/sessions"))}, headers={"origin": "http://localhost:8700"})
    assert other.get("/sessions").status_code == 200
    ends = time.monotonic() + 12 * 3600
    monkeypatch.setattr(time, "monotonic", lambda: ends)
    refused = late.get(f"/enter?token={link.token}")
    assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
    for client in (other, late):
        assert client.get("/sessions").headers["location"] == "/login?next=/sessions"


def test_d5_the_cookie_is_kept_from_scripts_other_sites_and_open_lines(repo):
    """D5: HttpOnly, SameSite, Secure and bound to the host over https; over plain http only on this machine."""
    answer = log_in(visitor(repo))
    cookie = next(one for one in answer.headers.get_list("set-cookie") if one.startswith("__Host-agentgit="))
    assert {"HttpOnly", "Secure", "SameSite=lax", "Path=/", f"Max-Age={12 * 3600}"} <= set(cookie.split("; "))
    open_line = visitor(repo, "http://git.example")
    for refused in (
        open_line.get("/login"),  # it is not even asked for
        open_line.post("/login", data={"name": "ada", "password": PASSWORD}),
        open_line.post("/api/v1/login", json={"name": "ada", "password": PASSWORD}),
    ):
        assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
        assert "--insecure" in refused.text
    assert log_in(visitor(repo, "http://git.example", insecure=True)).status_code == 303


def test_d5_a_wrong_password_says_no_more_than_a_wrong_name(repo):
    """D5: the page of a failed login is the same whether there is such an account or not."""
    pages = [log_in(visitor(repo), name, "nonsense nonsense") for name in ("ada", "nobody")]
    assert [page.status_code for page in pages] == [401, 401]
    told = [re.search(r'role="alert">(.*?)<', page.text).group(1) for page in pages]
    assert told[0] == told[1]


def test_d5_after_logging_out_the_key_of_the_browser_is_worth_nothing(repo):
    """D5: the database has only the hash of a browser's key, and logging out revokes it, wherever it went."""
    client = visitor(repo)
    log_in(client)
    page = client.get("/sessions")
    assert page.status_code == 200
    secret = client.cookies["__Host-agentgit"]
    assert secret.encode() not in Path(backend.url(repo).database).read_bytes()
    assert client.post("/logout", data={"csrf": mark(page)}).status_code == 303
    with pytest.raises(NotAllowed):
        repo.authenticate(secret)
    stolen = TestClient(app(repo), base_url="https://git.example", cookies={"__Host-agentgit": secret})
    assert stolen.get("/sessions", follow_redirects=False).headers["location"].startswith("/login")


def test_d5_a_link_is_not_used_up_by_an_open_line(repo):
    """D5: who comes with the link over plain http, from another machine, is refused, and can come again by https."""
    link = OwnerLink(repo)
    made = app(repo, link=link)
    by = [TestClient(made, base_url=f"{scheme}://git.example", follow_redirects=False) for scheme in ("http", "https")]
    assert [one.get(f"/enter?token={link.token}").status_code for one in by] == [403, 303]


@pytest.mark.parametrize("by_link", [False, True])
def test_d5_any_key_can_log_itself_out(repo, by_link):
    """D5: also one that may only look, and also where browsers come in by a link; another key it cannot end."""
    ada = repo.as_user("ada")
    key, other = ada.keys.create("to look", "read"), ada.keys.create("other", "read")
    client = visitor(repo, link=OwnerLink(repo) if by_link else None)
    client.headers["authorization"] = f"Bearer {key.secret}"
    assert client.delete(f"/api/v1/keys/{other.key.id}").status_code == 403
    assert client.post("/api/v1/logout").status_code == 204
    assert client.get("/api/v1/me").status_code == 401
    assert repo.authenticate(other.secret).user.name == "ada"


def test_d5_a_long_address_leads_to_the_door_all_the_same(repo):
    """D5: who is not in and asks for a page with a very long query can log in, and begins at the sessions."""
    door = visitor(repo).get("/sessions?name=" + "a" * 3_000)
    assert door.headers["location"] == "/login"


@pytest.mark.parametrize("next", ["//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nb: c"])
def test_d5_logging_in_leads_nowhere_else(repo, next):
    """D5: what stands in `next` leads to a page of ours, or to the beginning."""
    answer = log_in(visitor(repo), next=next)
    assert answer.headers["location"] == "/"


# -- forms


def test_d5_a_form_of_another_site_does_nothing(repo):
    """D5: a form needs the mark of this browser's pages, and comes from our own origin; else nothing is done."""
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


def test_d5_every_page_that_changes_something_asks_where_the_form_comes_from(repo):
    """D5: no POST of a page works without its mark, also those that are added later."""
    client = at_home(repo)
    made = app(repo)
    paths = [path for path, methods in made.openapi()["paths"].items() if "post" in methods]
    assert len(paths) > 15
    for path in paths:
        assert client.post(re.sub(r"\{\w+\}", "1", path), data={"csrf": "0" * 64}).status_code == 403, path


def test_d5_a_cookie_alone_changes_nothing_through_the_api(repo):
    """D5: programs send a key in a header; a browser's cookie only reads, so no other site can make it write."""
    client = at_home(repo)
    assert client.get("/api/v1/me").json()["name"] == "local"
    assert client.post("/api/v1/sessions", json={"name": "sneaked in"}).status_code == 401
    assert "sneaked in" not in {one.session_name for one in repo.sessions()}


# -- every answer


def test_d5_every_answer_says_what_a_browser_may_do_with_it(repo):
    """D5: no inline script or style, no frame, no sniffing, no cache; on pages, the API, files and failures alike."""
    client = at_home(repo)
    for path in ("/sessions", "/api/v1/sessions", "/api/v1/nothing", "/nothing", "/static/agentgit.js", "/login"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == ("no-cache" if "static" in path else "no-store")
    assert "strict-transport-security" in visitor(repo).get("/login").headers


def test_d5_the_head_of_an_answer_can_be_had_alone(repo):
    """D5: HEAD says of a page, the API, a file and a failure what GET does, without a body; it uses up no link."""
    link = OwnerLink(repo)
    client = TestClient(app(repo, link=link), base_url="http://localhost", follow_redirects=False)
    assert client.head(f"/enter?token={link.token}").status_code == 405
    assert client.get(f"/enter?token={link.token}").status_code == 303
    export = f"/sessions/{repo.session('support-42').id}/export"
    for path in ("/sessions", "/api/v1/sessions", "/api/v1/nothing", "/nothing", "/static/agentgit.js", export):
        head, whole = client.head(path), client.get(path)
        assert (head.status_code, head.content) == (whole.status_code, b""), path
        assert head.headers.get("content-type") == whole.headers.get("content-type")
        assert whole.content
    assert client.head("/api/v1/events/live").status_code == 405  # it has no end


def test_d5_a_page_has_no_inline_style_or_script(repo):
    """D5: what the policy forbids is not in the pages, so nothing of them is lost."""
    client = at_home(repo)
    session = repo.session("support-42")
    head = repo.session("support-42").checkpoints()[-1]
    for path in ("/sessions", f"/sessions/{session.id}", f"/sessions/{session.id}/checkpoints/{head.id}", "/audit"):
        text = client.get(path).text
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! src=)", text), path


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "evil.example:8700", ""])
def test_d5_another_name_of_this_machine_is_not_answered(repo, host):
    """D5: a page whose name was made to lead here (DNS rebinding) reads nothing."""
    client = at_home(repo)
    answer = client.get("/api/v1/sessions", headers={"host": host})
    assert (answer.status_code, "support-42" in answer.text) == (400, False)
    assert answer.headers["content-security-policy"]


# -- how much


def test_d5_a_request_that_is_too_large_is_not_read(repo):
    """D5: announced or not, a body over the limit ends in 413; a page of a thousand and one rows in 422."""
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


def test_d5_a_request_that_does_not_come_is_not_waited_for(repo):
    """D5: who sends the head of a request and then nothing gets a 408, and holds nobody else up."""
    import socket

    with served(app(repo, limits=Limits(seconds=0.2))) as address:
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(
                b"POST /api/v1/login HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"content-length: 50\r\n\r\n{"
            )
            assert httpx.get(f"{address}/login", timeout=60).status_code == 200
            assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_d5_a_body_that_drips_is_not_waited_for(repo):
    """D5: the time is for the whole body; who sends a byte now and then gets no more of it."""
    import socket

    with served(app(repo, limits=Limits(seconds=0.1))) as address:
        port, answer = int(address.rpartition(":")[2]), b""
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(
                b"POST /api/v1/login HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"content-length: 50000\r\n\r\n"
            )
            slow.settimeout(0.02)
            for _ in range(3_000):
                slow.send(b"x")
                with suppress(TimeoutError):
                    answer = slow.recv(100)
                    break
    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.long
def test_d5_logging_out_ends_the_feeds_of_a_browser_that_came_by_the_link(repo):
    """D5: a live feed ends when the browser that has it open logs out."""
    link = OwnerLink(repo)
    with quick_feeds(), served(app(repo, link=link)) as address:
        name, credential = f"agentgit-{address.rpartition(':')[2]}", link.enter(link.token)
        with (
            httpx.Client(base_url=address, cookies={name: credential}, timeout=60) as client,
            client.stream("GET", "/api/v1/events/live") as feed,
        ):
            lines = feed.iter_lines()
            assert next(lines).startswith("retry:")
            link.leave(credential)
            assert [line for line in lines if line] == []


@pytest.mark.long
def test_d5_one_user_has_a_few_live_feeds(repo):
    """D5: one more than the limit is told to wait; when one ends there is room again."""
    link = OwnerLink(repo)
    made = app(repo, link=link, limits=Limits(feeds=2))
    with served(made) as address:
        jar = {f"agentgit-{address.rpartition(':')[2]}": link.enter(link.token)}
        with httpx.Client(base_url=address, cookies=jar, timeout=60) as client:
            url = "/api/v1/events/live"
            with client.stream("GET", url) as first, client.stream("GET", url):
                assert first.status_code == 200
                refused = client.get(url)
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
            until = time.monotonic() + 60
            while True:  # the server learns in its own time that the other side went away
                with client.stream("GET", url) as again:
                    if again.status_code == 200 or time.monotonic() > until:
                        break
                time.sleep(0.01)
            assert again.status_code == 200


# -- what is not told


def test_d5_what_nobody_expected_tells_nothing_of_itself(repo, monkeypatch, caplog):
    """D5: an exception in our own code is a plain 500 outside, and a trace in the log inside."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr(type(repo), "sessions", broken)
    link = OwnerLink(repo)
    client = TestClient(app(repo, link=link), base_url="http://localhost")
    client.get(f"/enter?token={link.token}", follow_redirects=False)
    with caplog.at_level(logging.ERROR):
        answers = [client.get("/sessions"), client.get("/api/v1/sessions")]
    for answer in answers:
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert "Traceback" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "the secret of the house" in caplog.text
