"""The slash commands of the chat: their syntax, and the parser of a line. Does no input or output."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentgit.checkpoints import references
from agentgit.errors import InvalidInput, NotFound
from agentgit.render.text import Line, Span, table

FORCE, YES, SYNC, RESOLVE = "--force", "--yes", "--sync", "--resolve"
EVERYWHERE, AFTER, RESULT, FILES = "--all-branches", "--after", "--result", "--files"

VARIADIC_SUFFIX = "..."
"""The suffix of the last word in the syntax of a command that takes any number of words."""


@dataclass(frozen=True)
class SlashCommandSpec:
    """The form of one slash command."""

    name: str
    words: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    help: str = ""

    @property
    def usage(self) -> str:
        """The usage line of the command."""
        options = [f"[{name} {value}]" if value else f"[{name}]" for name, value in self.options.items()]
        return " ".join([f"/{self.name}", *self.words, *options])

    @property
    def required_count(self) -> int:
        """The number of words that it needs."""
        return sum(not word.startswith("[") for word in self.words)

    def accepts(self, count: int) -> bool:
        """Return whether the command accepts this number of words."""
        is_variadic = bool(self.words) and self.words[-1].endswith(VARIADIC_SUFFIX)
        return count >= self.required_count and (is_variadic or count <= len(self.words))


_YES_OPTION = {YES: ""}
_ROLLBACK_OPTIONS = {FORCE: "", **_YES_OPTION}

COMMANDS = (
    SlashCommandSpec("checkpoint create", ("[NAME]", "[DESCRIPTION]"), help="Create a checkpoint here."),
    SlashCommandSpec("checkpoint list", help="List the checkpoints that were created on request."),
    SlashCommandSpec(
        "checkpoint restore", ("REF",), _ROLLBACK_OPTIONS, "Roll back to a checkpoint; the same as /rollback."
    ),
    SlashCommandSpec(
        "checkpoint undo", (), _ROLLBACK_OPTIONS, "Roll back to the newest checkpoint created on request."
    ),
    SlashCommandSpec(
        "undo",
        ("[N]",),
        {FILES: ""} | _ROLLBACK_OPTIONS,
        "Go back one turn, or N turns, on a new branch; --files: only the last file edit, or N.",
    ),
    SlashCommandSpec("redo", (), _ROLLBACK_OPTIONS, "Take back the last undo or rollback."),
    SlashCommandSpec("rollback", ("REF",), _ROLLBACK_OPTIONS, "Roll back to a checkpoint, on a new branch."),
    SlashCommandSpec("plan", ("REF",), help="Show what a rollback would do; nothing is changed."),
    SlashCommandSpec(
        "rewind",
        ("[MESSAGE]",),
        _ROLLBACK_OPTIONS,
        "Roll back to before one of your messages, and edit it; without MESSAGE, choose it from a list.",
    ),
    SlashCommandSpec(
        "rewind-files", ("RESTORE_POINT",), _ROLLBACK_OPTIONS, "Restore only the files, to before a user's message."
    ),
    SlashCommandSpec("resume", ("OPERATION",), {FORCE: ""}, "Finish an interrupted rollback or switch."),
    SlashCommandSpec(
        "resolve",
        ("INVOCATION", "OUTCOME"),
        {RESULT: "JSON"},
        "Record the outcome of a call: happened or did-not-happen.",
    ),
    SlashCommandSpec("tree", help="Draw the branches."),
    SlashCommandSpec("log", ("[N]",), help="List the checkpoints, or the newest N."),
    SlashCommandSpec("tool-track", ("[N]",), help="List the tool calls, or the last N."),
    SlashCommandSpec(
        "search", ("TEXT...",), {EVERYWHERE: "", AFTER: "CURSOR"}, "Find messages, tool calls and named checkpoints."
    ),
    SlashCommandSpec("tag", ("[REF]", "NAME"), help="Tag a checkpoint, by default the current one."),
    SlashCommandSpec("untag", ("NAME",), help="Remove a tag; the checkpoint stays."),
    SlashCommandSpec("tags", help="List the tags of the session."),
    SlashCommandSpec("diff", ("[A]", "[B]"), help="Compare checkpoints, or show what the last turn changed."),
    SlashCommandSpec("compare", ("REF",), help="Show what this branch and REF did since they diverged."),
    SlashCommandSpec("merge", ("REF",), {RESOLVE: "SIDE"}, "Merge a branch into this one; --resolve ours or theirs."),
    SlashCommandSpec("cherry-pick", ("REF",), help="Copy what a checkpoint changed."),
    SlashCommandSpec("branches", help="List the branches."),
    SlashCommandSpec("fork", ("[NAME]",), help="Continue on a new branch; the world does not change."),
    SlashCommandSpec(
        "switch",
        ("NAME",),
        {SYNC: "HOW"} | _ROLLBACK_OPTIONS,
        "Continue on another branch; --sync world, note or ignore.",
    ),
    SlashCommandSpec("continue", help="Continue an interrupted turn."),
    SlashCommandSpec("help", help="Show this help."),
    SlashCommandSpec("quit", help="Leave; Ctrl-D does the same."),
)

HELP_NOTES = (
    "Anything else is a message to the agent; // starts a message with a slash. Quote names that contain spaces.",
    "REF is a checkpoint, like main#3, HEAD~1, a name or an id. --yes: do not ask.",
    "--force: keep what cannot be reversed, and restore files that others changed.",
)
"""The lines that the help shows below the commands."""

_FORMS = {form.name: form for form in COMMANDS}


@dataclass(frozen=True)
class SlashCommand:
    """A parsed slash command."""

    form: SlashCommandSpec
    words: list[str]
    options: Mapping[str, str]

    def word(self, index: int) -> str | None:
        """Return a word; None if there is none at that index."""
        return self.words[index] if index < len(self.words) else None

    def number(self) -> int | None:
        """Return the first word as a number from 1; None if there is none."""
        word = self.word(0)
        if word is not None and not (word.isascii() and word.isdigit() and len(word) < 17 and int(word) > 0):
            raise InvalidInput(f"{word!r} is not a positive number. Usage: {self.form.usage}")
        return None if word is None else int(word)


def parse(line: str) -> SlashCommand:
    """Parse a line that begins with a slash.

    Example:
        >>> order = parse('/rollback "before payment" --force')
        >>> order.form.name, order.words, dict(order.options)
        ('rollback', ['before payment'], {'--force': ''})
    """
    try:
        tokens = shlex.split(line[1:])
    except ValueError as error:
        raise InvalidInput(f"Invalid command: {error}. Close each quote that you open.") from error
    form, rest = _find_form(tokens)
    words, options = _split_options(form, rest)
    if not form.accepts(len(words)):
        raise InvalidInput(f"Usage: {form.usage}. Put quotes around a name with spaces.")
    return SlashCommand(form, words, options)


def _find_form(tokens: Sequence[str]) -> tuple[SlashCommandSpec, Sequence[str]]:
    """Find the command that the first two words, or the first, name; return it with the remaining words."""
    for count in (2, 1):
        name = " ".join(tokens[:count]).lower()
        form = _FORMS.get(name)
        if form is not None:
            return form, tokens[count:]
    typed_name = " ".join(tokens[:2])
    similar = references.similar_names(typed_name, _FORMS) or references.similar_names(" ".join(tokens[:1]), _FORMS)
    raise NotFound(
        f"There is no command /{typed_name}. /help lists the commands; // starts a message with a slash.",
        near=tuple(f"/{name}" for name in similar),
    )


def _split_options(form: SlashCommandSpec, rest: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separate the words from the options."""
    words: list[str] = []
    options: dict[str, str] = {}
    remaining = iter(rest)
    for word in remaining:
        name, equals, value = (YES if word == "-y" else word).partition("=")
        if not name.startswith("--"):
            words.append(word)
            continue
        value_name = form.options.get(name)
        if value_name is None or (equals and not value_name):
            raise InvalidInput(f"/{form.name} has no {word}. Usage: {form.usage}")
        options[name] = value if equals or not value_name else next(remaining, "")
        if value_name and not options[name]:
            raise InvalidInput(f"{name} needs a value. Usage: {form.usage}")
    return words, options


def complete(prefix: str, word: str) -> list[str]:
    """Return the completions of a word: commands, or the second words and options of one.

    Example:
        >>> complete("", "/ta"), complete("/checkpoint ", "re"), complete("/switch main ", "--s")
        (['/tag', '/tags'], ['restore'], ['--sync'])
    """
    names, typed_words = list(_FORMS), prefix.removeprefix("/").split()
    if not prefix:
        candidates = [f"/{name.split()[0]}" for name in names]
    elif not prefix.startswith("/"):
        candidates = []
    elif word.startswith("-"):
        candidates = [*_find_form(typed_words)[0].options]
    else:
        candidates = [name.split()[1] for name in names if " " in name and name.split()[:1] == typed_words]
    return [candidate for candidate in dict.fromkeys(candidates) if candidate.startswith(word)]


def lines(width: int) -> list[Line]:
    """Return the help as lines."""
    rows = [[Span(" ".join([f"/{form.name}", *form.words]), "reference"), Span(form.help)] for form in COMMANDS]
    return [*table(rows, width=width, wrap_last=True), *((Span(note, "dim"),) for note in HELP_NOTES)]
