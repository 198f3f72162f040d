"""In random lives of a shared directory, no session takes back what somebody else made, and no edit is lost."""

from __future__ import annotations

import backend
import pytest
import random_files
import soaks


@pytest.mark.parametrize("number", range(2))
def test_no_edit_of_a_person_or_another_session_is_lost(repo, tmp_path, monkeypatch, number):
    """The failure comes again with the same SEED."""
    monkeypatch.setenv("AGENTGIT_HOME", str(tmp_path / "home"))
    random_files.live(backend.url(repo), tmp_path / "work", soaks.SEED + number, 20)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_edit_is_lost_in_many_random_lives(repo, tmp_path, monkeypatch):
    """The same in half of the steps that `make soak` is told, on each database."""
    monkeypatch.setenv("AGENTGIT_HOME", str(tmp_path / "home"))
    for number in range(soaks.STEPS // 80):
        random_files.live(backend.url(repo), tmp_path / str(number), soaks.SEED + number, 40)
