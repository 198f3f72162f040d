"""Generated requests to the whole API, valid and invalid by its description, and generated headers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from web_servers import hostile, story  # a fixture

import agentgit
from agentgit.web import app

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

BASE = "http://localhost/api/v1"

CONFIGURED = {
    "for any name": {},
    "for some names": {"hosts": ["localhost", "git.example"]},
    "with a public URL": {"public_url": "https://git.example"},
    "with a public URL on a port, below a path": {"public_url": "https://git.example:8443/below/it"},
    "with a public URL that is not closed": {"public_url": "http://git.example", "insecure": True},
    "for a name and an address": {"hosts": ["git.example", "[::1]"]},
}
"""The configurations of the application that change how it treats request headers."""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory):
    """Build applications on a repository with a friendly and a hostile session, and create an admin's key."""
    folder = tmp_path_factory.mktemp("fuzz")
    with agentgit.open(folder / "agentgit.db") as operator:
        ada = operator.as_user(operator.users.add("ada", is_admin=True))
        key = ada.keys.create("fuzz", scopes=("admin",), expires_in=None).secret
    with story(folder, "ada") as repo:
        hostile(repo, folder)
        apps = {name: app(repo, **options) for name, options in CONFIGURED.items()}
        session = repo.session("support-42")
        ids = {  # that exist, so that requests get past a 404
            "session_id": session.id,
            "checkpoint_id": session.get_checkpoint("HEAD").id,
            "operation_id": session.operations()[0].id,
            "invocation_id": session.tool_track()[0].id,
        }
        yield SimpleNamespace(app=app(repo), apps=apps, key=key, ids=ids)


def described() -> dict[str, Any]:
    """Return the served description of the API without its servers, because the requests contain the address."""
    with agentgit.open(":memory:") as empty:
        answer = TestClient(app(empty), base_url="http://localhost").get("/api/v1/openapi.json")
    return {name: part for name, part in answer.json().items() if name != "servers"}


SCHEMA = schemathesis.openapi.from_dict(described())
OPERATIONS = [
    one for one in (found.ok() for found in SCHEMA.get_all_operations()) if not one.path.endswith("/events/live")
]
"""All described operations except the live feed, which never ends."""


ASKED = [
    pytest.param(one, mode, id=f"{one.label}, {mode.value}")
    for one in OPERATIONS
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    if mode is GenerationMode.POSITIVE or one.query or one.body  # without parameters no request is invalid
]


@pytest.mark.parametrize("examples", [4, pytest.param(60, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("operation", "mode"), ASKED)
def test_every_answer_conforms_to_the_openapi_description(asked, operation, mode, examples):
    """No generated request makes the server fail, and each answer has a described status, type and schema."""
    ids = {name: id for name, id in asked.ids.items() if "{" + name + "}" in operation.path}
    if operation.label == "DELETE /sessions/{session_id}":
        ids = {}  # the other operations need the session

    @given(case=operation.as_strategy(mode, path_parameters=ids or None))
    @settings(max_examples=examples, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(BASE, app=asked.app, headers={"authorization": f"Bearer {asked.key}"}, checks=CHECKS)

    ask()


HEADERS = [
    "accept", "accept-encoding", "authorization", "content-length", "content-type", "cookie", "forwarded", "host",
    "if-none-match", "last-event-id", "origin", "range", "referer", "sec-fetch-site", "transfer-encoding", "upgrade",
    "x-http-method-override", "x-real-ip", "x-request-id",
]  # fmt: skip
"""The headers that a server or a framework may act on."""

VALUES = st.one_of(
    st.sampled_from([
        "", "*", "null", "-1", "0", "9" * 30, "a" * 8000, "javascript",
        "git.example", "git.example:8443", "git.example:99999", "localhost", "evil.example", "a@b/c?d#e",
        "https://git.example", "//evil.example", "https://[", "http", "HTTPS", "http, https",
        "127.0.0.1", "[::1]", "[::1", "[::1]:99999", "192.0.2.1:80", "1.2.3.4, 127.0.0.1", "unknown, 10.0.0.1",
        "10.0.0.1,,", "::ffff:10.0.0.1", "fe80::1%25lo", "2001:db8::1", ",".join(["10.0.0.1"] * 900),
        "Bearer", "Bearer ", "Basic eDp5", "__Host-agentgit=x", "for=1.2.3.4;host=evil.example;proto=https",
        "chunked", "websocket", "PUT", "bytes=0-", "text/html;q=x", "application/json; charset=utf-7",
    ]),
    st.binary(max_size=40).map(lambda raw: raw.translate(None, b"\r\n\0").decode("latin-1").strip()),
)  # fmt: skip

OPEN = [
    "/sign-in", "/sign-in?token=x", "/below/it/sign-in", "/healthz", "/readyz", "/static/agentgit.css",
    "/api/v1/openapi.json",
]  # fmt: skip
PATHS = [
    *OPEN, "/", "/sessions", "/static/app.css", "/api/v1/me", "/api/v1/sessions", "/join?token=%00",
    "/below/it/sessions", "//evil.example/x", "/%2e%2e/",
]  # fmt: skip

FORWARDED = ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"]
"""The headers of a trusted proxy; about half of all generated headers are of these."""

PEERS = ["10.0.0.1", "2001:db8::7", "::ffff:10.0.0.1", "192.0.2.1", "::1", "testclient", ""]
"""The peer addresses: three proxies, trusted if the application trusts any, then strangers and non-addresses."""

TRUSTED = PEERS[:3]


def knock(made, peer, method, path, headers):
    client = TestClient(made, base_url="https://git.example", client=(peer, 50_000), follow_redirects=False)
    return client.request(method, path, headers=[(name, value.encode("latin-1")) for name, value in headers])


@pytest.mark.long
@pytest.mark.parametrize("way", CONFIGURED)
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    peer=st.sampled_from(PEERS),
    method=st.sampled_from(["GET", "POST", "HEAD", "OPTIONS", "DELETE", "PATCH", "TRACE"]),
    path=st.sampled_from(PATHS),
    headers=st.lists(st.tuples(st.sampled_from(FORWARDED) | st.sampled_from(HEADERS), VALUES), max_size=6),
)
def test_no_header_causes_a_server_error_or_grants_access(asked, way, peer, method, path, headers):
    """Nor does one redirect to another site; the forwarded headers of an untrusted peer change nothing."""
    answer = knock(asked.apps[way], peer, method, path, headers)
    assert answer.status_code < 500
    assert "chair" not in answer.text
    location = answer.headers.get("location", "/")
    assert location.startswith(("/", "https://git.example/"))
    assert not location.startswith("//")
    assert answer.status_code != 200 or path in OPEN or method in ("OPTIONS", "HEAD")
    if peer not in TRUSTED and answer.status_code != 431:  # a 431 depends on the size of all headers
        plain = knock(asked.apps[way], peer, method, path, [one for one in headers if one[0] not in FORWARDED])
        assert (plain.status_code, plain.headers.get("location", "/")) == (answer.status_code, location)
