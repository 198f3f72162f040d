"""Each row of the acceptance table, which tests/rows.tsv maps to tests, is proven by a test that `make test` runs."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]

LEFT_OUT = {"pytest.mark.long", "pytest.mark.soak"}
"""The marks of tests that `make test` leaves out."""


def test_every_row_keeps_a_test_that_make_test_runs():
    """The file names tests that exist, and for each row at least one that is not marked `long` or `soak`."""
    rows = [line.split("\t") for line in (TESTS / "rows.tsv").read_text().splitlines()]
    tests = dict(_tests())
    assert [test for _, test in rows if test not in tests] == []
    assert {row for row, _ in rows} - {row for row, test in rows if tests[test]} == set()


def _tests() -> Iterator[tuple[str, bool]]:
    """Yield the id of each test, and whether it has neither mark."""
    for path in TESTS.glob("*/test_*.py"):
        module = ast.parse(path.read_text())
        is_long = any("pytestmark" in ast.unparse(line) and "mark.long" in ast.unparse(line) for line in module.body)
        for test in ast.walk(module):
            if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef):
                is_left_out = is_long or LEFT_OUT & {*map(ast.unparse, test.decorator_list)}
                yield f"{path.relative_to(TESTS.parent)}::{test.name}", not is_left_out
