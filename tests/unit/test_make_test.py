"""Coverage of `make test`, which skips long tests: every row of the acceptance table keeps a test."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_row_keeps_a_test_that_make_test_runs():
    """Each row that tests name is proven by at least one test that is not marked `long`."""
    proofs = defaultdict(list)
    for row, is_long in _proofs():
        proofs[row].append(is_long)
    assert len(proofs) > 60
    assert sorted(row for row, are_long in proofs.items() if all(are_long)) == []


def _proofs() -> Iterator[tuple[str, bool]]:
    """Yield each row that a test names, and whether the test is marked `long`."""
    for path in ROOT.glob("*/test_*.py"):
        module = ast.parse(path.read_text())
        is_long = any("pytestmark" in ast.unparse(line) and "mark.long" in ast.unparse(line) for line in module.body)
        for test in ast.walk(module):
            if not isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) or not test.name.startswith("test_"):
                continue
            marks = [ast.unparse(mark) for mark in test.decorator_list]
            rows = re.match(r"test((?:_[a-z]\d{1,2})+)_", test.name)
            for row in rows[1].strip("_").split("_") if rows else ():
                yield row.upper(), is_long or "pytest.mark.long" in marks
