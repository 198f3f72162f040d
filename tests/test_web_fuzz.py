"""Schemathesis asks the whole API what its own description allows, and what it does not."""

from __future__ import annotations

from types import SimpleNamespace

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
from sites import hostile, quick_passwords, story  # noqa: F401  # a fixture

import agentgit
from agentgit.web import api, app

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip

BASE = "http://localhost/api/v1"

EXAMPLES = 4
"""So many requests to each operation."""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory):
    """The API on a repository with a friendly and a hostile session, and the key of an admin's program."""
    folder = tmp_path_factory.mktemp("fuzz")
    with agentgit.open(folder / "agentgit.db") as operator:
        ada = operator.as_user(operator.users.add("ada", is_admin=True))
        key = ada.keys.create("fuzz", scopes=("admin",), expires_in=None).secret
    with story(folder, "ada") as repo:
        hostile(repo, folder)
        yield SimpleNamespace(app=app(repo), key=key, ids=_ids(repo))


def _ids(repo: agentgit.Repository) -> dict[str, int]:
    """Give ids that exist, so that requests come further than to a 404."""
    return {
        "session_id": repo.session("support-42").id, "checkpoint_id": repo.checkpoint("HEAD", "support-42").id or 0,
        "operation_id": repo.operations("support-42")[0].id, "invocation_id": repo.tool_track("support-42")[0].id,
    }  # fmt: skip


SCHEMA = schemathesis.openapi.from_dict(api.make().openapi())
OPERATIONS = [
    one for one in (found.ok() for found in SCHEMA.get_all_operations()) if not one.path.endswith("/events/live")
]
"""What is described, without the live feed, which never ends."""


ASKED = [
    pytest.param(one, mode, id=f"{one.label}, {mode.value}")
    for one in OPERATIONS
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    if mode is GenerationMode.POSITIVE or one.query or one.body  # what has no parameters cannot be asked wrongly
]


@pytest.mark.parametrize(("operation", "mode"), ASKED)
def test_d5_whatever_is_asked_the_answer_is_as_described(asked, operation, mode):
    """D5: no request makes the server fail, and each answer has a status, a type and a form that is described."""
    expect_described(asked, operation, mode, EXAMPLES)


@pytest.mark.soak
@pytest.mark.parametrize(("operation", "mode"), ASKED)
def test_q5_whatever_is_asked_for_long_the_answer_is_as_described(asked, operation, mode):
    """Q5: the same with many more requests to each operation."""
    expect_described(asked, operation, mode, 15 * EXAMPLES)


def expect_described(asked, operation, mode, examples):
    """Send so many requests to an operation, and check each answer."""
    ids = {name: id for name, id in asked.ids.items() if "{" + name + "}" in operation.path}
    if operation.label == "DELETE /sessions/{session_id}":
        ids = {}  # the others need it

    @given(case=operation.as_strategy(mode, path_parameters=ids or None))
    @settings(
        max_examples=examples, deadline=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(
            BASE, app=asked.app, headers={"authorization": f"Bearer {asked.key}"}, checks=CHECKS
        )  # fmt: skip

    ask()


HEADERS = [
    "accept", "accept-encoding", "authorization", "content-length", "content-type", "cookie", "forwarded", "host",
    "if-none-match", "last-event-id", "origin", "range", "referer", "sec-fetch-site", "transfer-encoding", "upgrade",
    "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-http-method-override", "x-real-ip", "x-request-id",
]  # fmt: skip
"""The headers that a server, a proxy or a framework may act on."""

VALUES = st.one_of(
    st.sampled_from([
        "", "*", "null", "-1", "0", "9" * 30, "git.example", "localhost", "127.0.0.1", "[::1]", "https://git.example",
        "chunked", "Bearer", "Bearer ", "Basic eDp5", "websocket", "PUT", "bytes=0-", "text/html;q=x", "a" * 8000,
        "__Host-agentgit=x", "for=1.2.3.4;host=evil.example;proto=https", "1.2.3.4, 127.0.0.1",
        "application/json; charset=utf-7",
    ]),
    st.binary(max_size=40).map(lambda raw: raw.translate(None, b"\r\n\0").decode("latin-1").strip()),
)  # fmt: skip

PATHS = [
    "/", "/login", "/sessions", "/static/app.css", "/api/v1/me", "/api/v1/sessions", "/enter?token=x", "/healthz",
    "/%2e%2e/",
]  # fmt: skip


@pytest.mark.soak
@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    method=st.sampled_from(["GET", "POST", "HEAD", "OPTIONS", "DELETE", "PATCH", "TRACE"]), path=st.sampled_from(PATHS),
    headers=st.lists(st.tuples(st.sampled_from(HEADERS), VALUES), max_size=6),
)  # fmt: skip
def test_q5_no_header_makes_the_server_fail_or_lets_anybody_in(asked, method, path, headers):
    """Q5: whatever headers come, nobody without a credential is let in, nothing is a failure of ours, and no text of
    theirs becomes a header, a redirect or markup of the answer."""
    client = TestClient(asked.app, base_url="https://git.example", follow_redirects=False)
    raw = [(name, value.encode("latin-1")) for name, value in headers]
    answer = client.request(method, path, headers=raw)
    assert answer.status_code < 500
    assert "chair" not in answer.text
    assert answer.headers.get("location", "/").startswith(("/", "https://git.example/"))
    is_open = path in ("/login", "/healthz") or path.startswith("/static")
    assert answer.status_code != 200 or is_open or method in ("OPTIONS", "HEAD")
