"""The guard of the web application: logins, forms, security headers, limits and errors."""

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
from web_servers import quick_passwords, served, story  # noqa: F401  # a fixture

import agentgit
from agentgit import NotAllowed
from agentgit.web import Limits, OwnerLink, app

PASSWORD = "correct horse battery staple"  # noqa: S105  # of accounts that the tests make


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the folder of the repository."""
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="module")
def repo(folder: Path):
    """Create a repository with the demo story and an account."""
    with story(folder) as repo:
        repo.users.add("ada", PASSWORD)
        yield repo


def visitor(repo: agentgit.Repository, host: str = "https://git.example", **options: object) -> TestClient:
    """Create a browser that is not logged in; the pages require an account."""
    return TestClient(app(repo, **options), base_url=host, headers={"origin": host}, follow_redirects=False)


def at_home(repo: agentgit.Repository, **options: object) -> TestClient:
    """Create a browser that has logged in with a link."""
    link = OwnerLink(repo)
    client = visitor(repo, "http://localhost:8700", link=link, hosts=["localhost"], **options)
    assert client.get(f"/enter?token={link.token}").status_code == 303
    return client


def mark(page: httpx.Response) -> str:
    """Return the CSRF token in the forms of a page."""
    return re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text).group(1)


def log_in(client: TestClient, name: str = "ada", password: str = PASSWORD, **more: str) -> httpx.Response:
    """Send the form of the login page."""
    form = {"name": name, "password": password, "csrf": mark(client.get("/login")), **more}
    return client.post("/login", data=form)


# -- logins


def test_the_login_link_works_repeatedly_until_it_expires(repo, monkeypatch):
    """The link works again, in another browser and after a preview; after 12 hours it admits nobody."""
    link = OwnerLink(repo)
    made = app(repo, link=link)
    preview, one, other, late = (
        TestClient(made, base_url="http://localhost:8700", follow_redirects=False) for _ in range(4)
    )
    for client in (preview, one, one, other):
        assert client.get(f"/enter?token={link.token}").headers["location"] == "/"
    assert [client.get("/sessions").status_code for client in (one, other)] == [200, 200]
    assert len({client.cookies.get("agentgit-8700") for client in (preview, one, other)}) == 3  # one for each browser
    one.post("/logout", data={"csrf": mark(one.get("/sessions"))}, headers={"origin": "http://localhost:8700"})
    assert other.get("/sessions").status_code == 200
    ends = time.monotonic() + 12 * 3600
    monkeypatch.setattr(time, "monotonic", lambda: ends)
    refused = late.get(f"/enter?token={link.token}")
    assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
    for client in (other, late):
        assert client.get("/sessions").headers["location"] == "/login?next=/sessions"


def test_the_login_cookie_is_protected_and_needs_https(repo):
    """The cookie is HttpOnly, SameSite, Secure and bound to its host; remote logins over plain http are refused."""
    answer = log_in(visitor(repo))
    cookie = next(one for one in answer.headers.get_list("set-cookie") if one.startswith("__Host-agentgit="))
    assert {"HttpOnly", "Secure", "SameSite=lax", "Path=/", f"Max-Age={12 * 3600}"} <= set(cookie.split("; "))
    open_line = visitor(repo, "http://git.example")
    for refused in (
        open_line.get("/login"),  # not even the form is shown
        open_line.post("/login", data={"name": "ada", "password": PASSWORD}),
        open_line.post("/api/v1/login", json={"name": "ada", "password": PASSWORD}),
    ):
        assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
        assert "--insecure" in refused.text
    assert log_in(visitor(repo, "http://git.example", insecure=True)).status_code == 303


def test_a_failed_login_does_not_reveal_whether_the_user_exists(repo):
    """The page of a failed login is the same for a wrong password and for an unknown name."""
    pages = [log_in(visitor(repo), name, "nonsense nonsense") for name in ("ada", "nobody")]
    assert [page.status_code for page in pages] == [401, 401]
    told = [re.search(r'role="alert">(.*?)<', page.text).group(1) for page in pages]
    assert told[0] == told[1]


def test_logging_out_revokes_the_key_of_the_browser(repo):
    """The database has only the hash of a browser's key, and logging out revokes every copy of the key."""
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


def test_a_login_link_refused_over_http_still_works_over_https(repo):
    """A login link used over plain http from another machine is refused and still works over https."""
    link = OwnerLink(repo)
    made = app(repo, link=link)
    by = [TestClient(made, base_url=f"{scheme}://git.example", follow_redirects=False) for scheme in ("http", "https")]
    assert [one.get(f"/enter?token={link.token}").status_code for one in by] == [403, 303]


@pytest.mark.parametrize("by_link", [False, True])
def test_a_read_key_can_log_out_but_not_revoke_another_key(repo, by_link):
    """A read key can log itself out, with and without a login link, and cannot revoke another key."""
    ada = repo.as_user("ada")
    key, other = ada.keys.create("to look", "read"), ada.keys.create("other", "read")
    client = visitor(repo, link=OwnerLink(repo) if by_link else None)
    client.headers["authorization"] = f"Bearer {key.secret}"
    assert client.delete(f"/api/v1/keys/{other.key.id}").status_code == 403
    assert client.post("/api/v1/logout").status_code == 204
    assert client.get("/api/v1/me").status_code == 401
    assert repo.authenticate(other.secret).user.name == "ada"


def test_a_very_long_url_still_redirects_to_the_login_page(repo):
    """A page request with a very long query redirects to the login page without a `next`."""
    door = visitor(repo).get("/sessions?name=" + "a" * 3_000)
    assert door.headers["location"] == "/login"


@pytest.mark.parametrize("next", ["//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nb: c"])
def test_login_never_redirects_to_another_site(repo, next):
    """A login whose `next` leads to another site redirects to the start page."""
    answer = log_in(visitor(repo), next=next)
    assert answer.headers["location"] == "/"


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


def test_every_post_route_requires_the_csrf_token(repo):
    """Every POST route of the pages, also one added later, is a 403 with a wrong CSRF token."""
    client = at_home(repo)
    made = app(repo)
    paths = [path for path, methods in made.openapi()["paths"].items() if "post" in methods]
    assert len(paths) > 15
    for path in paths:
        assert client.post(re.sub(r"\{\w+\}", "1", path), data={"csrf": "0" * 64}).status_code == 403, path


def test_a_cookie_alone_cannot_write_through_the_api(repo):
    """A browser's cookie can only read through the API, so no other site can make it write."""
    client = at_home(repo)
    assert client.get("/api/v1/me").json()["name"] == "local"
    assert client.post("/api/v1/sessions", json={"name": "sneaked in"}).status_code == 401
    assert "sneaked in" not in {one.session_name for one in repo.sessions()}


# -- the headers of every answer


def test_every_answer_has_security_headers(repo):
    """Headers of pages, API, files and failures forbid inline code, frames, sniffing and caching."""
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


def test_a_head_request_matches_get_without_a_body(repo):
    """HEAD has the status and the type of GET and no body; the login link and the live feed refuse it."""
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
    assert client.head("/api/v1/events/live").status_code == 405  # it never ends


def test_a_page_has_no_inline_style_or_script(repo):
    """Pages contain no inline style or script, which the content security policy forbids."""
    client = at_home(repo)
    session = repo.session("support-42")
    head = repo.session("support-42").checkpoints()[-1]
    for path in ("/sessions", f"/sessions/{session.id}", f"/sessions/{session.id}/checkpoints/{head.id}", "/audit"):
        text = client.get(path).text
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! src=)", text), path


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "evil.example:8700", ""])
def test_a_request_with_an_unknown_host_name_is_refused(repo, host):
    """A request with an unknown host name, as in DNS rebinding, is a 400 and reads nothing."""
    client = at_home(repo)
    answer = client.get("/api/v1/sessions", headers={"host": host})
    assert (answer.status_code, "support-42" in answer.text) == (400, False)
    assert answer.headers["content-security-policy"]


# -- limits


def test_an_oversized_request_is_refused(repo):
    """A body over the limit is a 413, announced or not, and a page of 1,001 rows a 422."""
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


def test_an_unfinished_request_times_out_and_delays_no_other(repo):
    """A client that stops inside a body gets a 408, and other requests are answered meanwhile."""
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


def test_a_slow_body_ends_in_408(repo):
    """The time limit is for the whole body, so a slow sender cannot extend it."""
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
def test_logging_out_ends_the_live_feeds_of_a_login_link_browser(repo):
    """A live feed ends when the browser that opened it logs out."""
    link = OwnerLink(repo)
    with quick_feeds(), served(app(repo, link=link)) as address:
        name, credential = f"agentgit-{address.rpartition(':')[2]}", link.log_in(link.token)
        with (
            httpx.Client(base_url=address, cookies={name: credential}, timeout=60) as client,
            client.stream("GET", "/api/v1/events/live") as feed,
        ):
            lines = feed.iter_lines()
            assert next(lines).startswith("retry:")
            link.revoke(credential)
            assert [line for line in lines if line] == []


@pytest.mark.long
def test_the_live_feeds_of_a_user_are_limited(repo):
    """A feed over the limit is a 429, and another feed is accepted after one ends."""
    link = OwnerLink(repo)
    made = app(repo, link=link, limits=Limits(feeds=2))
    with served(made) as address:
        jar = {f"agentgit-{address.rpartition(':')[2]}": link.log_in(link.token)}
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
