"""Each face names the next step in its own words: a command, a slash command, an MCP tool or a button."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from spoken_words import PYTHON, SHELL

import agentgit
from agentgit.render.words import CHAT, COMMAND_LINE, MAGICS, MCP, PAGE, Face, reword

PACKAGE = Path(agentgit.__file__).parent
HAVE_WORDS_OF_THEIR_OWN = {"cli", "mcp", "notebook", "web", "demo", "conformance", "testing"}

FOR_PROGRAMS = (
    # A wrong argument that only a program can pass, or a graph or a tool to be changed: the next step is in its code.
    "(undo).",
    "Pass what to_dict() returned",
    "agentgit.open(..., effects=)",
    "effects={",
    "effects must be a mapping",
    "exclude_metadata must be",
    "executor must be",
    "Give the graph to run",
    "failed_on=",
    "graph.get_state_history(config)",
    "identity_args=",
    "is not a Checkpoint",
    "is not an environment",
    "is one path",
    "its event loop runs",
    "overrides run() or arun()",
    "repo.graph(...)",
    "call invoke() with",
    "Call agent.graph instead",
    "graph.compile(",
    "makes the calls of a template again",
    "Keyring takes",
    "retention must be",
    "template='SESSION@CHECKPOINT'",
    "trust must be",
    # The saver that a program creates, and the engine of its containers.
    "SQLModelSaver",
    "create_engine(",
    "engine=",
    "timeout=",
    "with list()",
    # Notes below the traceback of an error.
    "agent.at() continues there",
    "agent.exploration(",
    # What developers of agentgit do wrong.
    "agentgit.render.display",
    "agentgit.store.schema.schema",
    # The format of a connection string, and a label.
    "host=…",
    "://… is not",
    "effects of agentgit.open",
)
"""Parts of the messages that speak Python on every face."""

SHELL_IN_PYTHON = (
    # Who looks after the database does so with the command line.
    "agentgit fsck",
    "agentgit audit verify",
    "agentgit db ",
    "agentgit users add",
    "agentgit --tenant NAME users add",
    "pip install --upgrade agentgit",
    # The ends of `agentgit db` commands, the options of other programs, and a line of `agentgit status`.
    "check --deep",
    "downgrade 7 --yes",
    "--change=LABEL",
    "to finish it: agentgit resume",
)
"""Parts of the messages that name a command in Python, too."""


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts below a node, without docstrings. A placeholder becomes `7`, or `'x'` with `!r`."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=parts):
                yield "".join(
                    part.value if isinstance(part, ast.Constant) else "'x'" if part.conversion == ord("r") else "7"
                    for part in parts
                )
                for part in parts:
                    yield from _texts(part) if isinstance(part, ast.FormattedValue) else ()
            case _:
                yield from _texts(child)


def _reads_like_a_message(text: str) -> bool:
    is_code = re.search(r"\b(?:SELECT|PRAGMA|CREATE|USING|WHERE)\b|<[\w]+[ >]|^\w+\(|^ [\w-]+=|^/ ", text)
    return " " in text and not is_code


def _messages(paths: Iterable[Path]) -> list[str]:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in paths)
    return sorted({text for tree in trees for text in _texts(tree) if _reads_like_a_message(text)})


MESSAGES = _messages(
    path
    for path in PACKAGE.rglob("*.py")
    if path.relative_to(PACKAGE).parts[0] not in HAVE_WORDS_OF_THEIR_OWN and path.name != "words.py"
)
"""Every text of the library that a face may show."""


def _without(messages: list[str], parts: tuple[str, ...]) -> list[str]:
    return [text for text in messages if not any(part in text for part in parts)]


@pytest.mark.parametrize("face", [COMMAND_LINE, CHAT, MCP, PAGE], ids=["command line", "chat", "MCP", "page"])
def test_no_face_speaks_python(face: Face) -> None:
    """What a face shows has no call and no argument of Python left."""
    shown = [reword(text, face) for text in _without(MESSAGES, FOR_PROGRAMS)]
    assert [words for words in shown if PYTHON.search(words)] == []


def test_a_page_names_no_command() -> None:
    """What a page shows has neither a command nor an option."""
    shown = [reword(text, PAGE) for text in _without(MESSAGES, (*FOR_PROGRAMS, *SHELL_IN_PYTHON[-4:]))]
    assert [words for words in shown if SHELL.search(words)] == []


@pytest.mark.parametrize("room", ["cli", "mcp", "web/pages"])
def test_what_a_face_says_itself_has_no_python(room: str) -> None:
    """The messages of the command line, the MCP server and the pages name no call and no argument of Python."""
    texts = _messages((PACKAGE / room).rglob("*.py"))
    assert len(texts) > 20
    assert [text for text in texts if PYTHON.search(text)] == []


def test_python_names_no_command_and_no_button() -> None:
    """What Python raises has no option, slash command or button, and a command only where nothing else does it."""
    assert [text for text in _without(MESSAGES, SHELL_IN_PYTHON) if SHELL.search(text) or "button" in text] == []


@pytest.mark.parametrize("part", [*FOR_PROGRAMS, *SHELL_IN_PYTHON])
def test_each_exception_is_still_needed(part: str) -> None:
    """The lists of exceptions above name only messages that exist."""
    assert any(part in text for text in MESSAGES)


@pytest.mark.parametrize(
    "face", [COMMAND_LINE, CHAT, MAGICS, MCP, PAGE], ids=["command line", "chat", "magics", "MCP", "page"]
)
def test_each_row_of_a_table_has_a_message(face: Face) -> None:
    """A row goes with the last message that needs it."""
    texts = [*MESSAGES, *(reword(text, COMMAND_LINE) for text in MESSAGES)]
    assert [pattern for pattern, _ in face if not any(re.search(pattern, text) for text in texts)] == []


def test_arguments_of_a_recorded_call_stay_as_they_are() -> None:
    """A tool of the user may have an argument `force`, which is not an option of agentgit."""
    message = "Nothing was done. push(branch='a', force=True): it cannot be undone. force=True keeps it."
    assert reword(message, COMMAND_LINE).startswith("Nothing was done. push(branch='a', force=True): it cannot")
    assert reword(message, PAGE).endswith("cannot be undone. Choosing “anyway” keeps it.")


@pytest.mark.parametrize(
    ("face", "words"),
    [
        (COMMAND_LINE, "agentgit switch SESSION 'my plan' --sync world"),
        (CHAT, "/switch 'my plan' --sync world"),
        (MAGICS, "%agentgit switch 'my plan' --sync world"),
        (MCP, "switch, branch='my plan' and sync=world"),
    ],
)
def test_a_name_with_a_space_stays_quoted(face: Face, words: str) -> None:
    """A command can be copied and run."""
    assert reword("agent = agent.switch('my plan', sync='world')", face) == words
