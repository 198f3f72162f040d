"""The check of the statements of every test sees and refuses what would fail on a distributed schema."""

import backend
import pytest
import sent_statements
from sqlalchemy import func, select

from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.rows import update_rows
from agentgit.store.sql.tables import BRANCH

on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)

REFUSED = {
    "SELECT clock_timestamp() > %(until)s::TIMESTAMP": "calls the volatile clock_timestamp()",
    "UPDATE tag SET name = random()::text WHERE id = %s": "calls the volatile random()",
    "INSERT INTO tag (id) VALUES (nextval('tags'))": "calls the volatile nextval()",
    "INSERT INTO tag (name) SELECT gen_random_uuid()": "calls the volatile gen_random_uuid()",
    "SELECT set_config('a', name, true) FROM tag": "calls the volatile set_config()",
    "SELECT pg_advisory_xact_lock(%s)": "calls the volatile pg_advisory_xact_lock()",
    "LOCK TABLE blob IN EXCLUSIVE MODE": "locks a table",
    "SELECT * FROM acme.tag JOIN blob ON true": "names the schema of tag",
    "DELETE FROM tag WHERE id IN (SELECT id FROM public.blob)": "names the schema of blob",
    "SELECT max(id), pg_current_snapshot() FROM tag": "reads the snapshot of the node that has the table",
    "INSERT INTO tag (id) VALUES ((SELECT max(id) + 1 FROM tag))": "inserts the value of a subquery",
    "SELECT FROM WHERE": "cannot be parsed",
}

ACCEPTED = (
    "SELECT statement_timestamp() > %(until)s::TIMESTAMP, now(), CURRENT_TIMESTAMP",
    "SELECT set_config(%s, %s, true)",
    "SELECT * FROM tag WHERE name LIKE 'a%%' FOR UPDATE OF tag SKIP LOCKED",
    "SELECT * FROM pg_catalog.pg_class",
    "WITH one AS (SELECT * FROM tag) SELECT * FROM one",
    "INSERT INTO tag (name) VALUES (%s) ON CONFLICT DO NOTHING",
    "INSERT INTO tag (id) SELECT max(id) + 1 FROM tag",
    "SELECT pg_current_snapshot()",
    "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY",
    "COMMIT",
    "SAVEPOINT a",
    "VACUUM blob",
    "GRANT SELECT ON tag TO somebody",
)


def test_a_statement_that_a_distributed_database_refuses_is_found(postgres_made):
    found = {sql: ", ".join(sent_statements.list_breaches(sql)) for sql in (*REFUSED, *ACCEPTED)}
    assert found == REFUSED | dict.fromkeys(ACCEPTED, "")


@on_postgresql
async def test_every_way_to_the_server_is_watched(repo):
    database, is_chosen = backend.database(repo), func.random() > 2
    all_branches = CompiledStatement(select(BRANCH.c.id).where(is_chosen))
    ways = (
        lambda c: all_branches.all(c, {}),
        lambda c: list(all_branches.pages(c)),
        lambda c: update_rows(c, BRANCH, is_chosen, status="open"),
    )
    found = []
    for way in ways:
        database.write(way)
        found.append(sent_statements.take_breaches())
        await database.run(database.write, way)
        found.append(sent_statements.take_breaches())
    assert [{breach.rule for breach in breaches} for breaches in found] == [{"calls the volatile random()"}] * 6


@on_postgresql
def test_the_own_sql_of_a_test_is_not_checked(repo):
    assert backend.write(repo, lambda c: c.execute(select(BRANCH.c.id).where(func.random() > 2)).all()) == []
    assert sent_statements.take_breaches() == []
