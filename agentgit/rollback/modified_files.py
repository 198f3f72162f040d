"""Detects which files a tool call may modify, from its declared effect or from its name and arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentgit.effects.kinds import WORKSPACE

FILE_TOOL = re.compile(
    "(?:^|_)(?:write|save|append|overwrite|update|modify|touch|edit|multi_?edit|insert|(?:search_?|str_?)?replace"
    "|create|new|add|delete|remove|unlink|move|rename|copy|patch|apply_?(?:patch|diff))"
)
"""Finds the verb of a tool that modifies the files named in its arguments, in its name as `snake_case`."""

SHELL_TOOL = re.compile(
    "^(?:run|exec|execute)$|(?:^|_)(?:bash|z?sh|cmd|(?:local_?|power_?)?shell|terminal|console|command|i?python|jupyter"
    "|code_?(?:interpreter|execution)|(?:run|exec|execute)_?(?:bash|cmd|shell|command|python|code|cell|script)"
    "|mkdir|rmdir|(?:create|make|delete|remove|move|rename|copy)_?(?:directory|folder)"
    "|git_?(?:checkout|reset|restore|stash|merge|rebase|pull|apply))(?:_|$)"
)
"""Finds a tool that may modify any file or whole directories, in the same way."""

PATH_ARGUMENT = re.compile(
    "(?:target|absolute|relative|notebook|source|destination|from|to|old|new|output)?(?:file|path|filename|filepath)s?"
    "|target|source|src|destination|dest|dst|oldname|newname"
)
"""Matches the name of an argument that holds paths, without its separators."""

PATCH_ARGUMENTS = ("patch", "diff", "input", "patchtext")

PATCH_FILE_LINE = re.compile(
    r"^(?:\*\*\* (?:Add|Update|Delete) File: |\*\*\* Move to: |(?:---|\+\+\+) )(?P<path>[^\t\r\n]+)", re.MULTILINE
)
"""Matches the lines of a patch that name a file, in the unified and in the `*** Update File:` format."""

READING_COMMANDS = frozenset({"view", "read", "cat", "list"})
"""Values of the argument `command` with which an editing tool only reads."""


def paths_of(tool_name: str, effect: str, args: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the files that a call may modify: empty if it may be any file; None if it modifies none."""
    name = re.sub("(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", tool_name).lower()
    if SHELL_TOOL.search(name):
        return ()
    if (effect != WORKSPACE and not FILE_TOOL.search(name)) or str(args.get("command")) in READING_COMMANDS:
        return None
    paths = named_paths(args)
    return paths if paths or effect == WORKSPACE or "file" in name or "patch" in name else None


def named_paths(args: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths in the arguments of a call, by the names of the arguments."""
    return tuple(dict.fromkeys(_paths_in_arguments(args)))


def _paths_in_arguments(args: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths in the arguments, and those that a patch names."""
    for name, value in args.items():
        normalized = re.sub(r"[^a-z0-9]", "", name.lower())
        if PATH_ARGUMENT.fullmatch(normalized):
            yield from _paths_in_value(value)
        elif normalized in PATCH_ARGUMENTS and isinstance(value, str):
            yield from _paths_in_patch(value)


def _paths_in_value(value: Any) -> Iterator[str]:
    """Yield the paths in an argument: a path, a list, or objects with a path, as in `[{"path": …}]`."""
    if isinstance(value, str | os.PathLike):
        if path := os.fsdecode(value):
            yield path
    elif isinstance(value, Mapping):
        yield from _paths_in_arguments(value)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths_in_value(item)


def _paths_in_patch(patch: str) -> Iterator[str]:
    for match in PATCH_FILE_LINE.finditer(patch):
        path = match["path"].strip()
        is_unified = match[0].startswith(("---", "+++"))
        if path != "/dev/null":
            yield re.sub(r"^[ab]/", "", path) if is_unified else path
