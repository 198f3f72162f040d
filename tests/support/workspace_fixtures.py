"""Fixtures with a workspace of each environment, for the tests of files."""

import pytest

from agentgit import Workspace


@pytest.fixture
def work(tmp_path):
    """Create an empty directory for a workspace."""
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture(params=["git", "directory"])
def kind(request):
    """Return the environment of the workspace."""
    return request.param


@pytest.fixture
def workspace(work, tmp_path, kind):
    """Create a workspace."""
    return Workspace(work, tmp_path / "store", environment=kind)
