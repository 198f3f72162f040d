"""Tests of the examples in README.md, docs/ and the docstrings, which Sybil runs.

In a Markdown file the blocks run in order, in an empty folder, and share their names:

- A ` ```python ` block must print the ` ```text ` block right after it, or nothing if there is none.
- A ` ```console ` block runs each `$ agentgit …` line as the command line does; the expected output follows the line.
  `$ printf '%s\\n' … | agentgit …` pipes lines to the command.

In expected output, `...` stands for any text, and times, ids and hashes need not be the real ones.

This module also chooses the folder of temporary files, and how `pytest -n` distributes the tests.
"""

import atexit
import doctest
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from contextvars import copy_context
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sybil import Document, Example, Region, Sybil
from sybil.evaluators.doctest import OutputChecker
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown.lexers import FencedCodeBlockLexer
from sybil.parsers.rest import DocTestParser
from sybil.region import Lexeme
from xdist.scheduler import LoadScopeScheduling

UNSTABLE = {
    re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?\b"): "TIME",
    re.compile(r"\b\d{14,16}\b"): "ID",
    re.compile(r"\b[0-9a-f]{64}\b"): "HASH",
}
"""The patterns of values that differ from run to run, and their placeholders."""

CHECKER, FLAGS = OutputChecker(), doctest.ELLIPSIS | doctest.REPORT_UDIFF
WIDTH = "100"


class Shown(NamedTuple):
    """A command or a block, and its expected output; None for no output."""

    run: str
    writes: str | None


# -- the blocks of a document


def blocks(document: Document) -> Iterator[Region]:
    """Yield the blocks to run in a Markdown file.

    Args:
        document: The file.
    """
    found = sorted(FencedCodeBlockLexer("python|console|text")(document), key=lambda region: region.start)
    for region, after in zip_longest(found, found[1:]):
        language, source = region.lexemes["language"], region.lexemes["source"]
        if language == "console":
            yield Region(region.start, region.end, list(_commands(source)), run_commands)
        elif language == "python":
            follows = after is not None and not document.text[region.end : after.start].strip()
            shown = after.lexemes["source"] if after and follows and after.lexemes["language"] == "text" else None
            yield Region(region.start, region.end, (source, shown), run_python)


def _commands(source: str) -> Iterator[Shown]:
    for part in re.split(r"^\$ ", source, flags=re.MULTILINE)[1:]:
        command, _, writes = part.partition("\n")
        yield Shown(command, writes)


# -- running the blocks


def run_python(example: Example) -> str | None:
    """Run a Python block, and return how its output differs from the expected output, or None."""
    source, shown = example.parsed
    example.parsed = Lexeme(textwrap.dedent(source), source.offset, source.line_offset)
    with redirect_stdout(io.StringIO()) as printed:
        PythonEvaluator()(example)
    return _compare(Shown("This block", shown or ""), printed.getvalue())


def run_commands(example: Example) -> str | None:
    """Run the commands of a block in this process, and return the first failure, or None."""
    for shown in example.parsed:
        said, words = _piped(shlex.split(shown.run))
        if words[0] != "agentgit":
            return f"`{shown.run}` is no command of agentgit; show it in a block that is not run, like ```sh"
        if wrong := _compare(shown, _run(words, said)):
            return wrong
    return None


def _piped(words: list[str]) -> tuple[list[str], list[str]]:
    """Split a command line into the lines piped to a command and the words of the command."""
    if words[:2] == ["printf", r"%s\n"] and "|" in words:
        at = words.index("|")
        return words[2:at], words[at + 1 :]
    return [], words


def _run(words: list[str], said: list[str]) -> str:
    from agentgit import cli

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
        patch.setattr(sys, "argv", words)
        patch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in said)))
        with pytest.raises(SystemExit):
            copy_context().run(cli.main)  # as in a process of its own, it leaves nothing behind
    return out.getvalue()


def _compare(shown: Shown, written: str) -> str | None:
    want, got = ("".join(f"{line}\n" for line in text.rstrip().splitlines()) for text in (shown.writes or "", written))
    for pattern, same in UNSTABLE.items():
        want, got = pattern.sub(same, want), pattern.sub(same, got)
    if CHECKER.check_output(want, got, FLAGS):
        return None
    difference = CHECKER.output_difference(doctest.Example("", want), got, FLAGS)
    return f"{shown.run} does not write what is shown after it.\n{difference}"


# -- the folder of a document


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Change to an empty folder, and set a fixed terminal width without colours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("docs"))
        patch.setenv("COLUMNS", WIDTH)
        patch.setenv("NO_COLOR", "1")
        for name in ("AGENTGIT_DATABASE_URL", "AGENTGIT_DEMO_SHOP", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        yield os.getcwd()


# -- the folder of temporary files

MEMORY = Path("/dev/shm")  # noqa: S108  # Linux's file system in memory
ROOM = 2**30
"""The number of bytes that must be free in memory; the tests need a fifth of it."""


def _in_memory() -> bool:
    """Return True if temporary files can be in memory, which saves a third of the time: no test waits for a disk.

    The tests kill processes, not the machine, so the files of a killed process are as safe in memory as on a disk.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM:
        return False
    return not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC


OURS = tempfile.mkdtemp(prefix="agentgit-", dir=MEMORY) if _in_memory() else None
"""The folder in memory that this run has made, or None; its child processes find it as $TMPDIR."""

if OURS is not None:
    os.environ["TMPDIR"] = tempfile.tempdir = OURS
    # Registered before everything that has files in the folder, so that it runs last.
    atexit.register(lambda: shutil.rmtree(OURS, ignore_errors=True) if OURS not in FAILED else None)

if "AGENTGIT_HOME" not in os.environ:
    # The workspaces of tests must not be recorded in the folder of the user who runs them.
    os.environ["AGENTGIT_HOME"] = HOME = tempfile.mkdtemp(prefix="agentgit-home-")
    atexit.register(shutil.rmtree, HOME, ignore_errors=True)

FAILED: list[str | None] = []
"""The folders to keep, because a test has failed."""


def pytest_sessionfinish(exitstatus: int) -> None:
    """Keep the folder in memory if a test has failed."""
    if exitstatus != 0:
        FAILED.append(OURS)


# -- the distribution of the tests

TOGETHER = ("test_bench.py", "test_container.py", "test_docs.py", "test_notebooks.py", "test_wheel.py")
"""The files whose tests share resources that take seconds to create."""


class KeepTogether(LoadScopeScheduling):
    """A scheduler that distributes single tests, but keeps those of a document or a `TOGETHER` file in one process."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file.startswith("tests/") and not file.endswith(TOGETHER) else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files of `TOGETHER` first, so that no process waits for the last test of another."""
    items.sort(key=lambda item: not item.path.name.endswith(TOGETHER))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> KeepTogether:
    """Return the scheduler for `pytest -n`."""
    return KeepTogether(config, log)


DOCUMENTS = Sybil(parsers=[blocks], patterns=["README.md", "docs/*.md", "docs/*/*.md"], fixtures=["folder"])
SOURCES = ["agentgit/" + "*/" * depth + "*.py" for depth in range(4)]
DOCSTRINGS = Sybil(parsers=[DocTestParser(doctest.ELLIPSIS)], patterns=SOURCES, fixtures=["folder"])

_collect = (DOCUMENTS + DOCSTRINGS).pytest()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a file with examples; Sybil would parse each other module, which took a tenth of the collection."""
    if file_path.suffix == ".py" and ">>> " not in file_path.read_text("utf-8"):
        return None
    return _collect(file_path, parent)
