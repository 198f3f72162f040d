"""A turn needs only a fixed number of round trips to the server, and pipelined statements are reliable."""

import asyncio
from contextlib import closing
from datetime import UTC, datetime

import faults
import points
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import obeying
from sqlalchemy import Column, Integer, MetaData, Table, Text, bindparam, delete, func, insert, select
from sqlalchemy.dialects import postgresql

import agentgit
from agentgit import AgentGitError
from agentgit.store.database import Database
from agentgit.store.sql import batch
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import USER


@pytest.fixture
def sent(monkeypatch):
    """Return a list that collects the statements of each round trip to the server."""
    ways, plain = [], batch._send

    def send(driver, statements):
        ways.append([statement.sql for statement in statements])
        return plain(driver, statements)

    monkeypatch.setattr(batch, "_send", send)
    return ways


@pytest.mark.parametrize(("said", "most", "statements"), [("hello", 4, 16), ("add chair", 12, 34)])
def test_a_turn_needs_few_round_trips_to_the_server(postgres_url, sent, said, most, statements):
    with agentgit.open(postgres_url) as repo:
        agent = obeying(repo)
        agent.run(said)
        sent.clear()
        # The background writes only in a slow turn, and then once more.
        with faults.setting(points.FLUSH_IN_BACKGROUND, lambda unit: None):
            agent.run(said)
    # With a call, a row may come with a later statement, because LangGraph saves writes and steps in its threads.
    assert 0 < len(sent) <= most
    assert 0 < sum(map(len, sent)) <= statements


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failed_pipeline_reports_its_error_and_logs_nothing(postgres_url, caplog, is_async):
    taken, count = CompiledStatement(insert(USER)), select(func.count()).select_from(USER)

    def add(transaction, *ids):
        for id in ids:
            taken.run(
                transaction,
                {"id": id, "name": f"{id}", "created_at": datetime.now(UTC), "is_admin": False, "disabled_at": None},
            )

    def write(database, *ids):
        def work():
            database.write(lambda transaction: add(transaction, *ids))

        return asyncio.run(database.run(work)) if is_async else work()

    with closing(Database(postgres_url)) as database:
        with pytest.raises(AgentGitError, match="pk_user"):
            write(database, 7, 8, 8, 9)
        with database.reading() as transaction:
            before = transaction.execute(count).scalar_one()
        write(database, 7, 8, 9)
        with database.reading() as transaction:
            assert transaction.execute(count).scalar_one() == before + 3
        database.write(lambda c: c.execute(delete(USER).where(USER.c.id.in_([7, 8, 9]))))
    assert caplog.records == []


TEXT_CHARACTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])


@pytest.mark.long
@given(
    rows=st.lists(st.tuples(st.integers(0, 20), st.text(TEXT_CHARACTERS)), min_size=1),
    is_upsert=st.booleans(),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_that_one_statement_inserts_are_stored_as_one_after_the_other(postgres_made, rows, is_upsert):
    table = Table("item", MetaData(), Column("id", Integer, primary_key=True), Column("words", Text))
    words = {"words": bindparam("words", type_=Text) + ")"}
    insert_row = postgresql.insert(table).values(id=bindparam("id"), **words)
    changes = {"words": table.c.words + insert_row.excluded.words}
    statement = insert_row.on_conflict_do_update(index_elements=["id"], set_=changes)
    if not is_upsert:
        statement = insert_row.on_conflict_do_nothing()
    expected = {}
    for key, text in rows:
        expected[key] = expected.get(key, "") + f"{text})" if is_upsert else expected.get(key, f"{text})")

    def write(transaction):
        transaction.connection.exec_driver_sql(
            "CREATE TEMPORARY TABLE item (id bigint PRIMARY KEY, words text) ON COMMIT DROP"
        )
        CompiledStatement(statement).run(transaction, *({"id": key, "words": text} for key, text in rows))
        return {row.id: row.words for row in transaction.execute(select(table))}

    with closing(Database(postgres_made)) as database:
        assert database.write(write) == expected
