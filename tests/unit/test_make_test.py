"""Each row of the acceptance table, which tests/rows.tsv maps to tests, is proven by a test that `make test` runs."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]

LEFT_OUT = {"pytest.mark.long", "pytest.mark.soak"}
"""The marks of tests that `make test` leaves out."""


def test_every_row_keeps_a_test_that_make_test_runs():
    """Each row of the file names at least one test that exists and is not marked `long` or `soak`."""
    rows = [line.split("\t") for line in (TESTS / "rows.tsv").read_text().splitlines()]
    short = set(_short_tests())
    assert {row for row, _ in rows} - {row for row, test in rows if test in short} == set()


def _short_tests() -> Iterator[str]:
    """Yield the ids of the tests without such a mark."""
    for path in TESTS.glob("*/test_*.py"):
        module = ast.parse(path.read_text())
        if any("pytestmark" in ast.unparse(line) and "mark.long" in ast.unparse(line) for line in module.body):
            continue
        for test in ast.walk(module):
            functions = ast.FunctionDef | ast.AsyncFunctionDef
            if isinstance(test, functions) and not LEFT_OUT & {*map(ast.unparse, test.decorator_list)}:
                yield f"{path.relative_to(TESTS.parent)}::{test.name}"
