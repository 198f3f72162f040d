"""Recording of arguments and results as JSON: any value can be written, and JSON values round-trip."""

import io
import itertools
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from agentgit.values import from_json, portable, to_json


@dataclass
class Circle:
    inside: object = None


class Nasty:
    def __repr__(self):
        raise RuntimeError("no repr")


def test_portable_never_raises_and_consumes_nothing():
    circle: list = []
    circle.append(circle)
    loop = Circle()
    loop.inside = loop
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    lines, file = iter(["a", "b"]), io.BytesIO(b"hello")
    values = [
        circle, loop, deep, Nasty(), {Nasty(): 1, (1, 2): 2, frozenset({3}): 3, None: 4}, lines, file,
        itertools.count(), map(str, [1]), float("nan"), float("inf"), b"\xff", 10**400, "\ud800", {"\ud800": "\0"},
        object, len, {1, 2},
    ]  # fmt: skip
    for value in values:
        from_json(to_json(value))
    assert list(lines) == ["a", "b"]
    assert file.read() == b"hello"
    assert portable(float("nan")) == "nan"
    assert portable({None: 1, 2: 3}) == {"null": 1, "2": 3}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_json_values_are_recorded_unchanged(value):
    assert from_json(to_json(value)) == value
