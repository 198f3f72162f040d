"""The check of the statements of every test sees and refuses what would fail on tables distributed by tenant."""

import backend
import pytest
import sent_statements
from sqlalchemy import select

from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import BRANCH
from agentgit.store.sql.writes import update_rows

on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)

OF_BLOB = "names no tenant of blob"
OF_TAG = "names no tenant of tag"

REFUSED = {
    "SELECT clock_timestamp() > %(until)s::TIMESTAMP": "calls the volatile clock_timestamp()",
    "UPDATE tag SET name = random()::text WHERE tenant_id = %s": "calls the volatile random()",
    "INSERT INTO tag (tenant_id, id) VALUES (%s, nextval('tags'))": "calls the volatile nextval()",
    "INSERT INTO tag (tenant_id, name) SELECT %s, gen_random_uuid()": "calls the volatile gen_random_uuid()",
    "SELECT set_config('a', name, true) FROM tenant": "calls the volatile set_config()",
    "SELECT pg_advisory_xact_lock(%s)": "calls the volatile pg_advisory_xact_lock()",
    "LOCK TABLE blob IN EXCLUSIVE MODE": "locks a table",
    "SELECT * FROM tag": OF_TAG,
    "SELECT * FROM tag WHERE id = %s FOR UPDATE": OF_TAG,
    "SELECT * FROM tag WHERE tenant_id = %s OR id = %s": OF_TAG,
    "SELECT * FROM tag WHERE NOT tenant_id = %s": OF_TAG,
    "SELECT * FROM tag WHERE tenant_id = id": OF_TAG,
    "SELECT * FROM tag WHERE tenant_id IN (SELECT id FROM tenant)": OF_TAG,
    "SELECT * FROM tag JOIN blob ON tag.name = blob.type WHERE tag.tenant_id = %s": OF_BLOB,
    "SELECT * FROM blob, tag WHERE blob.tenant_id = %s AND EXISTS (SELECT FROM blob AS b)": f"{OF_BLOB}, {OF_TAG}",
    "WITH one AS (SELECT * FROM tag) SELECT * FROM one WHERE one.tenant_id = %s": OF_TAG,
    "UPDATE tag SET name = %s": OF_TAG,
    "UPDATE tag SET tenant_id = %s WHERE id = %s": OF_TAG,
    "DELETE FROM tag WHERE id IN (SELECT id FROM blob WHERE tenant_id = %s)": OF_TAG,
    "INSERT INTO tag (id, name) VALUES (%s, %s)": OF_TAG,
    "INSERT INTO tag (tenant_id, name) SELECT tenant_id, type FROM blob": OF_BLOB,
    "TRUNCATE tag": OF_TAG,
    "COPY tag FROM STDIN": OF_TAG,
    "SELECT FROM WHERE": "cannot be parsed",
}

ACCEPTED = (
    "SELECT statement_timestamp() > %(until)s::TIMESTAMP, now(), CURRENT_TIMESTAMP",
    "SELECT set_config(%s, %s, true)",
    "SELECT id FROM tenant WHERE name = %s",
    "SELECT * FROM tag WHERE tag.tenant_id = %(tenant)s::BIGINT AND name LIKE 'a%%' FOR UPDATE OF tag SKIP LOCKED",
    "SELECT * FROM tag AS t JOIN blob AS b ON t.tenant_id = b.tenant_id WHERE b.tenant_id = %s",
    "SELECT * FROM tag WHERE (tenant_id = %s AND id = 1) OR (tenant_id = %s AND id = 2)",
    "SELECT * FROM tag WHERE (tag.tenant_id, tag.id) IN ((%s, %s), (%s, %s))",
    "SELECT * FROM tag WHERE tenant_id = %s AND NOT EXISTS (SELECT FROM blob AS b WHERE b.tenant_id = tag.tenant_id)",
    "UPDATE tag SET name = v.name FROM (VALUES (%s, %s)) AS v (tenant_id, name) WHERE tag.tenant_id = v.tenant_id",
    "DELETE FROM tag WHERE tag.tenant_id = %s AND tag.id = ANY(%s)",
    "INSERT INTO tag (tenant_id, name) VALUES (%s, %s) ON CONFLICT DO NOTHING",
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
    database, all_branches = backend.database(repo), CompiledStatement(select(BRANCH.c.id))
    ways = (
        lambda c: all_branches.all(c, {}),
        lambda c: list(all_branches.pages(c)),
        lambda c: update_rows(c, BRANCH, BRANCH.c.id == 0, status="open"),
    )
    found = []
    for way in ways:
        database.write(way)
        found.append(sent_statements.take_breaches())
        await database.run(database.write, way)
        found.append(sent_statements.take_breaches())
    assert [{breach.rule for breach in breaches} for breaches in found] == [{"names no tenant of internal_session"}] * 6


@on_postgresql
def test_the_own_sql_of_a_test_is_not_checked(repo):
    assert backend.write(repo, lambda c: c.execute(select(BRANCH.c.id)).all()) == []
    assert sent_statements.take_breaches() == []
