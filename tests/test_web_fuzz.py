"""Schemathesis asks the whole API what its own description allows, and what it does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
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
    ids = {name: id for name, id in asked.ids.items() if "{" + name + "}" in operation.path}
    if operation.label == "DELETE /sessions/{session_id}":
        ids = {}  # the others need it

    @given(case=operation.as_strategy(mode, path_parameters=ids or None))
    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(
            BASE, app=asked.app, headers={"authorization": f"Bearer {asked.key}"}, checks=CHECKS
        )  # fmt: skip

    ask()
