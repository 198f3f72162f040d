"""The hosts that webhooks may be sent to, and the secrets that they may use."""

import socket
import ssl
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import backend
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from receivers import SECRET, Receiver, due_now
from sqlalchemy import update
from typer.testing import CliRunner

import agentgit
from agentgit import InvalidInput
from agentgit.cli.app import app
from agentgit.sessions.webhooks import non_public_kind, verify
from agentgit.store.sql.tables import WEBHOOK

pytestmark = pytest.mark.usefixtures("long_webhook_pauses")

BLOCKED = {
    "a loopback address": ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
        "2a00:1450:4001:830:0:5efe:7f00:1", "2a00:1450:4001:830:200:5efe:7f00:1"],  # ISATAP
    "a private address": [
        "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fd00::1", "fc00::1", "fd00:ec2::254",
        "0.1.2.3", "198.18.0.1", "192.0.2.1", "255.255.255.255", "240.0.0.1", "2001:db8::1", "::ffff:10.0.0.1",
        "2002:a00:1::", "64:ff9b::c0a8:101", "2001:0:7f00:1::",
    ],
    "a link-local address": ["169.254.169.254", "fe80::1", "fe80::1%2", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"],
    "a multicast address": ["224.0.0.1", "239.255.255.250", "ff02::1", "::ffff:224.0.0.1"],
    "an unspecified address": ["0.0.0.0", "::", "::ffff:0.0.0.0"],  # noqa: S104  # nothing is bound
    "a shared address": ["100.64.0.1", "100.100.100.200", "::ffff:100.64.0.1"],
    "a reserved address": [
        "192.0.0.192", "168.63.129.16", "::127.0.0.1", "fec0::1", "64:ff9b:1::a00:1", "5f00::1", "4000::1", "3fff::1",
    ],
}  # fmt: skip

PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]


@pytest.mark.parametrize(("kind", "address"), [(kind, one) for kind, all_ in BLOCKED.items() for one in all_])
def test_non_public_addresses_are_recognized(kind, address):
    """Each kind of address that is not public is recognized in each notation."""
    found = non_public_kind(ip_address(address))
    assert found == kind or (kind == "a reserved address" and found is not None)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_accepted(address):
    """Public addresses and IPv6 addresses that stand for them are not refused."""
    assert non_public_kind(ip_address(address)) is None


@contextmanager
def listening(*answers, host="127.0.0.1", port=0, context=None):
    """Run a webhook receiver, optionally on another address of this machine or with TLS."""
    with Receiver((host, port)) as server:
        server.answers.extend(answers)
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Names:
    """A name server that gives each name its answers in order, and then repeats the last one."""

    def __init__(self, plain):
        self.answers, self.asked, self._plain = {}, [], plain

    def __call__(self, host, port, *args, **more):
        name = host.decode() if isinstance(host, bytes) else host
        if name not in self.answers:
            return self._plain(host, port, *args, **more)
        self.asked.append(name)
        left = self.answers[name]
        addresses = left.pop(0) if len(left) > 1 else left[0]
        return [found for one in addresses for found in self._plain(one, port, type=socket.SOCK_STREAM)]


@pytest.fixture
def names(monkeypatch):
    made = Names(socket.getaddrinfo)
    monkeypatch.setattr(socket, "getaddrinfo", made)
    return made


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens a database whose operator allows some hosts, with a webhook and an event to send."""
    handles = []

    def open_it(url, *hosts):
        repo = agentgit.open(tmp_path / "a.db", webhook_hosts=hosts)
        handles.append(repo)
        repo.webhooks.add("https://example.com/", "session.*", SECRET)
        backend.write(repo, lambda c: c.execute(update(WEBHOOK).values(url=url)))  # `add` would refuse the URL
        repo.session("s", create=True)
        return repo

    yield open_it
    for one in handles:
        one.close()


def refusal(repo):
    """Deliver an event that is refused, and return the error that the user sees."""
    assert repo.webhooks.deliver().to_dict() == {"sent": 0, "failed": 1, "dead": 0, "waiting": 1}
    return repo.webhooks.list()[0].last_error


WRITTEN = [
    "127.0.0.1", "127.1", "2130706433", "0177.0.0.1", "0x7f.1", "0x7f000001", "017700000001", "[::1]",
    "[::ffff:127.0.0.1]", "[0:0:0:0:0:ffff:7f00:1]", "0.0.0.0", "0", "[::]", "localhost",  # noqa: S104  # as above
]  # fmt: skip

ELSEWHERE = [
    "LOCALHOST.", "x.localhost", "169.254.169.254", "2852039166", "[fe80::1%25lo]", "10.1.2.3", "[fd00::1]",
    "[64:ff9b::a00:1]", "[2002:7f00:1::]", "100.64.1.1", "224.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize("host", [*WRITTEN, *ELSEWHERE])
def test_a_non_public_address_is_refused_when_it_is_added(host):
    """An address that is not public is refused when it is added, however it is written, and nothing is stored."""
    with agentgit.open(":memory:", webhook_hosts=[]) as repo:
        with pytest.raises(InvalidInput, match="AGENTGIT_WEBHOOK_ALLOW"):
            repo.webhooks.add(f"http://{host}:8080/hook", "*", SECRET)
        assert repo.webhooks.list() == []


@pytest.mark.parametrize("host", WRITTEN)
def test_a_stored_non_public_address_is_refused_at_each_delivery(opened, host):
    """A stored address that is not public is refused at each delivery, and nothing is sent to it."""
    with listening() as server:
        repo = opened(f"http://{host}:{server.server_port}/hook")
        first = refusal(repo)
        due_now(repo)
        assert refusal(repo) == first
        assert first.startswith("NotAllowed: Webhooks are not sent to a")
        assert server.got == []


@pytest.mark.parametrize(("kind", "address"), [(kind, all_[0]) for kind, all_ in BLOCKED.items()])
def test_a_name_with_a_non_public_address_is_refused(opened, names, kind, address):
    """A host name with an address that is not public is refused, and the error does not contain the address."""
    names.answers["evil.test"] = [[address]]
    said = refusal(opened("http://evil.test/hook"))
    assert said.startswith(f"NotAllowed: Webhooks are not sent to {kind}, and this host has one.")
    assert address not in said


def test_a_name_with_one_non_public_address_is_refused(opened, names):
    """A name with a public and a private address is refused, so that no fallback reaches the private one."""
    with listening() as server:
        names.answers["both.test"] = [["8.8.8.8", "127.0.0.1"]]
        assert "a loopback address" in refusal(opened(f"http://both.test:{server.server_port}/"))
        assert server.got == []


def test_delivery_connects_to_the_address_that_was_checked(opened, names):
    """A name server that changes its answer moves no checked connection, and the next delivery checks again."""
    with listening(host="127.0.0.2") as good, listening(port=good.server_port) as inside:
        names.answers["rebind.test"] = [["127.0.0.2"], ["127.0.0.1"]]
        repo = opened(f"http://rebind.test:{good.server_port}/hook", "127.0.0.2")
        assert repo.webhooks.deliver().sent == 1
        assert (len(good.got), names.asked) == (1, ["rebind.test"])
        assert good.got[0][0]["host"] == f"rebind.test:{good.server_port}"
        repo.session("t", create=True)
        assert "a loopback address" in refusal(repo)
        assert (len(good.got), inside.got) == (1, [])


def test_delivery_tries_the_next_address_after_a_dead_one(opened, names):
    """Of several allowed addresses the first that answers is used."""
    with listening() as server:
        names.answers["two.test"] = [["127.0.0.3", "127.0.0.1"]]
        assert opened(f"http://two.test:{server.server_port}/", "127.0.0.0/8").webhooks.deliver().sent == 1


def test_proxies_and_netrc_of_the_environment_are_not_used(opened, monkeypatch, tmp_path):
    """Delivery uses no proxy from the environment and sends no password from netrc."""
    with listening() as server, listening() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_port}")
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login root password hush\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        assert opened(f"http://127.0.0.1:{server.server_port}/", "127.0.0.1").webhooks.deliver().sent == 1
        assert (len(server.got), proxy.got) == (1, [])
        assert "authorization" not in {name.lower() for name in server.got[0][0]}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(opened, status):
    """An allowed receiver cannot redirect the worker to another one."""
    with listening(status, host="127.0.0.2") as outside, listening() as inside:
        outside.headers["location"] = f"http://127.0.0.1:{inside.server_port}/latest/meta-data"
        said = refusal(opened(f"http://127.0.0.2:{outside.server_port}/", "127.0.0.0/8"))
        assert (said, len(outside.got), inside.got) == (f"the receiver answered {status}", 1, [])


def test_the_operator_allows_names_addresses_and_networks(names, tmp_path, monkeypatch):
    """Private hosts that `open` or the environment allows are delivered to, and a user can add no other."""
    with listening() as server:
        names.answers["hooks.internal"] = [["127.0.0.1"]]
        for host, allowed in (
            ("hooks.internal", "Hooks.Internal."), ("127.0.0.1", "127.0.0.1"), ("hooks.internal", "127.0.0.0/8"),
            ("[::ffff:127.0.0.1]", "127.0.0.1"),
        ):  # fmt: skip
            for given, variable in (([allowed], "10.0.0.1"), (None, f" 10.0.0.0/8 , {allowed} ")):
                monkeypatch.setenv("AGENTGIT_WEBHOOK_ALLOW", variable)
                server.got.clear()
                with agentgit.open(":memory:", webhook_hosts=given) as repo:
                    ada = repo.as_user(repo.users.add("ada"))
                    ada.webhooks.add(f"http://{host}:{server.server_port}/", "session.*", SECRET)
                    ada.session("s", create=True)
                    assert (repo.webhooks.deliver().sent, len(server.got)) == (1, 1)
                    with pytest.raises(InvalidInput):
                        ada.webhooks.add("http://192.168.1.1/", "*", SECRET)


@pytest.mark.parametrize("hosts", [["http://x/"], ["10.0.0.1/8"], ["*"], ["a b"], [""], ["x:80"], "10.0.0.0/8", [7]])
def test_an_invalid_allow_list_is_refused(tmp_path, hosts):
    """A host that allows nothing, or more than it seems to, is refused before the database is opened."""
    with pytest.raises(InvalidInput):
        agentgit.open(tmp_path / "a.db", webhook_hosts=hosts)
    assert not (tmp_path / "a.db").exists()


def certificate(folder, name):
    """Create a self-signed certificate for a name, and return a TLS context that uses it."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key()).serial_number(7)
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False).sign(key, hashes.SHA256())
    )  # fmt: skip
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@pytest.mark.parametrize("name", ["hooks.test", "other.test"])
def test_tls_verifies_the_host_name_of_the_url(opened, names, tmp_path, monkeypatch, name):
    """SNI and certificate are those of the URL's host name, although the connection is to an address."""
    context, asked = certificate(tmp_path, name), []
    context.sni_callback = lambda _socket, sni, _context: asked.append(sni)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    names.answers["hooks.test"] = [["127.0.0.1"]]
    with listening(context=context) as server:
        repo = opened(f"https://hooks.test:{server.server_port}/hook", "127.0.0.1")
        if name == "hooks.test":
            assert repo.webhooks.deliver().sent == 1
            verify(SECRET, *server.got[0])
        else:
            assert "certificate" in refusal(repo)
            assert server.got == []
    assert asked == ["hooks.test"]


def test_the_answer_of_a_non_http_service_is_not_shown(opened):
    """The greeting of a service that is not an HTTP server is not shown to the user."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-hush_9.6\r\n")
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # closing it with unread data would reset it
                    pass

        thread = threading.Thread(target=greet)
        thread.start()
        said = refusal(opened(f"http://127.0.0.1:{server.getsockname()[1]}/", "127.0.0.1"))
        thread.join()
    assert said == "RemoteProtocolError: the receiver did not answer in HTTP"


def test_variables_of_the_server_cannot_be_webhook_secrets(opened, monkeypatch):
    """The secret `env:NAME` is refused, and a webhook stored with it is given up with the reason."""
    monkeypatch.setenv("HUSH", SECRET)
    with listening() as server:
        repo = opened(f"http://127.0.0.1:{server.server_port}/", "127.0.0.1")
        for secret in ("env:HUSH", "env:" + "x" * 40):
            with pytest.raises(InvalidInput, match="env:NAME"):
                repo.webhooks.add("https://example.com/", "*", secret)
            backend.write(repo, lambda c, s=secret: c.execute(update(WEBHOOK).values(secret=s)))
            assert repo.webhooks.deliver().to_dict() == {"sent": 0, "failed": 0, "dead": 1, "waiting": 0}
            assert "env:NAME is not accepted" in repo.webhooks.list()[0].last_error
            repo.webhooks.retry(repo.webhooks.list()[0])
        assert server.got == []


def test_secret_env_reads_the_variable_when_a_webhook_is_added(tmp_path):
    """`--secret-env` reads a variable of the user who adds the webhook, at that moment."""
    said, environment = "", {"AGENTGIT_WEBHOOK_ALLOW": "127.0.0.1", "AGENTGIT_DATABASE_URL": str(tmp_path / "a.db")}

    def run(*words, **more):
        nonlocal said
        done = CliRunner().invoke(app, ["webhooks", *words], env={**environment, **more})
        said += done.output + str(done.exception or "")
        return done.exception

    with agentgit.open(tmp_path / "a.db"), listening() as server:
        assert run("add", f"http://127.0.0.1:{server.server_port}/", "--secret-env", "MINE", MINE=SECRET) is None
        assert isinstance(run("add", "https://example.com/", "--secret-env", "MINE"), InvalidInput)
        with agentgit.open(tmp_path / "a.db") as repo:
            repo.session("s", create=True)
        assert run("deliver") is None
        verify(SECRET, *server.got[-1])
    assert SECRET not in said
