"""Terminal output of the command line: colours only if wanted, and characters that the encoding has."""

import io
import re
import sys

import pytest

from agentgit.cli import output
from agentgit.render.view import Span


class Terminal(io.StringIO):
    """A text stream whose `isatty` returns True."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]  # StringIO says None
        return self._encoding

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8", **environment: str) -> str:
    """Write one styled line to a terminal of this kind, and return the output."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm-256color"} | environment).items():
        monkeypatch.setenv(name, value)
    stream = Terminal(encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    output.show([(Span("├─● ", "dim"), Span("main#1 [red]:smile:", "reference"))])
    return stream.getvalue()


def test_terminal_output_has_colours_and_treats_no_text_as_markup(monkeypatch):
    shown = on_terminal(monkeypatch)
    assert "\x1b[" in shown
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == "├─● main#1 [red]:smile:\n"


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_output_has_no_colours_with_no_color_or_a_dumb_terminal(monkeypatch, environment):
    assert on_terminal(monkeypatch, **environment) == "├─● main#1 [red]:smile:\n"


def test_lanes_are_ascii_where_the_encoding_lacks_box_characters(monkeypatch):
    for environment in ({}, {"NO_COLOR": "1"}):
        shown = on_terminal(monkeypatch, "ascii", **environment)
        assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == "|-o main#1 [red]:smile:\n"
