"""The examples of a property test depend only on that test, and not on what ran before it."""

import importlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st


def tried() -> list[tuple[str, int]]:
    """Run a property test and return its examples."""
    seen = []

    @given(st.text(), st.integers())
    def remember(text, number):
        seen.append((text, number))

    remember()
    return seen


@pytest.mark.skipif(bool(os.environ.get("AGENTGIT_EXPLORE")), reason="new examples are looked for")
def test_hypothesis_examples_do_not_depend_on_imported_modules(tmp_path, monkeypatch):
    before = tried()
    constants = [*(f"constant{n}" for n in range(100)), *range(10**9, 10**9 + 100)]
    (tmp_path / "full_of_constants.py").write_text(f"CONSTANTS = {constants}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("full_of_constants")
    after = tried()
    assert after == before
    assert len(after) == 100
