"""Texts, times and ids come back from SQLite and PostgreSQL exactly as they were stored."""

from datetime import UTC, datetime, timedelta, timezone

import backend
import pytest

import agentgit
from agentgit.store.records.checkpoints import CheckpointState, Label
from agentgit.store.sql.ids import ID_LIMIT, new_id

NOTHING = CheckpointState(graph_checkpoint_id=None, state_hash=b"", position=0, message_count=0)
"""The state of a checkpoint without a conversation."""


@pytest.fixture
def stored(repo):
    branch = repo.session("s", create=True).branch().id

    def add(**values):
        label = Label(kind="named", user_id=repo.user.id, name="t", **values)
        made = backend.write(repo, lambda c: repo.context.store.checkpoints.add(c, branch, NOTHING, label))
        with agentgit.open(backend.url(repo)) as other:
            return other.session("s").get_checkpoint(made)

    return add


@pytest.mark.parametrize(
    "text",
    [
        "plain", "", " spaces ", "'quotes\" and \\ and \\u0041", "%s %(a)s :a ? {0}", "line\nand\ttab\rand", "nul \0",
        "a lone \ud83d surrogate", "é and e\u0301", "\U0001f600 \u202e \u2028", "x" * 100_000,
    ],
    ids=lambda text: ascii(text[:12]),
)  # fmt: skip
def test_any_text_comes_back_unchanged(stored, text):
    found = stored(description=text, data={"t": text})
    assert (found.metadata["description"], found.metadata["data"]) == (text, {"t": text})


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        datetime(1999, 12, 31, 23, 59, 59, 999999, UTC),
        datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
    ],
    ids=str,
)
def test_a_time_comes_back_in_utc_to_the_microsecond(stored, moment):
    found = stored(created_at=moment).created_at
    assert (found, found.utcoffset()) == (moment, timedelta(0))


def test_the_largest_ids_come_back_in_order(repo, stored):
    ids = sorted([new_id(), new_id(), ID_LIMIT - 1])
    assert [stored(id=number).id for number in reversed(ids)] == ids[::-1]
    checkpoint = backend.table("checkpoint")
    with backend.reading(repo) as transaction:
        rows = repo.context.store.checkpoints.find(transaction, checkpoint.c.id.in_(ids))
    assert [row.id for row in rows] == ids
