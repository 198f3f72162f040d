"""The command line in this process, and its recorded output."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from contextvars import copy_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from agentgit import cli
from agentgit.cli.app import app


class Ran(NamedTuple):
    """The output and the exit code of a command."""

    out: str
    err: str
    code: int


def every_command() -> Any:
    """Return the group of all commands, with their arguments and options."""
    root: Any = typer.main.get_command(app)
    root.load_all()
    return root


def run(*words: object, stdin: str | io.TextIOBase = "") -> Ran:
    """Run a command of agentgit until it exits."""
    stdout, stderr = _stream(), _stream()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        patch.setattr(sys, "argv", ["agentgit", *map(str, words)])
        patch.setattr(sys, "stdin", io.StringIO(stdin) if isinstance(stdin, str) else stdin)
        with pytest.raises(SystemExit) as ended:
            copy_context().run(cli.main)  # as in a process of its own, it leaves nothing behind
    return Ran(_written(stdout), _written(stderr), int(ended.value.code or 0))


def golden(name: str) -> str:
    return (Path(__file__).parents[1] / "golden" / name).read_text(encoding="utf-8")


def plainly(text: str) -> str:
    """Replace the ids, hashes and times, which differ from run to run."""
    text = re.sub(r"\b[0-9a-f]{64}\b", "<hash>", text)
    text = re.sub(r"\b[0-9a-f]{32}\b", "<key>", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?(Z|\+00:00)?)?", "<time>", text)
    text = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uuid>", text)
    text = re.sub(r"\bai-[0-9a-f]{8}\b", "<message>", text)
    return re.sub(r"\b\d{13,16}\b", "<id>", text)


def _stream() -> io.TextIOWrapper:
    """Make a stream that accepts text and bytes, as a pipe does."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="", write_through=True)


def _written(stream: io.TextIOWrapper) -> str:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode("utf-8")
