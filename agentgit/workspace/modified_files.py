"""Detects which files a tool call may modify, from the declaration of the tool or from its name and arguments."""

from __future__ import annotations

import inspect
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from agentgit.effects.effects import declared_on
from agentgit.effects.kinds import kind_of
from agentgit.errors import InvalidInput

Tool = TypeVar("Tool")

ATTRIBUTE = "__agentgit_modifies__"
"""The attribute of a decorated tool or function that holds the names of the arguments with paths."""


def _split_words(words: str) -> frozenset[str]:
    return frozenset(words.split())


FILE_TOOLS = _split_words("""
    write writefile writefiles writetofile writetextfile savefile saveastextfile createfile createtextfile newfile
    addfile appendfile appendtofile overwritefile updatefile modifyfile touch
    edit editfile editfiles multiedit editblock searchreplace strreplace strreplaceinfile strreplacebasededittool
    strreplaceeditor texteditor replace replaceinfile replacelines replaceregex replacesymbolbody replacecontent
    insert insertline insertlines insertintofile insertatline insertaftersymbol insertbeforesymbol deletelines
    delete deletefile deletefiles filedelete removefile unlink
    move movefile movefiles filemove renamefile rename copy copyfile filecopy
    notebookedit editnotebook editnotebookcell
    applypatch applydiff patch patchfile
""")
"""Names of tools that modify the files named in their arguments. Lowercase, without separators between words."""

SHELL_TOOLS = _split_words("""
    bash sh zsh shell localshell powershell terminal console cmd exec execute executebash executecommand executeshell
    executeshellcommand containerexec run runbash runcommand runcmd runshell runshellcommand runterminalcmd
    runterminalcommand runinterminal shellcommand shellexec shelltool bashtool systemcommand
    python pythonrepl pythonreplast pythoninterpreter ipython executepython runpython runcode executecode
    codeinterpreter codeexecution jupyter runcell executecell runscript
    createdirectory createfolder makedirectory mkdir deletedirectory deletefolder removedirectory rmdir movedirectory
    renamedirectory copydirectory gitcheckout gitreset gitrestore gitstash gitmerge gitrebase gitpull gitapply
""")
"""Names of tools that may modify any file or whole directories, in the same form."""

PATH_ARGUMENTS = _split_words("""
    path paths file files filename filenames filepath filepaths targetfile targetpath target absolutepath
    relativepath notebookpath sourcepath source src destinationpath destination dest dst frompath topath oldpath
    newpath oldname newname outputpath outputfile
""")
"""Names of arguments that hold paths, in the same form."""

PATCH_ARGUMENTS = ("patch", "diff", "input", "patchtext")

PATCH_FILE_LINE = re.compile(
    r"^(?:\*\*\* (?:Add|Update|Delete) File: |\*\*\* Move to: |(?:---|\+\+\+) )(?P<path>[^\t\r\n]+)", re.MULTILINE
)
"""Matches the lines of a patch that name a file, in the unified and in the `*** Update File:` format."""

READING_COMMANDS = frozenset({"view", "read", "cat", "list"})
"""Values of the argument `command` with which an editing tool only reads."""


@dataclass(frozen=True)
class Modifies:
    """The files that a tool call may modify."""

    paths: tuple[str, ...] = ()
    everything: bool = False


EVERYTHING = Modifies(everything=True)

_declared = defaultdict[str, set[tuple[str, ...]]](set)
"""What is declared about tools of this process, by name, for calls of which only the name is known."""


def modifies_files(*arguments: str) -> Callable[[Tool], Tool]:
    """Declare that a tool modifies files, so that they are saved before each call.

    Args:
        arguments: The names of the arguments that hold a path, a list of paths, or objects with a path. Without any,
            the tool may modify every file of the workspace.

    Raises:
        InvalidInput: The tool has no such argument, or the decorated object is not a function or tool.

    Example:
        >>> @modifies_files("report")
        ... def publish(report: str, title: str) -> str: ...
        >>> paths_of("publish", publish, {"report": "out/june.md", "title": "June"})
        Modifies(paths=('out/june.md',), everything=False)
    """

    def declare(tool: Tool) -> Tool:
        if unknown := set(arguments) - (_parameter_names(tool) or set(arguments)):
            raise InvalidInput(
                f"{_name_of(tool)} has no argument {', '.join(sorted(unknown))}. Name those with a path."
            )
        for candidate in (getattr(tool, "func", None), getattr(tool, "coroutine", None), tool):
            try:
                object.__setattr__(candidate, ATTRIBUTE, arguments)  # pydantic's __setattr__ refuses unknown names
            except (AttributeError, TypeError):
                continue  # None, or a method, which accepts no attributes
            _declared[_name_of(tool)].add(arguments)
            return tool
        raise InvalidInput(f"{tool!r} cannot be declared. Decorate a function or a tool.")

    return declare


def paths_of(tool_name: str, tool: Any, args: Mapping[str, Any]) -> Modifies | None:
    """Return the files that a call may modify, by the declaration of its tool or else by its name; None for none."""
    declared_arguments = _declared_arguments(tool_name, tool)
    if declared_arguments is not None:
        return _modified_paths(path for name in declared_arguments for path in _paths_in_value(args.get(name)))
    effect = declared_on(tool)
    if effect is not None and kind_of(effect.kind).is_neutral:
        return None
    names = set(_tool_names(tool_name))
    if names & SHELL_TOOLS:
        return EVERYTHING
    if not names & FILE_TOOLS or str(args.get("command")) in READING_COMMANDS:
        return None
    return _modified_paths(_paths_in_arguments(args))


def named_paths(args: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths in the arguments of a call, by the names of the arguments."""
    return tuple(dict.fromkeys(_paths_in_arguments(args)))


def _declared_arguments(tool_name: str, tool: Any) -> tuple[str, ...] | None:
    for candidate in (tool, getattr(tool, "func", None), getattr(tool, "coroutine", None)):
        arguments = getattr(candidate, ATTRIBUTE, None)
        if isinstance(arguments, tuple):
            return arguments
    if tool is not None or tool_name not in _declared:
        return None
    declared = _declared[tool_name]
    return next(iter(declared)) if len(declared) == 1 else ()  # several tools share the name: it may be any file


def _name_of(tool: Any) -> str:
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", tool))


def _modified_paths(paths: Iterator[str]) -> Modifies:
    unique_paths = tuple(dict.fromkeys(paths))
    return Modifies(unique_paths) if unique_paths else EVERYTHING


def _paths_in_arguments(args: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths in the arguments, and those that a patch names."""
    for name, value in args.items():
        if _normalize_name(name) in PATH_ARGUMENTS:
            yield from _paths_in_value(value)
        elif _normalize_name(name) in PATCH_ARGUMENTS and isinstance(value, str):
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


def _tool_names(tool_name: str) -> Iterator[str]:
    """Yield the possible names of a tool without its prefix. After a prefix with `_`, a name has two or more words."""
    yield _normalize_name(tool_name)
    yield _normalize_name(re.split(r"__|[.:/]", tool_name)[-1])
    words = re.split(r"[^a-zA-Z0-9]+", tool_name)
    yield from (_normalize_name("".join(words[start:])) for start in range(1, len(words) - 1))


def _normalize_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _parameter_names(tool: Any) -> set[str] | None:
    """Return the names of a tool's arguments; None if it accepts any, or has no signature."""
    schema = getattr(tool, "args", None)  # a LangChain tool's
    if isinstance(schema, Mapping):
        return set(schema)
    try:
        parameters = inspect.signature(tool).parameters.values()
    except (TypeError, ValueError):
        return None
    return None if any(one.kind is one.VAR_KEYWORD for one in parameters) else {one.name for one in parameters}
