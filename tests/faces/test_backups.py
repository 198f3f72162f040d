"""The scripts `backup` and `restore` of deploy/, with a real PostgreSQL."""

from __future__ import annotations

import stat
import uuid
from pathlib import Path

import pytest
from command_line import run
from kits import TENANT, backup, count, execute, libpq, live, script, told
from postgres_databases import in_schema
from sqlalchemy import URL

import agentgit
from agentgit.demo import EFFECTS, build, open_shop, orders

pytestmark = pytest.mark.long


def test_a_restored_database_is_sound_and_its_sessions_go_on(postgres_tables: URL, postgres_spare: URL, tmp_path: Path):
    live(postgres_tables, tmp_path)
    before = [told(postgres_tables), told(in_schema(postgres_tables, TENANT))]
    file = backup(postgres_tables, tmp_path)
    with agentgit.open(postgres_tables) as repo:
        repo.wrap(build(tmp_path / "shop.db"), session="support-42", effects=EFFECTS).run("order a lamp")
    done = script("restore", file, postgres_spare.database, **libpq(postgres_tables))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("no problems found") == 2
    assert done.stdout.endswith("is sound.\n")
    assert [told(postgres_spare), told(in_schema(postgres_spare, TENANT))] == before
    with agentgit.open(postgres_spare) as repo:
        agent = repo.wrap(build(tmp_path / "shop.db"), session="support-42", effects=EFFECTS)
        assert str(agent.rollback("before the table").report).startswith("Rollback done")
    cancelled = [order.item for order in orders(open_shop(tmp_path / "shop.db")) if order.status == "cancelled"]
    assert cancelled == ["sofa", "table", "table"]


def test_a_backup_is_readable_by_its_owner_only_and_old_ones_are_deleted(postgres_tables: URL, tmp_path: Path):
    old = [f"{postgres_tables.database}-2025010{day}T000000Z" for day in (1, 2, 3)]
    others = [f"other_{old[0]}.dump", f"{postgres_tables.database}-notes.dump", "x.txt"]
    for name in [*others, *(f"{one}.dump" for one in old)]:
        (tmp_path / name).touch()
    file = backup(postgres_tables, tmp_path, KEEP="2")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    left = {file.name, f"{old[2]}.dump", *others}
    assert {one.name for one in tmp_path.iterdir()} == left
    for keep in ("0", "-1", "two", "1; rm -rf /"):
        refused = script("backup", tmp_path, **libpq(postgres_tables, KEEP=keep))
        assert (refused.returncode, "KEEP must be a number" in refused.stderr) == (2, True)
    assert {one.name for one in tmp_path.iterdir()} == left


def test_a_role_that_may_not_read_all_tables_makes_no_backup(postgres_tables: URL, tmp_path: Path):
    role = f"agentgit_test_{uuid.uuid4().hex}"
    execute(postgres_tables, f"CREATE ROLE {role}")
    try:
        where = ("--db", postgres_tables.render_as_string(hide_password=False))
        assert run("db", "grant", "--schema", "public", "--role", role, *where).code == 0
        as_granted = {"PGOPTIONS": f"-c role={role}"}
        backup(postgres_tables, tmp_path, **as_granted).unlink()
        execute(postgres_tables, f"REVOKE SELECT ON blob FROM {role}")  # noqa: S608  # our own name
        done = script("backup", tmp_path, **libpq(postgres_tables, **as_granted))
        assert done.returncode != 0
        assert "permission denied" in done.stderr
        assert list(tmp_path.iterdir()) == []
    finally:
        execute(postgres_tables, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


LARGEST = "size = (SELECT max(size) FROM blob)"
DAMAGE = f"UPDATE blob SET data = data || '\\x00'::bytea WHERE {LARGEST}"  # noqa: S608


def test_a_database_that_was_damaged_before_its_backup_is_not_called_sound(postgres_tables, postgres_spare, tmp_path):
    live(postgres_tables, tmp_path)
    execute(postgres_tables, DAMAGE)
    file = backup(postgres_tables, tmp_path)
    done = script("restore", file, postgres_spare.database, **libpq(postgres_tables))
    assert done.returncode == 1, done.stdout
    assert "is NOT sound. It was kept" in done.stderr
    assert count(postgres_spare, "checkpoint") == count(postgres_tables, "checkpoint")


def test_a_cut_file_leaves_no_database(postgres_tables: URL, postgres_spare: URL, tmp_path: Path):
    live(postgres_tables, tmp_path)
    file, cut = backup(postgres_tables, tmp_path), tmp_path / "cut.dump"
    cut.write_bytes(file.read_bytes()[:-200])
    done = script("restore", cut, postgres_spare.database, **libpq(postgres_tables))
    assert done.returncode == 1
    assert f"The database {postgres_spare.database} was removed again" in done.stderr
    assert count(postgres_tables, f"pg_database WHERE datname = '{postgres_spare.database}'") == 0


def test_a_restore_overwrites_nothing(postgres_tables: URL, tmp_path: Path):
    live(postgres_tables, tmp_path)
    before, file = told(postgres_tables), backup(postgres_tables, tmp_path)
    done = script("restore", file, postgres_tables.database, **libpq(postgres_tables))
    assert (done.returncode, "already exists" in done.stderr) == (1, True)
    assert told(postgres_tables) == before
    for name in (f"dbname={postgres_tables.database}", "postgresql://x/y", "a b", "--help", "x;y", "../x"):
        done = script("restore", file, name, **libpq(postgres_tables))
        assert (done.returncode, done.stdout) == (2, ""), name
    for script_name, words in (("restore", [file]), ("restore", []), ("backup", [])):
        done = script(script_name, *words, **libpq(postgres_tables))
        assert done.returncode != 0
        assert f"Usage: {script_name}" in done.stderr
