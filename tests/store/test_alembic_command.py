"""The ordinary `alembic` command works in a checkout, on SQLite and on PostgreSQL."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import agentgit
from agentgit.store.database import Database
from agentgit.store.schema import schema
from agentgit.store.sql.url import parse_url

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with what Alembic needs of a checkout, so that new migrations are not written into this one."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "alembic", folder / "alembic", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture
def alembic(checkout, empty):
    """Return a function that runs the command and returns its output; it checks the exit code."""
    address = parse_url(empty).render_as_string(hide_password=False)
    environment = {**os.environ, "AGENTGIT_DATABASE_URL": address, "PYTHONPATH": str(ROOT)}

    def run(*arguments, fails=False):
        command = [Path(sys.executable).parent / "alembic", *arguments]
        result = subprocess.run(  # noqa: S603  # our own command
            command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
        )
        assert bool(result.returncode) is fails, result.stderr + result.stdout
        assert "Traceback" not in result.stderr
        return result.stdout + result.stderr

    return run


@pytest.mark.long
def test_up_down_and_what_is_current(alembic, empty):
    assert "0001f -> " not in alembic("history")
    assert "The first schema" in alembic("history")
    alembic("upgrade", "head")
    assert "0001f (head)" in alembic("current")
    alembic("downgrade", "-1")
    with closing(Database(empty)) as database:
        assert schema.current_revision(database) is None
    assert "0001f" not in alembic("current")
    alembic("upgrade", "+1")
    with agentgit.open(empty) as repo:
        assert repo.session("s", create=True).name == "s"


@pytest.mark.long
def test_autogenerate_finds_nothing_to_change(alembic, checkout):
    alembic("upgrade", "head")
    assert "No new upgrade operations detected" in alembic("check")
    alembic("revision", "--autogenerate", "-m", "x")
    text = (checkout / "alembic" / "versions" / "0002_x.py").read_text()
    assert text.count("pass") == 2
    assert "op.drop" not in text
    alembic("upgrade", "head")
    assert "0002 (head)" in alembic("current")
    alembic("downgrade", "0001f")
    assert "0001f" in alembic("current")
    alembic("revision", "-m", "named", "--rev-id", "0007")
    assert (checkout / "alembic" / "versions" / "0007_named.py").exists()


def test_autogenerate_finds_a_column_that_no_model_has(alembic, empty):
    alembic("upgrade", "head")
    with closing(Database(empty)) as database:
        database.write(
            lambda transaction: transaction.connection.exec_driver_sql("ALTER TABLE tag ADD COLUMN color TEXT")
        )
    assert "color" in alembic("check", fails=True)


@pytest.mark.long
def test_the_sql_of_an_upgrade_creates_the_schema(alembic, empty):
    script = alembic("upgrade", "head", "--sql")
    with closing(Database(empty)) as database:
        assert schema.current_revision(database) is None
        if database.is_sqlite:
            with closing(sqlite3.connect(empty)) as connection:
                connection.executescript(script)
        else:
            script = script.replace("BEGIN;\n", "", 1).replace("\nCOMMIT;", "").replace("%", "%%")
            database.write(lambda transaction: transaction.connection.exec_driver_sql(script))
        schema.compare(database)
    assert "DROP TABLE" in alembic("downgrade", "0001f:base", "--sql")


@pytest.mark.long
def test_a_database_can_be_named_on_the_command_line_or_in_an_own_ini(alembic, checkout, tmp_path):
    first, second = tmp_path / "first.db", tmp_path / "se%cond.db"
    alembic("-x", f"db={first}", "upgrade", "head")
    assert first.exists()
    assert "0001f (head)" in alembic("-x", f"db={first}", "current")
    url = f"sqlite:///{second}".replace("%", "%%")
    (checkout / "own.ini").write_text(f"[alembic]\nscript_location = alembic\nsqlalchemy.url = {url}\n")
    alembic("-c", "own.ini", "upgrade", "head")
    assert second.exists()
    assert "0001f (head)" in alembic("-c", "own.ini", "current")
    assert "mysql" in alembic("-x", "db=mysql://h/x", "current", fails=True)
