"""The audit trail withstands SQL of agentgit's own role, and saved tips detect changes by the database owner."""

# ruff: noqa: S608  # what is built here are attacks

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import backend
import psycopg
import pytest
from postgres_databases import as_role
from scripted import scripted, tool_node_graph
from typer.testing import CliRunner

from agentgit.cli.app import app
from agentgit.errors import InvalidInput
from agentgit.sessions.events import Tip, hash_row, tips_of
from agentgit.values import to_json

REFUSED = "audit trail cannot be changed"


class Attacker:
    """An attacker with a driver and the rights that `agentgit db grant` grants; a SQLite file has none to grant.

    Args:
        url: the URL of the database with the attacker's role.
        tenant_id: the tenant whose trail is attacked.
    """

    def __init__(self, url, tenant_id):
        self.url, self.tenant_id, self.is_sqlite = url, tenant_id, url.drivername.startswith("sqlite")

    def run(self, *statements):
        """Run statements in one transaction, and return the rows of the last one."""
        if self.is_sqlite:
            with closing(sqlite3.connect(self.url.database, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                rows = [connection.execute(one).fetchall() for one in statements]
                connection.execute("COMMIT")
                return rows[-1]
        name = self.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(name) as connection:
            connection.execute(f"SET agentgit.tenant_id = {self.tenant_id}")
            connection.execute("SET agentgit.user_id = 'all'")  # an attacker can also change settings
            for one in statements:
                cursor = connection.execute(one)
            return cursor.fetchall() if cursor.description else []

    def refused(self, *statements):
        """Assert that the trail's triggers refuse the statements."""
        with pytest.raises((sqlite3.IntegrityError, psycopg.errors.RaiseException), match=REFUSED):
            self.run(*statements)

    def literal(self, value):
        return f"x'{value.hex()}'" if self.is_sqlite else f"'\\x{value.hex()}'::bytea"

    def end_of(self, session_id):
        """Return the number, id and hash of a session's last event; zeros and an empty hash without events."""
        found = self.run(
            f"SELECT seq, id, hash FROM audit_event WHERE tenant_id = {self.tenant_id} "
            f"AND external_session_id = {session_id} ORDER BY seq DESC LIMIT 1"
        )
        return found[0] if found else (0, 0, b"")

    def erasure(self, session_id, seq, digest, *, verb="INSERT"):
        """Return the statement that records a session as erased."""
        return (
            f"{verb} INTO erasure (tenant_id, external_session_id, user_id, last_seq, last_hash, created_at) VALUES "
            f"({self.tenant_id}, {session_id}, NULL, {seq}, {self.literal(digest)}, '2026-11-22 00:00:00.000000')"
        )

    def told(self, session_id, seq, digest, *, chain=0):
        """Return the statement that appends a correctly hashed `session.erased` event to a chain."""
        number, last, before = self.end_of(chain)
        detail = to_json({"erased": session_id, "rows": 1, "events": seq, "hash": digest.hex()})
        row = {
            "tenant_id": self.tenant_id, "external_session_id": chain, "seq": number + 1, "id": last + 1,
            "internal_session_id": None, "owner_id": None, "user_id": None, "kind": "session.erased",
        }  # fmt: skip
        digest = hash_row(bytes(before), {**row, "created_at": datetime(2026, 11, 22, tzinfo=UTC), "detail": detail})
        values = ", ".join("NULL" if v is None else f"'{v}'" if isinstance(v, str) else str(v) for v in row.values())
        return (
            f"INSERT INTO audit_event ({', '.join(row)}, detail, created_at, hash) VALUES ({values}, "
            f"{self.literal(detail)}, '2026-11-22 00:00:00.000000{'' if self.is_sqlite else '+00'}', "
            f"{self.literal(digest)})"
        )

    def delete(self, session_id, more=""):
        return f"DELETE FROM audit_event WHERE external_session_id = {session_id} {more}"

    def rows_of(self, session_id):
        """Return the statements that delete the rows of the fixture's session, except its trail."""
        branches = f"(SELECT id FROM internal_session WHERE external_session_id = {session_id})"
        return [
            f"DELETE FROM search_text WHERE internal_session_id IN {branches}",
            f"DELETE FROM checkpoint WHERE internal_session_id IN {branches}",
            *(
                f"DELETE FROM {table} WHERE external_session_id = {session_id}"
                for table in ("world_log", "internal_session")
            ),
            f"DELETE FROM external_session WHERE id = {session_id}",
        ]


def past_triggers(repo, *statements):
    """Run statements past the triggers, as the owner of the database can."""
    database = backend.database(repo)
    with database.engine.begin() as connection:
        if database.is_sqlite:
            query = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN ('audit_event', 'erasure')"
            for name in connection.exec_driver_sql(query).scalars().all():
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
        else:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        for one in statements:
            connection.exec_driver_sql(one)


@pytest.fixture
def attack(repo):
    """Create the session `s` with five events, and yield an attacker of its database."""
    agent = repo.wrap(tool_node_graph(scripted("x"), []), "s")
    for n in range(4):
        agent.checkpoint(f"c{n}")
    if backend.is_sqlite(repo):
        yield Attacker(backend.url(repo), repo.context.store.tenant_id)
        return
    with as_role(backend.url(repo)) as url:
        yield Attacker(url, repo.context.store.tenant_id)


def test_a_forged_erasure_allows_no_deletion(repo, attack):
    """Without an event in the tenant's chain no row of `erasure` is accepted and no event can be deleted."""
    session = repo.session("s").id
    seq, _, digest = attack.end_of(session)
    attack.refused(attack.erasure(session, seq, digest), attack.delete(session))
    attack.refused(attack.delete(session, "AND seq = 5"))
    attack.refused(*attack.rows_of(session), attack.erasure(session, seq, digest))
    assert repo.events.verify().is_sound
    assert len(list(repo.events.list(session="s"))) == 5


def test_temporary_tables_cannot_replace_the_trail_tables(repo, attack):
    """The triggers ignore temporary tables that have the names of the real ones."""
    session = repo.session("s").id
    seq, _, digest = attack.end_of(session)
    told = attack.told(session, seq, digest)
    for name, values in {
        "erasure": f"SELECT {attack.tenant_id} tenant_id, {session} external_session_id",
        "external_session": "SELECT 0::bigint tenant_id, 0::bigint id",
        "audit_event": "SELECT * FROM audit_event",
    }.items():
        if attack.is_sqlite:  # triggers of SQLite see only the tables of their own file
            shadow = [f"CREATE TEMP TABLE {name} AS {values.replace('::bigint', '')}"]
            shadow = [shadow[0].replace("FROM audit", "FROM main.audit")]
        else:
            shadow = [f"CREATE TEMP TABLE {name} AS {values}"]
        place = "main" if attack.is_sqlite else "public"
        theirs = [one.replace("INTO ", f"INTO {place}.") for one in (told, attack.erasure(session, seq, digest))]
        attack.refused(*shadow, *theirs)
        attack.refused(*shadow, attack.delete(session, "AND seq > 3").replace("audit_event", f"{place}.audit_event"))
    assert len(list(repo.events.list(session="s"))) == 5
    assert repo.events.verify().is_sound


def test_an_erasure_event_must_be_true(repo, attack):
    """The event must be of no session, the newest, and accurate; an existing session cannot be erased."""
    session = repo.session("s").id
    seq, _, digest = attack.end_of(session)
    gone, erasure = attack.rows_of(session), attack.erasure(session, seq, digest)
    attack.refused(attack.told(session, seq, digest), erasure)  # the session still exists
    attack.refused(*gone, attack.told(session, 2, digest), attack.erasure(session, 2, digest))
    attack.refused(*gone, attack.told(session, seq, b"\1" * 32), attack.erasure(session, seq, b"\1" * 32))
    attack.refused(*gone, attack.told(session, seq, digest), attack.erasure(session, seq - 1, digest))
    attack.refused(*gone, attack.told(session, seq, digest).replace("session.erased", "session.ended"), erasure)
    attack.refused(*gone, attack.told(session, seq, digest, chain=5), erasure)
    attack.refused(*gone, attack.told(session, 0, b""), attack.erasure(session, 0, b""))
    if not attack.is_sqlite:  # the setting hides the session and its trail from the attacker's statements
        nobody = "SET agentgit.user_id = '77'"
        attack.refused(attack.told(session, 0, b""), nobody, attack.erasure(session, 0, b""))
        attack.refused(*gone, attack.told(session, 0, b""), nobody, attack.erasure(session, 0, b""))
    assert repo.events.verify().is_sound
    assert len(list(repo.events.list(session="s"))) == 5


def test_an_erasure_by_plain_sql_is_recorded_like_any_other(repo, attack):
    """A role may erase a session with SQL statements, and the trail keeps the erasure event for good."""
    session, known = repo.session("s").id, repo.events.tips()
    seq, _, digest = attack.end_of(session)
    attack.run(
        *attack.rows_of(session), attack.told(session, seq, digest), attack.erasure(session, seq, digest),
        attack.delete(session),
    )  # fmt: skip
    found = repo.events.verify(known)
    assert (found.is_sound, found.erased) == (True, [session])
    attack.refused(attack.delete(0))
    attack.refused("DELETE FROM erasure") if attack.is_sqlite else None
    assert [event.kind for event in repo.events.audit()] == ["session.erased"]


def test_an_erasure_made_past_the_triggers_is_reported(repo, attack):
    """A row of `erasure` without an event in the tenant's chain, or of an existing session, is reported."""
    session, other = repo.session("s").id, repo.session("other", create=True).id
    seq, _, digest = attack.end_of(session)
    attack.run(attack.told(session, seq, digest, chain=other))  # the wrong chain
    past_triggers(repo, attack.erasure(session, seq, digest), attack.delete(session))
    found = repo.events.verify()
    assert [(one.row, one.what) for one in found.findings] == [
        (f"erasure {session}", "the trail does not record this erasure"),
        (f"erasure {session}", "this session still exists"),
    ]
    assert found.erased == []
    assert {one.row for one in repo.maintenance.fsck(2).findings} >= {f"erasure {session}"}


@pytest.mark.long
def test_saved_tips_detect_events_cut_by_the_database_owner(repo, attack, tmp_path, monkeypatch):
    """Tips saved outside detect a chain that was cut, replaced or removed."""
    monkeypatch.setenv("AGENTGIT_DATABASE_URL", backend.address(repo))
    session, kept = repo.session("s").id, tmp_path / "tips.jsonl"

    def keep():
        with kept.open("a") as file:
            file.write(CliRunner().invoke(app, ["audit", "tips"]).stdout)

    def verified():
        return CliRunner().invoke(app, ["audit", "verify", "--tips", str(kept)])

    keep()
    repo.session("other", create=True)
    keep()
    assert [tip.number for tip in tips_of(kept.read_text()) if tip.session_id == session] == [5, 5]
    assert verified().exit_code == 0
    past_triggers(repo, attack.delete(session, "AND seq = 5"))
    assert repo.events.verify().is_sound  # the database itself has no trace of the cut
    done = verified()
    assert (done.exit_code, f"audit_event {session}/5" in done.stdout) == (12, True)
    attack.run(attack.told(3, 1, b"", chain=session))  # another last event in its place
    done = verified()
    assert (done.exit_code, "had another hash" in done.stdout) == (12, True)
    keep()  # tips saved later do not replace the earlier ones
    assert verified().exit_code == 12
    past_triggers(repo, attack.delete(session))
    done = verified()
    assert (done.exit_code, "is missing now" in done.stdout) == (12, True)
    kept.write_text(kept.read_text()[:-9])
    done = verified()
    assert (type(done.exception), "Line" in str(done.exception)) == (InvalidInput, True)


def test_an_event_is_accepted_as_a_tip(repo, attack):
    """An event in the JSON form of feeds is read as a tip."""
    event = repo.events.newest(session="s", limit=1)[0]
    (tip,) = tips_of(json.dumps(event.to_dict(), default=str))
    assert tip == Tip(session_id=event.session_id, number=5, hash=event.hash)
    assert repo.events.verify([tip]).is_sound


def test_an_event_out_of_place_is_reported(repo, attack):
    """An event out of its place in the chain is reported; one that agentgit might have added is not."""
    session = repo.session("s").id
    attack.run(attack.told(7, 1, b"", chain=session))
    assert repo.events.verify().is_sound
    right = attack.told(8, 1, b"", chain=session)
    attack.run(right.replace(f"{session}, 7, ", f"{session}, 9, "))
    (finding,) = repo.events.verify().findings
    assert (finding.row, "are missing" in finding.what) == (f"audit_event {session}/9", True)
    attack.run(attack.told(8, 1, b"", chain=0).replace("session.erased", "login.done"))
    assert {one.row for one in repo.events.verify().findings} == {finding.row, "audit_event 0/1"}
