"""A workspace in a folder of its own, of each environment, for the tests of files."""

import pytest

from agentgit import Workspace


@pytest.fixture
def work(tmp_path):
    """An empty workspace's directory."""
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture(params=["git", "directory"])
def kind(request):
    """Which environment."""
    return request.param


@pytest.fixture
def workspace(work, tmp_path, kind):
    """A workspace."""
    return Workspace(work, tmp_path / "store", environment=kind)
