"""Fixtures with a workspace of each environment, for the tests of files."""

import pytest

from agentgit import Workspace
from agentgit.workspace.api import engine_of


@pytest.fixture
def work(tmp_path):
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture(params=["git", "directory"])
def kind(request):
    return request.param


@pytest.fixture
def workspace(work, tmp_path, kind):
    return Workspace(work, tmp_path / "store", environment=kind)


def unsaved(workspace):
    """Return the paths that changed since they were last saved or restored."""
    return workspace.plan_restore(workspace.list(1)[0].id).changed


def left_out(workspace):
    """Return the paths that the newest snapshot leaves out, each with the reason."""
    return workspace.list(1)[0].skipped


def adopt(workspace, source, id):
    """Copy a snapshot of another workspace, and return the copy."""
    engine_of(workspace).adopt(engine_of(source), id, "a test")
    return workspace.get(id)
