"""What the command line writes to a terminal: colours where they are wanted, and characters that it can show."""

import io
import re
import sys

import pytest

from agentgit.cli import output
from agentgit.render.text import Span


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]  # StringIO says None
        return self._encoding

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8", **environment: str) -> str:
    """Write one line in a style to a terminal of that kind."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm-256color"} | environment).items():
        monkeypatch.setenv(name, value)
    stream = Terminal(encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    output.show([(Span("├─● ", "dim"), Span("main#1 [red]:smile:", "reference"))])
    return stream.getvalue()


def test_a_terminal_gets_colours_and_nothing_is_markup(monkeypatch):
    """Styles become escapes on a terminal; brackets and colons in the text stay what they are."""
    shown = on_terminal(monkeypatch)
    assert "\x1b[" in shown
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == "├─● main#1 [red]:smile:\n"


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours_where_they_are_not_wanted(monkeypatch, environment):
    """NO_COLOR and a dumb terminal get plain text."""
    assert on_terminal(monkeypatch, **environment) == "├─● main#1 [red]:smile:\n"


def test_an_output_without_box_characters_gets_ascii(monkeypatch):
    """Where the encoding cannot take the lanes, they are drawn in ASCII, on a terminal and in a pipe."""
    for environment in ({}, {"NO_COLOR": "1"}):
        shown = on_terminal(monkeypatch, "ascii", **environment)
        assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == "|-o main#1 [red]:smile:\n"
