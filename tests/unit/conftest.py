"""Hooks that fail each unit test that opens a database or a network connection."""

import sys

import pytest

FORBIDDEN = ("sqlite3.connect", "socket.connect")
guarded = False


def refuse(event, args):
    """Fail a unit test that opens a database or a connection."""
    if guarded and event in FORBIDDEN:
        raise AssertionError(f"a unit test opens {args}: move it to tests/store, tests/agents or tests/faces")


sys.addaudithook(refuse)


@pytest.fixture(autouse=True)
def without_database():
    """Refuse databases and connections while a unit test runs."""
    global guarded
    guarded = True
    yield
    guarded = False
