"""Messages of the library in the words of a face: a command, a slash command, an MCP tool, or what a page offers.

Errors, plans and reports name the next step as a Python call. A face shows them with the words of its own users.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Face: TypeAlias = Sequence[tuple[str, str]]
"""The words of a face: regular expressions for Python words, each with its replacement. They apply in their order."""

PYTHON: Face = ()
"""The words of the library itself."""


def reword(text: str, face: Face) -> str:
    """Return a message in the words of a face.

    Example:
        >>> reword("Nothing was done. force=True keeps what cannot be reversed.", COMMAND_LINE)
        'Nothing was done. --force keeps what cannot be reversed.'
        >>> reword("To finish, call repo.resume(7).", CHAT)
        'To finish, run /resume 7.'
    """
    for pattern, words in face:
        text = re.sub(pattern, words, text)  # `re` keeps the compiled patterns
    return text


def reword_reasons(value: Any, face: Face) -> Any:
    """Return the JSON-like data of a plan or report, with its reasons in the words of a face.

    Example:
        >>> reword_reasons({"steps": [{"why": "see session.operations()"}]}, PAGE)
        {'steps': [{'why': 'see “Operations”'}]}
    """
    if isinstance(value, list):
        return [reword_reasons(item, face) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {key: _reword_item(key, item, face) for key, item in value.items()}


def _reword_item(key: str, item: Any, face: Face) -> Any:
    if key == "invocation":  # its arguments and its result are the user's own
        return item
    return reword(item, face) if key in _REASONS and isinstance(item, str) else reword_reasons(item, face)


_REASONS = ("why", "reason", "problem")
"""The keys of the texts in a plan or report."""

_NAME = r"(?:'([\w./@~#-]+)'|('[^']*'|\"[^\"]*\"))"
"""The repr of a name, whose quotes are left out (group 1) or kept (group 2)."""

_ARG = r"(?<!\()(?<!, )\b"
"""The beginning of an argument that stands alone. One in the parentheses of a tool call is the user's own."""

_RESOLVE = r"call repo\.resolve\((\w+), 'happened'\) or repo\.resolve\(\w+, 'did_not_happen'\)"
_SWITCH_WORLD = rf"agent = agent\.switch\({_NAME}, sync='world'\)"
_AT_HEAD = rf"agent\.(?:at|switch)\({_NAME}\) returns an agent at its head\."
_TRUST = r"wrap (?:the|a) graph[^,]*, or name ([^,]+?) with trust=\[\.\.\.\]"
_SIDES = r"resolve='ours', 'theirs', or a mapping from keys to these"
_WORKSPACE = r"Wrap the graph with workspace=\.\.\. to"


_PROGRAM = (
    (r" If both calls are intended, wrap with fence='off'\.", ""),
    (
        r"every user message if auto_checkpoint is 'turn' or 'tool'",
        "every user message with an automatic one before it",
    ),
    (r" If a node calls it where the graph does not show it, pass check_effects=False\.", ""),
)
"""What helps only the author of a program."""

_COMMANDS = [
    *_PROGRAM,
    (_RESOLVE, r"run agentgit resolve \1 happened, or did-not-happen"),
    (r"call repo\.resolve\((\w+), 'happened'\)", r"run agentgit resolve \1 happened"),
    (r"call repo\.resume\((\d+)\)", r"run agentgit resume \1"),
    (r"repo\.resume\((\d+), force=True\)", r"agentgit resume \1 --force"),
    (
        rf"call repo\.session\({_NAME}\)\.rewind_files\((\d+), force=True\)",
        r"run agentgit rewind-files \1\2 \3 --force",
    ),
    (_AT_HEAD, "Try again."),
    (_SWITCH_WORLD, r"agentgit switch SESSION \1\2 --sync world"),
    (r"agent\.fork\(\)", "agentgit fork SESSION"),
    (r" with agent\.invoke\(None\)", " with /continue in agentgit chat"),
    (r"session\.(operations|branches|log)\(\)", r"agentgit \1 SESSION"),
    (r"session\.tool_track\(\)", "agentgit tool-track SESSION"),
    (r"session\.tags\(\)", "agentgit tag SESSION"),
    (rf"session\.untag\({_NAME}\)", r"agentgit tag SESSION --delete \1\2"),
    (r"session\.sharing\.links\(\)", "agentgit link list SESSION"),
    (r"session\.sharing\.members\(\)", "agentgit members SESSION"),
    (rf"session\.sharing\.share\({_NAME}, role='(\w+)'\)", r"agentgit share SESSION \1\2 --role \3"),
    (r"repo\.sessions\(\)", "agentgit sessions"),
    (r"repo\.(users|keys)\.list\(\)", r"agentgit \1 list"),
    (rf"repo\.users\.enable\({_NAME}\)", r"agentgit users enable \1\2"),
    (r"create=True creates one; or name another\.", "agentgit demo creates one; or name another with --db PATH."),
    (r"repo\.wrap\(graph, session=\.\.\.\) creates", "agentgit demo or agentgit chat MODULE:GRAPH creates"),
    (_TRUST, r"name \1 with --trust MODULE"),
    (_WORKSPACE, "Use agentgit chat --workspace DIR to"),
    (rf"Workspace\.restore\({_NAME}, paths=\[[^\]]*\]\)", r"agentgit workspace restore \1\2 PATH"),
    (r"Workspace\.list\(\)", "agentgit workspace list"),
    (r"Workspace\(DIR, STORAGE\)", "agentgit workspace list --dir DIR --store STORAGE"),
    (r"Pass (?:it|them): agentgit\.open\(.*?\)\), or (\$\S+)", r"Set \1"),
    (r"Keyring\.new_key\(\)", "agentgit db keys --new"),
    (_SIDES, "--resolve ours, --resolve theirs, or --resolve KEY=ours"),
]

_OPTIONS = (
    (r"pass files=False", "add --no-files"),
    (rf"{_ARG}(files|conversation)=False", r"--no-\1"),
    (rf"{_ARG}force=True", "--force"),
    (rf"{_ARG}(sync|replay|tools)='(\w+)'", r"--\1 \2"),
    (rf"{_ARG}after={_NAME}", r"--after \1\2"),
    (r"^(on|request)_(error|drift|id)\b", r"--\1-\2"),
    (r"\bmax_calls\b", "--max-calls"),
)

COMMAND_LINE: Face = [*_COMMANDS, *_OPTIONS]
"""Commands and options."""

GRAPH: Face = [
    (_AT_HEAD, "Run again."),
    (_SWITCH_WORLD, r"repo.session(...).switch('\1\2', sync='world')"),
    (r", or work on a branch of your own with agent\.fork\(\)\.", "."),
    (r" Or branch off with agent\.fork\(\)\.", ""),
    (r"agent\.invoke\(None\)", "graph.invoke(None, config)"),
]
"""The words of a served graph, which has no agent."""

CHAT: Face = [
    (_AT_HEAD, r"/switch \1\2 goes there."),
    (_SWITCH_WORLD, r"/switch \1\2 --sync world"),
    (r" with agent\.invoke\(None\)", " with /continue"),
    (r"session\.tags\(\)", "/tags"),
    (rf"session\.untag\({_NAME}\)", r"/untag \1\2"),
    (_TRUST, r"name \1 with $AGENTGIT_TRUST"),
    (_WORKSPACE, "Start the chat with --workspace DIR to"),
    (_SIDES, "--resolve ours, or --resolve theirs"),
    *COMMAND_LINE,
    (r"agentgit (resume|resolve|log|tool-track|branches|fork)\b(?: SESSION\b)?", r"/\1"),
]
"""Slash commands, and commands where there is none."""

MAGICS: Face = [
    (_AT_HEAD, r"%agentgit switch \1\2 goes there."),
    (_SWITCH_WORLD, r"%agentgit switch \1\2 --sync world"),
    (r"session\.(log|branches)\(\)", r"%agentgit \1"),
    (r"session\.tool_track\(\)", "%agentgit tool-track"),
    (r"session\.tags\(\)", "%agentgit tag"),
    (rf"session\.untag\({_NAME}\)", r"%agentgit tag --delete \1\2"),
    (_TRUST, r"name \1 with %agentgit trust MODULE"),
    (rf"{_ARG}force=True", "--force"),
    (rf"{_ARG}sync='(\w+)'", r"--sync \1"),
]
"""The magics of a notebook. What has none stays a call of Python, which a cell runs."""

MCP: Face = [
    (rf"check, then {_RESOLVE}", r"a person must check, then run agentgit resolve \1 happened, or did-not-happen"),
    (r"call repo\.resume\((\d+)\)", r"call resume with operation=\1"),
    (r"repo\.resume\((\d+), force=True\)", r"resume with operation=\1 and force=true"),
    (_SWITCH_WORLD, r"switch, branch=\1\2 and sync=world"),
    (r"agent\.fork\(\)", "fork"),
    (r" with agent\.invoke\(None\)", ""),
    (r"session\.(operations|tool_track|branches)\(\)", r"\1"),
    (r"session\.log\(\)", "list_checkpoints"),
    (r"session\.tags\(\)", "tree"),
    (r"repo\.sessions\(\)", "sessions"),
    (r" repo\.wrap\(graph, session=\.\.\.\) creates one\.", ""),
    (_TRUST, r"the person who started this server must name \1 with --trust MODULE"),
    (rf" {_WORKSPACE} keep its files from then on\.", ""),
    (rf"{_ARG}force=True keeps", "force=true, if this server allows it, keeps"),
    (rf"{_ARG}force=True", "force=true"),
    (rf"{_ARG}(files|conversation)=False", r"\1=false"),
    (rf"{_ARG}(sync|replay|tools|after)={_NAME}", r"\1=\2\3"),
    *_COMMANDS,
]
"""Tools and their arguments, and commands for the person who runs the server where there is no tool."""

PAGE: Face = [
    *_PROGRAM,
    (rf"check, then {_RESOLVE}", "check, then choose below what happened"),
    (r"call repo\.resolve\(\w+, 'happened'\)", "say so below"),
    (r"call repo\.resume\(\d+\)", "resume it"),
    (r"repo\.resume\(\d+, force=True\)", "Resuming without the failing steps"),
    (r"resume with force=True", "resume without the steps that fail"),
    (r"With force:", "If you choose “anyway”:"),
    (rf" with {_ARG}force=True", " “anyway”"),
    (rf"{_ARG}force=True", "Choosing “anyway”"),
    (_AT_HEAD, "Reload the page."),
    (
        rf"Restore it with {_SWITCH_WORLD}, tell the model with sync='note', or continue anyway with sync='ignore'",
        r"Switch to branch \1\2, and choose there what to do about the world",
    ),
    (rf"with {_SWITCH_WORLD}", r"by a switch to branch \1\2"),
    (r"agent\.fork\(\)", "“Fork”"),
    (r" with agent\.invoke\(None\)", ""),
    (r"session\.operations\(\)", "“Operations”"),
    (r"session\.(?:branches|log|tags)\(\)", "“Tree”"),
    (r"session\.tool_track\(\)", "“Tool calls”"),
    (r"session\.sharing\.(?:links|members)\(\)", "“Sharing”"),
    (r"repo\.sessions\(\)", "“Sessions”"),
    (r"repo\.users\.list\(\)", "“Users”"),
    (r"repo\.keys\.list\(\)", "“Keys”"),
    (r": repo\.users\.enable\([^)]*\)", " under “Users”"),
    (r": session\.sharing\.share\([^)]*\)", " under “Sharing”"),
    (r": session\.untag\([^)]*\)", ""),
    (r" create=True creates one; or name another\.", ""),
    (r" repo\.wrap\(graph, session=\.\.\.\) creates one\.", ""),
    (_TRUST, r"the person who started this server must name \1"),
    (rf" {_WORKSPACE} keep its files from then on\.", ""),
    (r"; or call repo\.session\([^)]*\)\.rewind_files\([^)]*\), which[^.]*", ""),
    (r"\. To restore it: Workspace\.restore\([^)]*\)", ""),
    (r" Workspace\.list\(\) lists them\.", ""),
    (r" If it is yours, open it once: Workspace\(DIR, STORAGE\)\.", ""),
    (r"Pass (?:it|them): agentgit\.open\(.*", "The person who runs this server must give it."),
    (r" Keyring\.new_key\(\) generates one\.", ""),
    (_SIDES, "one side or the other"),
    (r"pass files=False, or sync='ignore' for a switch", "leave them out, or leave the world alone in a switch"),
    (r"pass files=False", "leave out the files"),
    (rf"{_ARG}(files|conversation)=False", r"leaving out the \1"),
    (rf"{_ARG}(?:sync|replay|tools)='(\w+)'", r"“\1”"),
    (rf"{_ARG}after={_NAME}", r"\1\2"),
    (r" \(check with agentgit fsck\)", ""),
    (
        r"(?:(?<=[.;] )|^)(?:(?![.;] ).)*?\b(?:agentgit (?:fsck|audit|db|users|--tenant)|pip install).*",
        "Ask the person who runs this server.",
    ),
]
"""The names of pages and buttons."""
