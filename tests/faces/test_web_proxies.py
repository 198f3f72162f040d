"""Servers behind proxies: the trusted headers, the public URL, and the counting of wrong passwords."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import jwt
import pytest
from fastapi.testclient import TestClient
from real_proxies import NAME, browser, certify, nginx, started
from web_servers import PASSWORD, free_port, served, served_by_command  # a fixture

import agentgit
from agentgit import InvalidInput, Repository
from agentgit.auth import JWT
from agentgit.web import OwnerLink, app

SAMPLES = Path(__file__).parents[2] / "docs" / "samples"
PROXY = "10.0.0.7"
WRONG = "wrong horse"


@pytest.fixture
def repo(tmp_path: Path, long_login_pauses):
    """Open a repository with two accounts, and make login pauses longer than the tests."""
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        repo.users.add("ada", PASSWORD)
        repo.users.add("bob", PASSWORD)
        yield repo


def asks(repo: agentgit.Repository, peer: str = PROXY, base: str = "http://backend:8700", **options) -> TestClient:
    """Create a browser or a proxy that connects from an address."""
    options = {"trusted_proxies": ["10.0.0.0/24"]} | options
    return TestClient(app(repo, **options), base_url=base, client=(peer, 50_000), follow_redirects=False)


def said(address: str = "192.0.2.1", host: str = "git.example", scheme: str = "https") -> dict[str, str]:
    """Return the headers that a proxy sets for a request with a forged X-Forwarded-For."""
    return {
        "x-forwarded-for": f"6.6.6.6, {address}", "x-forwarded-host": host, "x-forwarded-proto": scheme,
        "origin": f"{scheme}://{host}",
    }  # fmt: skip


def guess(client: httpx.Client, headers: dict[str, str], name: str = "ada", password: str = WRONG) -> int:
    """Log in through the API, and return the status."""
    answer = client.post("/api/v1/login", json={"name": name, "password": password}, headers=headers)
    return answer.status_code


def log_in(client: httpx.Client, headers: dict[str, str] | None = None, password: str = PASSWORD) -> httpx.Response:
    """Log in as ada with the form of the login page."""
    page = client.get("/login", headers=headers)
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text)
    form = {"name": "ada", "password": password, "csrf": found[1]}
    return client.post("/login", data=form, headers=headers)


@pytest.mark.long
def test_guesses_with_rotating_forwarded_headers_are_throttled(repo):
    """101 guesses, each with another X-Forwarded-For, count for the one address that the proxy saw."""
    client = asks(repo)
    found = [
        guess(client, said() | {"x-forwarded-for": f"203.0.113.{n}, 10.0.0.{n}, 192.0.2.1, 10.0.0.9"})
        for n in range(101)
    ]
    assert found == [401] * 11 + [429] * 90
    assert guess(client, said("192.0.2.2"), password=PASSWORD) == 201


def test_forwarded_headers_of_an_untrusted_peer_are_ignored(repo):
    """An untrusted peer is counted by its real address and cannot set the scheme or the host."""
    client = asks(repo, "192.0.2.1", "http://localhost:8700", hosts=["localhost"])
    found = [guess(client, said(f"198.51.100.{n}", "localhost")) for n in range(12)]
    assert found == [401] * 11 + [429]
    cookie = client.get("/login", headers=said(host="localhost")).headers["set-cookie"]
    assert "Secure" not in cookie
    assert client.get("/login", headers=said() | {"host": "evil.example"}).status_code == 400
    far = asks(repo, "192.0.2.1", "http://git.example")
    assert far.get("/login", headers=said()).status_code == 403  # plain http
    assert asks(repo, PROXY, "http://git.example").get("/login", headers=said()).status_code == 200


@pytest.mark.parametrize("addresses", [("2001:db8::", "2001:db8:0:1::"), ("::ffff:192.0.2.", "192.0.3.")])
def test_ipv6_callers_are_counted_by_their_network(repo, addresses):
    """Addresses of one /64 count as one caller, and an IPv4-mapped address as its IPv4 address."""
    near, far = addresses
    client = asks(repo)
    if near.startswith("::ffff"):
        ways = ("192.0.2.1", "::ffff:192.0.2.1", "[::ffff:192.0.2.1]:80")
        found = [guess(client, said(ways[n % 3])) for n in range(12)]
    else:
        found = [guess(client, said(f"{near}{n:x}:{n:x}")) for n in range(1, 13)]
    assert found == [401] * 11 + [429]
    assert guess(client, said(f"{far}1"), password=PASSWORD) == 201


@pytest.mark.long
def test_guesses_by_others_do_not_lock_out_a_known_browser(repo):
    """Wrong passwords from many addresses throttle a name, except in a browser that has logged in before."""
    client = asks(repo)
    mine, new = (asks(repo, base="https://git.example") for _ in range(2))
    assert log_in(mine, said("192.0.2.1")).status_code == 303
    device = next(one for one in mine.cookies.jar if "-device-" in one.name)
    assert (device.name.startswith("__Host-agentgit-device-"), device.secure, device.path) == (True, True, "/")
    assert "HttpOnly" in device._rest
    guesses = [guess(client, said(f"198.51.{n}.1")) for n in range(110)] + [guess(client, said()) for _ in range(5)]
    assert guesses[:101] == [401] * 101
    assert set(guesses[101:]) == {429}
    del mine.cookies["__Host-agentgit"]
    assert log_in(mine, said("192.0.2.1")).status_code == 303
    assert log_in(new, said("192.0.2.7")).status_code == 429  # an unknown browser has to wait
    assert guess(client, said("192.0.2.7"), "bob", PASSWORD) == 201
    mine.cookies.delete("__Host-agentgit")
    found = [log_in(mine, said("192.0.2.1"), "wrong horse").status_code for _ in range(12)]
    assert found == [401] * 11 + [429]  # a known browser has a limit, too


def test_a_device_cookie_is_valid_for_one_user_and_one_password(repo):
    """A device cookie works for no other user, ends when the password is set, and cannot be forged."""
    ada, cookie = repo.login("ada", PASSWORD), repo.login("ada", PASSWORD).keys.device()
    device, ends, signature = cookie.split(".")
    made_up = [f"{device}.{int(ends) + 1}.{signature}", f"x.{ends}.{signature}", "", "..", "x", "\ud800.1.\xe9" * 99]
    for n in range(101):
        with pytest.raises(agentgit.NotAllowed):
            repo.login("ada", "wrong horse", source=f"198.51.100.{n}", device=[*made_up, None][n % 7])
    for other in (None, *made_up, repo.login("bob", PASSWORD).keys.device()):
        with pytest.raises(agentgit.TooManyAttempts):
            repo.login("ada", PASSWORD, source="192.0.2.1", device=other)
    assert repo.login("ada", PASSWORD, source="192.0.2.1", device=cookie).user == ada.user
    repo.users.set_password("ada", PASSWORD)  # the same one, set again
    with pytest.raises(agentgit.TooManyAttempts):
        repo.login("ada", PASSWORD, source="192.0.2.1", device=cookie)
    with pytest.raises(InvalidInput):
        repo.keys.device()  # the local owner has no password


@pytest.mark.long
def test_only_a_password_login_creates_a_device(repo):
    """A key or a token creates no device, since each device has ten free guesses; a password login does."""
    key = repo.keys.create("leaked", "admin", user="ada")
    repo = Repository(
        repo.context, jwt=JWT(algorithms=["HS256"], key="0123456789abcdef" * 4, audience="agentgit"), is_borrowed=True
    )
    said = {"sub": "ada", "aud": "agentgit", "iat": int(time.time()) + 1, "exp": int(time.time()) + 60}
    time.sleep(1.5)  # a token of the second in which its user was created is invalid
    token = jwt.encode(said, "0123456789abcdef" * 4, algorithm="HS256")
    for handle in (repo.authenticate(key.secret), repo.authenticate(token)):
        with pytest.raises(agentgit.NotAllowed, match="first log in with a password"):
            handle.keys.device()
    assert repo.login("ada", PASSWORD).keys.device()


@pytest.mark.parametrize("wrong", ["10.0.0.1/8", "proxy.example", "0.0.0.0/0", "::/0", "", "*"])
def test_a_trusted_proxy_must_be_an_address_or_a_network(repo, wrong):
    """Bad input: a name, a network with host bits and the network of all addresses are refused at start."""
    with pytest.raises(InvalidInput):
        app(repo, trusted_proxies=[wrong])


@pytest.mark.parametrize(
    "wrong", ["git.example", "ftp://git.example", "https://", "https://u:p@git.example", "https://git.example/?a=1",
              "https://git.example/#a", "https://git.example:99999", "https://git.example//evil.example",
              "https://git.example/\r\n"],
)  # fmt: skip
def test_an_invalid_public_url_is_refused(repo, wrong):
    """Bad input: a public URL that is not the address of a site is refused at start."""
    with pytest.raises(InvalidInput):
        app(repo, public_url=wrong)


@pytest.mark.parametrize("keeps_path", [True, False])
def test_links_cookies_forms_and_hosts_follow_the_public_url(repo, keeps_path):
    """Links, cookies, forms and hosts follow the public URL, whether or not the proxy passes its path on."""
    public = "https://git.example:8443/below/it"
    client = asks(repo, PROXY, "http://127.0.0.1:8700", public_url=public, hosts=[])
    path = "/below/it" if keeps_path else ""
    headers = {"x-forwarded-for": "192.0.2.1", "x-forwarded-proto": "https", "origin": "https://git.example:8443"}
    door = client.get(f"{path}/sessions", headers=headers)
    assert door.headers["location"] == "/below/it/login?next=/below/it/sessions"
    page = client.get(f"{path}/login", headers=headers)
    addresses = re.findall(r'(?:href|src|action)="([^"#]+)', page.text)
    assert addresses
    assert [one for one in addresses if not one.startswith("/below/it/")] == []
    form = {"name": "ada", "password": PASSWORD, "csrf": re.search(r'name="csrf" value="(\w{64})"', page.text)[1]}
    jar = {"cookie": page.headers["set-cookie"].partition(";")[0]}
    for origin in ("https://git.example", "http://git.example:8443", "http://127.0.0.1:8700", "null"):
        assert client.post(f"{path}/login", data=form, headers=headers | jar | {"origin": origin}).status_code == 403
    entered = client.post(f"{path}/login", data=form, headers=headers | jar)
    assert (entered.status_code, entered.headers["location"]) == (303, "/below/it/")
    assert "__Host-agentgit=" in entered.headers["set-cookie"]
    assert client.get(f"{path}/static/agentgit.css", headers=headers).status_code == 200
    assert client.get(f"{path}/api/v1/openapi.json", headers=headers).json()["servers"] == [{"url": "/below/it/api/v1"}]
    assert client.get(f"{path}/login", headers=headers | {"x-forwarded-host": "evil.example"}).status_code == 400
    direct = asks(repo, "192.0.2.1", "http://git.example:8443", public_url=public)
    assert direct.get("/login", headers=headers).status_code == 403  # not from the proxy, so not over https
    del headers["x-forwarded-proto"]
    assert client.get(f"{path}/login", headers=headers).status_code == 403  # no header says https


def test_the_log_says_why_a_form_was_refused(repo, caplog):
    """One log line names both origins and the option to set, and never the CSRF token of the form."""
    client = asks(repo, "192.0.2.1", "http://localhost:8700")
    page = client.get("/login")
    mark = re.search(r'name="csrf" value="(\w{64})"', page.text)[1]
    form = {"name": "ada", "password": PASSWORD, "csrf": mark}
    with caplog.at_level(logging.WARNING, "agentgit.web"):
        for origin in ("https://git.example:8443", "https://x\x1b[2J" + "y" * 5_000):
            assert client.post("/login", data=form, headers={"origin": origin}).status_code == 403
        no_mark, ours = form | {"csrf": "0" * 64}, {"origin": "http://localhost:8700"}
        assert client.post("/login", data=no_mark, headers=ours).status_code == 403
    first, second, third = (one.getMessage() for one in caplog.records if one.name == "agentgit.web")
    assert "'https://git.example:8443'" in first
    assert "'http://localhost:8700'" in first
    assert "--trusted-proxy" in first
    assert "\x1b" not in second
    assert len(second) < 1_000
    assert "wrong or missing" in third
    assert mark not in caplog.text


# -- real proxies

FILES = {"nginx": SAMPLES / "nginx.conf", "caddy": SAMPLES / "Caddyfile"}


def options(text: str) -> list[str]:
    """Return the options of `agentgit serve` in a text."""
    [found] = re.findall(r"agentgit\b.* serve ((?:\\\n|[^`\n])*)", text)
    return found.replace("\\\n", " ").split()


def test_the_docs_and_the_proxy_samples_use_the_same_options():
    """The command in docs/web.md and those in the nginx and Caddy samples have the same options."""
    page = (SAMPLES.parent / "web.md").read_text()
    team = page.partition("## For a team")[2].partition("\n## ")[0]
    assert options(FILES["nginx"].read_text()) == options(FILES["caddy"].read_text()) == options(team)


@contextmanager
def serving_as_documented(program: str, folder: Path, *before: str) -> Iterator[str]:
    """Run `agentgit serve` with the options in a sample, on any free port, and yield its URL."""
    command = [sys.executable, "-m", "agentgit", *before, *options(FILES[program].read_text()), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as server:  # noqa: S603  # our own
        try:
            lines = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in server.stderr)
            yield next(found[0] for found in lines if found)
        finally:
            server.kill()


@contextmanager
def running(program: str, folder: Path, backend: str) -> Iterator[int]:
    """Run a proxy with its sample from the docs, in which only ports and paths differ, and yield its port."""
    if (found := shutil.which(program)) is None:
        pytest.skip(f"{program} is not installed: apt-get install {program}")
    port = free_port()
    certificate, key = certify(folder)
    sample, config = FILES[program].read_text(), folder / f"{program}.conf"
    if program == "nginx":
        others = {
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl", "http://127.0.0.1:8700": backend,
            "/etc/ssl/git.example.com.pem": str(certificate), "/etc/ssl/git.example.com.key": str(key),
        }  # fmt: skip
    else:
        others = {
            "\n" + NAME + " {": f"\n{NAME}:{port} {{\n\ttls {certificate} {key}",
            "127.0.0.1:8700\n}": f"{backend.removeprefix('http://')}\n}}",
        }  # fmt: skip
    for old, new in others.items():
        assert sample.count(old) == 1
        sample = sample.replace(old, new)
    if program == "nginx":
        command = nginx(found, folder, sample)
    else:
        config.write_text("{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + sample)
        command = [found, "run", "--adapter", "caddyfile", "--config", str(config)]
    with started(command, folder, port):
        yield port


@pytest.mark.long
@pytest.mark.parametrize("program", FILES)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_logins_work_through_a_proxy_set_up_as_documented(request, tmp_path, kind, program):
    """With a sample and its command, form, API and feed work, and callers are counted by their real address."""
    is_file = kind == "sqlite"
    place = tmp_path / "agentgit.db" if is_file else request.getfixturevalue("postgres_url")
    shown = str(place) if is_file else place.render_as_string(hide_password=False)
    with agentgit.open(place) as repo:
        for name in ("ada", "bob"):
            repo.users.add(name, PASSWORD)
        more = ["--accounts"] if is_file else []
        server = serving_as_documented(program, tmp_path, "--db", shown, "serve", *more)
        with server as backend, running(program, tmp_path, backend) as port:
            one, other = (browser(tmp_path, port, source) for source in ("127.0.0.2", "127.0.0.3"))
            with one, other:
                entered = log_in(one)
                assert (entered.status_code, entered.headers["location"]) == (303, "/")
                assert "__Host-agentgit" in one.cookies
                assert one.get("/sessions").status_code == 200
                assert one.post("/login", headers={"origin": f"https://{NAME}:{port}"}).status_code == 403
                with one.stream("GET", "/api/v1/events/live") as feed:
                    lines = feed.iter_lines()
                    assert next(lines).startswith("retry:")
                    repo.as_user("ada").session("through the proxy", create=True)
                    assert next(line for line in lines if line.startswith("event: ")) == "event: session.created"
                key = other.post("/api/v1/login", json={"name": "bob", "password": PASSWORD}).json()["key"]
                me = other.get("/api/v1/me", headers={"authorization": f"Bearer {key}"}).json()
                assert me["name"] == "bob"
                spoofed = [guess(other, {"x-forwarded-for": f"198.51.100.{n}"}, "bob") for n in range(14)]
                assert (spoofed[:11], set(spoofed)) == ([401] * 11, {401, 429})  # the first pause is of 2 seconds
                assert guess(one, {}, "bob", PASSWORD) == 201  # another real address is not throttled


@pytest.mark.parametrize("program", FILES)
def test_without_a_public_url_the_proxy_decides_the_port_of_an_origin(repo, tmp_path, program):
    """With the sample on a port other than 443, a form's origin must have the port that the proxy passes on."""
    with served(app(repo, trusted_proxies=["127.0.0.1"])) as backend, running(program, tmp_path, backend) as port:
        one = browser(tmp_path, port, "127.0.0.2", f"https://{NAME}:{port}")
        entered = log_in(one)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert "__Host-agentgit" in one.cookies
        assert one.post("/login", headers={"origin": f"https://{NAME}"}).status_code == 403  # another port
        one.close()


@pytest.mark.parametrize(
    ("given", "answers"),
    [
        ({}, True),
        ({"trusted_proxies": ["127.0.0.1"]}, False),
        ({"trusted_proxies": ["127.0.0.1"], "host": "localhost"}, False),
        ({"trusted_proxies": ["127.0.0.1"], "hosts": ["localhost"]}, False),
        ({"trusted_proxies": iter(["127.0.0.1"]), "hosts": iter([NAME])}, True),
        ({"trusted_proxies": ["127.0.0.1"], "public_url": f"https://{NAME}"}, True),
        ({"trusted_proxies": ["127.0.0.1"], "host": "0.0.0.0"}, True),  # noqa: S104  # it is not run
    ],
)
def test_a_server_behind_a_proxy_without_a_name_warns_at_start(repo, given, answers):
    """A server with a trusted proxy but no public name prints one line that names the option to add."""
    made, said = served_by_command(repo, accounts=True, **given)
    told = [line for line in said if "Only localhost names are allowed" in line and "--public-url https://" in line]
    assert len(told) == (not answers)
    if "trusted_proxies" in given:
        client = TestClient(made, base_url="http://127.0.0.1:8700", client=("127.0.0.1", 50_000))
        page = client.get("/login", headers={"x-forwarded-host": NAME, "x-forwarded-proto": "https"})
        assert page.status_code == (200 if answers else 400)
        assert answers or "--public-url https://NAME" in page.text


@pytest.mark.long
def test_the_login_link_uses_the_public_url(tmp_path):
    """Serve prints a login link with the public URL."""
    agentgit.open(tmp_path / "agentgit.db").close()
    command = [
        sys.executable, "-m", "agentgit", "serve", "--port", "0", "--db", str(tmp_path / "agentgit.db"),
        "--public-url", "https://git.example:8443/below", "--trusted-proxy", "127.0.0.1",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as server:  # noqa: S603  # our own
        try:
            port = re.search(r"http://127\.0\.0\.1:(\d+)", server.stderr.readline())[1]
            token = re.search(r"https://git\.example:8443/below/enter\?token=(\S+)", server.stderr.readline())[1]
            entered = httpx.get(f"http://127.0.0.1:{port}/enter?token={token}", headers={"x-forwarded-proto": "https"})
            assert (entered.status_code, entered.headers["location"]) == (303, "/below/")
            assert "__Host-agentgit=" in entered.headers["set-cookie"]
            passed = {"x-forwarded-proto": "https", "host": "upstream"}  # a proxy that does not pass the host on
            assert httpx.get(f"http://127.0.0.1:{port}/login", headers=passed).status_code == 200
        finally:
            server.kill()


def test_the_login_link_works_in_a_mounted_application(repo):
    """The login link of a mounted application redirects to the path of its public URL."""
    from fastapi import FastAPI

    link, host = OwnerLink(repo), FastAPI()
    host.mount("/git", app(repo, link=link, trusted_proxies=[PROXY], public_url="https://git.example/git"))
    client = TestClient(host, base_url="http://backend", client=(PROXY, 1), follow_redirects=False)
    client.headers["x-forwarded-proto"] = "https"
    assert client.get(f"/git/enter?token={link.token}").headers["location"] == "/git/"
