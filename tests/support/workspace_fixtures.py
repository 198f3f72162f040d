"""Fixtures with a workspace of each environment, for the tests of files."""

import pytest

from agentgit import Workspace


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
