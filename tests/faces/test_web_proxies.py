"""Servers behind proxies: signing in through nginx, the header that names a user, and the public URL."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from real_proxies import NAME, browser, nginx
from web_servers import free_port, served, served_by_command, serving
from web_visitors import mark, sign_in

import agentgit
from agentgit import InvalidInput, Repository
from agentgit.web import app

SAMPLE = Path(__file__).parents[2] / "docs" / "samples" / "nginx.conf"
PROXY = "127.0.0.1"
STRANGER = "127.0.0.2"
USER = "x-remote-user"


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        repo.users.add("ada")
        repo.users.add("bob")
        yield repo


def asks(repo: Repository, peer: str = PROXY, base: str = f"http://{NAME}", **options: object) -> TestClient:
    """Create a browser or a proxy that connects from an address to `agentgit serve` behind a proxy."""
    made, _ = served_by_command(repo, **{"trusted_proxies": [PROXY], "hosts": [NAME]} | options)
    return TestClient(made, base_url=base, client=(peer, 50_000), follow_redirects=False)


def said(scheme: str = "https", origin: str = f"https://{NAME}") -> dict[str, str]:
    return {"x-forwarded-for": "192.0.2.1", "x-forwarded-proto": scheme, "origin": origin}


# -- the header in which a proxy names the user


@pytest.mark.parametrize("path", ["/sessions", "/api/v1/me"])
def test_a_trusted_proxy_names_the_user_in_exactly_one_header(repo, path):
    """The header must be there once and name a user exactly, and the proxy must be the peer of the connection."""
    client = asks(repo, user_header="X-Remote-User")
    assert client.get(path, headers={USER: "ada"}).status_code == 200
    for names in ((), ("ada", "ada"), ("ada", "bob"), ("",), ("eve",), ("local",), ("ADA",), ("ada ,bob",)):
        assert client.get(path, headers=[(USER, name) for name in names]).status_code == 403, names
    ada = str(repo.users.find("ada").id)
    assert client.get(path, headers={USER: ada}).status_code == 403  # an id is not a name
    repo.users.disable("bob")
    assert client.get(path, headers={USER: "bob"}).status_code == 403
    stranger = asks(repo, STRANGER, user_header="X-Remote-User")
    for more in ({}, {"x-forwarded-for": PROXY}, {"x-forwarded-for": f"{PROXY}, {PROXY}", "x-real-ip": PROXY}):
        assert stranger.get(path, headers={USER: "ada", **more}).status_code in (303, 401), more
    assert asks(repo).get(path, headers={USER: "ada"}).status_code in (303, 401)  # without --user-header


def test_an_unknown_user_is_created_only_if_the_operator_says_so(repo):
    client = asks(repo, user_header="X-Remote-User", create_users=True)
    first, again = (client.get("/api/v1/me", headers={USER: "eve"}).json() for _ in range(2))
    assert (first["name"], first["is_admin"], again) == ("eve", False, first)
    for name in ("local", "a/b", "x" * 201):
        assert client.get("/api/v1/me", headers={USER: name}).status_code in (400, 403, 422), name
    assert sorted(user.name for user in repo.users.list()) == ["ada", "bob", "eve", "local"]


async def test_a_name_that_is_not_utf8_is_refused(repo):
    """Names in another encoding are refused, because replaced bytes would give two people one name."""
    made, _ = served_by_command(repo, trusted_proxies=[PROXY], user_header="X-Remote-User", create_users=True)
    transport = httpx.ASGITransport(made, client=(PROXY, 50_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answers = [await client.get("/api/v1/me", headers=[(USER.encode(), name)]) for name in (b"jos\xe9", b"jos\xe8")]
    assert [answer.status_code for answer in answers] == [403, 403]


def test_a_form_by_a_user_of_the_proxy_needs_the_origin_and_the_csrf_token(repo):
    """Whom a proxy has signed in can use the forms, and other sites cannot send them in their name."""
    client = asks(repo, user_header="X-Remote-User")
    ours = said() | {USER: "ada"}
    page = client.get("/keys", headers=ours)
    form = {"name": "mine", "scope": "read", "csrf": mark(page)}
    jar = {"cookie": page.headers["set-cookie"].partition(";")[0]}
    for wrong in ({"origin": "https://evil.example"}, {"cookie": ""}):
        assert client.post("/keys", data=form, headers=ours | jar | wrong).status_code == 403
    assert client.post("/keys", data=form, headers=ours | jar).status_code == 200
    [key] = repo.keys.list("ada")
    assert client.post("/api/v1/keys", json={"name": "more"}, headers=ours | jar).status_code == 401
    assert key.name == "mine"


def test_no_proxy_serves_other_machines_over_plain_http(repo):
    key = repo.keys.create("mine", user="ada").secret
    made, _ = served_by_command(repo, host="0.0.0.0", no_proxy=True)  # noqa: S104  # it is not run
    client = TestClient(made, base_url="http://git.example", client=("192.0.2.1", 1), follow_redirects=False)
    client.headers["origin"] = "http://git.example"
    assert sign_in(client, key).status_code == 303
    assert client.get("/sessions").status_code == 200


# -- the public URL and the scheme


def test_only_a_trusted_proxy_can_say_https(repo):
    """The sign-in page is refused over plain HTTP, unless a trusted proxy says that the browser uses HTTPS."""
    assert asks(repo).get("/sign-in", headers=said()).status_code == 200
    assert asks(repo).get("/sign-in", headers=said("http")).status_code == 403
    assert asks(repo).get("/sign-in").status_code == 403
    assert asks(repo, STRANGER).get("/sign-in", headers=said()).status_code == 403
    network = asks(repo, "10.0.0.7", trusted_proxies=["10.0.0.0/24"])
    assert network.get("/sign-in", headers=said()).status_code == 200
    for host in ("evil.example", "git.example.com.evil.example"):
        assert asks(repo).get("/sign-in", headers=said() | {"host": host}).status_code == 400


def test_an_invalid_proxy_or_public_url_is_refused_at_start(repo):
    """A proxy is an address or a network without host bits, but not all addresses; a URL is the address of a site."""
    for wrong in ("10.0.0.1/8", "proxy.example", "0.0.0.0/0", "::/0", "", "*"):
        with pytest.raises(InvalidInput):
            served_by_command(repo, trusted_proxies=[wrong])
    for wrong in (
        "git.example", "ftp://git.example", "https://", "https://u:p@git.example", "https://git.example/?a=1",
        "https://git.example/#a", "https://git.example:99999", "https://git.example//evil.example",
        "https://git.example/\r\n",
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            app(repo, public_url=wrong)


@pytest.mark.parametrize("keeps_path", [True, False])
def test_links_cookies_forms_and_hosts_follow_the_public_url(repo, keeps_path):
    public = "https://git.example:8443/below/it"
    client = asks(repo, base="http://127.0.0.1:8700", public_url=public, hosts=[])
    path = "/below/it" if keeps_path else ""
    headers = said(origin="https://git.example:8443")
    door = client.get(f"{path}/sessions", headers=headers)
    assert door.headers["location"] == "/below/it/sign-in?next=/below/it/sessions"
    page = client.get(f"{path}/sign-in", headers=headers)
    addresses = re.findall(r'(?:href|src|action)="([^"#]+)', page.text)
    assert addresses
    assert [one for one in addresses if not one.startswith("/below/it/")] == []
    form = {"key": repo.keys.create("mine", user="ada").secret, "csrf": mark(page)}
    jar = {"cookie": page.headers["set-cookie"].partition(";")[0]}
    for origin in ("https://git.example", "http://git.example:8443", "http://127.0.0.1:8700", "null"):
        assert client.post(f"{path}/sign-in", data=form, headers=headers | jar | {"origin": origin}).status_code == 403
    entered = client.post(f"{path}/sign-in", data=form, headers=headers | jar)
    assert (entered.status_code, entered.headers["location"]) == (303, "/below/it/")
    assert "__Host-agentgit=" in entered.headers["set-cookie"]
    assert client.get(f"{path}/static/agentgit.css", headers=headers).status_code == 200
    assert client.get(f"{path}/api/v1/openapi.json", headers=headers).json()["servers"] == [{"url": "/below/it/api/v1"}]
    assert client.get(f"{path}/sign-in", headers=headers | {"host": "evil.example"}).status_code == 400
    direct = asks(repo, STRANGER, "http://git.example:8443", public_url=public)
    assert direct.get("/sign-in", headers=headers).status_code == 403  # not from the proxy, so not over https
    del headers["x-forwarded-proto"]
    assert direct.get(f"{path}/sign-in", headers=headers).status_code == 403  # no header says https


def test_the_log_says_why_a_form_was_refused(repo, caplog):
    """One log line names both origins and the option to set, and never the CSRF token of the form."""
    client = TestClient(app(repo), base_url="http://localhost:8700")
    token = mark(client.get("/sign-in"))
    form = {"key": "agit_x", "csrf": token}
    with caplog.at_level(logging.WARNING, "agentgit.web"):
        for origin in ("https://git.example:8443", "https://x\x1b[2J" + "y" * 5_000):
            assert client.post("/sign-in", data=form, headers={"origin": origin}).status_code == 403
        no_mark, ours = form | {"csrf": "0" * 64}, {"origin": "http://localhost:8700"}
        assert client.post("/sign-in", data=no_mark, headers=ours).status_code == 403
    first, second, third = (one.getMessage() for one in caplog.records if one.name == "agentgit.web")
    assert "'https://git.example:8443'" in first
    assert "'http://localhost:8700'" in first
    assert "--trusted-proxy" in first
    assert "\x1b" not in second
    assert len(second) < 1_000
    assert "wrong or missing" in third
    assert token not in caplog.text


@pytest.mark.parametrize(
    ("given", "answers"),
    [
        ({"trusted_proxies": [PROXY]}, False),
        ({"trusted_proxies": [PROXY], "host": "localhost"}, False),
        ({"trusted_proxies": [PROXY], "hosts": ["localhost"]}, False),
        ({"trusted_proxies": iter([PROXY]), "hosts": iter([NAME])}, True),
        ({"trusted_proxies": [PROXY], "public_url": f"https://{NAME}"}, True),
        ({"trusted_proxies": [PROXY], "host": "0.0.0.0"}, True),  # noqa: S104  # it is not run
    ],
)
def test_a_server_behind_a_proxy_without_a_name_warns_at_start(repo, given, answers):
    made, lines = served_by_command(repo, **given)
    told = [line for line in lines if "Only localhost names are allowed" in line and "--public-url https://" in line]
    assert len(told) == (not answers)
    client = TestClient(made, base_url=f"http://{NAME}", client=(PROXY, 50_000))
    page = client.get("/sign-in", headers=said())
    assert page.status_code == (200 if answers else 400)
    assert answers or "--public-url https://NAME" in page.text


def test_the_printed_link_uses_the_public_url(tmp_path):
    with agentgit.open(tmp_path / "new.db") as repo:
        _, lines = served_by_command(repo, public_url="https://git.example:8443/below/")
    assert re.search(r"http://127\.0\.0\.1:\d+$", lines[0])
    assert re.search(r"https://git\.example:8443/below/sign-in\?token=\S+$", lines[1])


# -- a real nginx


def options(text: str) -> list[str]:
    """Return the options of `agentgit serve` in a text."""
    [found] = re.findall(r"agentgit\b.* serve ((?:\\\n|[^`\n])*)", text)
    return found.replace("\\\n", " ").split()


def test_the_docs_and_the_proxy_sample_use_the_same_options():
    page = (SAMPLE.parents[1] / "web.md").read_text()
    team = page.partition("## For a team")[2].partition("\n## ")[0]
    assert options(SAMPLE.read_text()) == options(team)


def with_single_sign_on(sample: str) -> str:
    """Return the sample with the lines for single sign-on, and a server that signs in whom a cookie names."""
    port = free_port()
    lines = re.findall(r"#   (auth_request.*;)", sample)
    assert len(lines) == 2
    empty, place = 'proxy_set_header X-Remote-User "";', "location / {"
    assert (sample.count(empty), sample.count(place)) == (1, 1)
    sample = sample.replace(empty, "\n".join([*lines, "proxy_set_header X-Remote-User $user;"]))
    asked = (
        f"location = /oauth2/auth {{ internal; proxy_pass http://127.0.0.1:{port}; proxy_pass_request_body off; }}\n"
    )
    answer = 'if ($cookie_sso = "") { return 401; } add_header X-Auth-Request-User $cookie_sso; return 204;'
    return sample.replace(place, asked + place) + f"\nserver {{ listen 127.0.0.1:{port}; location / {{ {answer} }} }}"


def proxied(folder: Path, backend: str, sample: str | None = None) -> AbstractContextManager[int]:
    """Run nginx with the sample, in which only ports and paths differ."""
    changes = {
        "http://127.0.0.1:8700": backend,
        "/etc/ssl/git.example.com.pem": f"{folder}/cert.pem",
        "/etc/ssl/git.example.com.key": f"{folder}/key.pem",
    }
    return nginx(folder, sample or SAMPLE.read_text(), changes)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_signing_in_works_through_nginx_set_up_as_documented(request, tmp_path, kind):
    """With the sample and its command, a key and a sign-in link sign a browser in, and API and feed work."""
    place = tmp_path / "agentgit.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    shown = str(place) if kind == "sqlite" else place.render_as_string(hide_password=False)
    with agentgit.open(place) as repo:
        ada, bob = repo.users.add("ada"), repo.users.add("bob")
        key, link = repo.keys.create("mine", "write", user=ada).secret, repo.users.create_link(bob).secret
        with serving(tmp_path, shown, *options(SAMPLE.read_text())) as (_, backend), proxied(tmp_path, backend) as port:
            one, other = (browser(tmp_path, port, source) for source in (STRANGER, "127.0.0.3"))
            with one, other:
                entered = sign_in(one, key)
                assert (entered.status_code, entered.headers["location"]) == (303, "/")
                assert "__Host-agentgit" in one.cookies
                assert one.get("/sessions").status_code == 200
                assert one.post("/sign-in", headers={"origin": f"https://{NAME}:{port}"}).status_code == 403
                with one.stream("GET", "/api/v1/events/live") as feed:
                    lines = feed.iter_lines()
                    assert next(lines).startswith("retry:")
                    repo.as_user("ada").session("through the proxy", create=True)
                    assert next(line for line in lines if line.startswith("event: ")) == "event: session.created"
                assert sign_in(other, link).status_code == 303
                assert other.get("/api/v1/me").json()["name"] == "bob"
                me = other.get("/api/v1/me", headers={"authorization": f"Bearer {key}"}).json()
                assert me["name"] == "ada"
                assert one.get("/api/v1/me", headers={USER: "bob"}).json()["name"] == "ada"


def test_without_a_public_url_the_proxy_decides_the_port_of_an_origin(repo, tmp_path):
    """With the sample on a port other than 443, a form's origin must have the port that the proxy passes on."""
    key = repo.keys.create("mine", user="ada").secret
    with (
        served(app(repo), trusted_proxies=[PROXY]) as backend,
        proxied(tmp_path, backend) as port,
        browser(tmp_path, port, STRANGER, f"https://{NAME}:{port}") as one,
    ):
        entered = sign_in(one, key)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert "__Host-agentgit" in one.cookies
        assert one.post("/sign-in", headers={"origin": f"https://{NAME}"}).status_code == 403  # another port


FORGED = [{USER: "bob"}, {USER: "bob", "x-forwarded-for": PROXY}, {USER.upper(): "bob"}, {"x_remote_user": "bob"}]


def test_only_the_single_sign_on_of_nginx_names_the_user(repo, tmp_path):
    """Nginx drops or overwrites a client's header; past nginx the peer counts, whatever X-Forwarded-For says."""
    documented = (*options(SAMPLE.read_text()), "--user-header", "X-Remote-User")
    with serving(tmp_path, "agentgit.db", *documented) as (_, backend):
        with (
            proxied(tmp_path, backend, with_single_sign_on(SAMPLE.read_text())) as port,
            browser(tmp_path, port, STRANGER) as client,
        ):
            for forged in ({}, *FORGED):
                assert client.get("/api/v1/me", headers={**forged, "cookie": ""}).status_code == 401  # by nginx
                assert client.get("/api/v1/me", headers={**forged, "cookie": "sso=ada"}).json()["name"] == "ada"
                assert client.get("/sessions", headers={**forged, "cookie": "sso=ada"}).status_code == 200
                refused = client.get("/api/v1/me", headers={**forged, "cookie": "sso=eve"})
                assert (refused.status_code, "no user 'eve'" in refused.text) == (403, True)
        with proxied(tmp_path, backend) as port, browser(tmp_path, port, STRANGER) as client:
            for forged in FORGED:
                refused = client.get("/api/v1/me", headers=forged)
                assert (refused.status_code, "not 0 times" in refused.text) == (403, True)
        with httpx.Client(transport=httpx.HTTPTransport(local_address=STRANGER), base_url=backend) as client:
            client.headers.update({"host": NAME, "x-forwarded-proto": "https"})
            for forged in FORGED:
                for address in ({}, {"x-forwarded-for": PROXY}, {"x-forwarded-for": f"{PROXY}, {PROXY}"}):
                    assert client.get("/api/v1/me", headers=forged | address).status_code == 401
                    assert client.get("/sessions", headers=forged | address).status_code == 303
        proxy = {"host": NAME, USER: "bob", "x-forwarded-for": STRANGER}  # what the proxy itself sends is taken
        assert httpx.get(f"{backend}/api/v1/me", headers=proxy).json()["name"] == "bob"
