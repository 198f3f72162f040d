"""Databases on a disk that a test can fill."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import backend
import faults
import postgres_databases
import pytest
from sqlalchemy import URL, text
from sqlalchemy.exc import DBAPIError


@contextmanager
def mounted(size: str = "64m") -> Iterator[Path]:
    """Mount a small disk in memory that every user can write to; without the right to mount, the test is skipped."""
    disk = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="agentgit-disk-"))  # the server cannot enter the others
    disk.chmod(0o777)
    try:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "tmpfs", disk]
        if os.geteuid() != 0 or subprocess.run(command, check=False).returncode:  # noqa: S603
            pytest.skip("only root can mount a small disk")
        try:
            yield disk
        finally:
            subprocess.run(["umount", disk], check=True)  # noqa: S603, S607
    finally:
        shutil.rmtree(disk, ignore_errors=True)


@contextmanager
def postgres_database(disk: Path, server: URL) -> Iterator[URL]:
    """Create a PostgreSQL database on a disk, with all tables; if the server runs elsewhere, the test is skipped."""
    folder, name = disk / "server", f"agentgit_test_{uuid.uuid4().hex}"
    folder.mkdir()
    with postgres_databases.on(server) as engine, engine.connect() as connection:
        try:
            shutil.chown(folder, "postgres")
            connection.execute(text(f"CREATE TABLESPACE {name} LOCATION '{folder}'"))
        except (LookupError, DBAPIError):
            pytest.skip("the server cannot use a disk of this machine")
        try:
            with postgres_databases.created(server, name) as url:
                backend.upgrade(url)
                try:
                    yield url
                finally:
                    faults.empty_disk(str(disk))
        finally:
            postgres_databases.drop(connection, f"TABLESPACE {name}")
