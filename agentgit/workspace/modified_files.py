"""Detection of tool calls that modify files, and of the files, by the tool's declaration or its name and arguments."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from agentgit.effects.effects import READ_ONLY, ByName, declared_on, tool_name
from agentgit.errors import InvalidInput

Tool = TypeVar("Tool")

ATTRIBUTE = "__agentgit_modifies__"
"""The attribute of a decorated tool or its function that holds the names of the arguments with paths."""


def _set_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


FILE_TOOLS = _set_of("""
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
"""Names of tools that modify the files that their arguments name, in small letters without what joins the words."""

SHELL_TOOLS = _set_of("""
    bash sh zsh shell localshell powershell terminal console cmd exec execute executebash executecommand executeshell
    executeshellcommand containerexec run runbash runcommand runcmd runshell runshellcommand runterminalcmd
    runterminalcommand runinterminal shellcommand shellexec shelltool bashtool systemcommand
    python pythonrepl pythonreplast pythoninterpreter ipython executepython runpython runcode executecode
    codeinterpreter codeexecution jupyter runcell executecell runscript
    createdirectory createfolder makedirectory mkdir deletedirectory deletefolder removedirectory rmdir movedirectory
    renamedirectory copydirectory gitcheckout gitreset gitrestore gitstash gitmerge gitrebase gitpull gitapply
""")
"""Names of tools that may modify any file, or whole directories."""

PATH_ARGUMENTS = _set_of("""
    path paths file files filename filenames filepath filepaths targetfile targetpath target absolutepath
    relativepath notebookpath sourcepath source src destinationpath destination dest dst frompath topath oldpath
    newpath oldname newname outputpath outputfile
""")
"""Arguments that hold paths, in the same form."""

PATCH_ARGUMENTS = ("patch", "diff", "input", "patchtext")

PATCHED = re.compile(
    r"^(?:\*\*\* (?:Add|Update|Delete) File: |\*\*\* Move to: |(?:---|\+\+\+) )(?P<path>[^\t\r\n]+)", re.MULTILINE
)
"""The places where a patch names a file, in both of the usual forms."""

LOOKING = frozenset({"view", "read", "cat", "list"})
"""Values of `command` with which a tool that can edit only looks."""


@dataclass(frozen=True)
class Modifies:
    """The files that a tool call may modify.

    Args:
        paths: The files, as the call names them.
        everything: True if the files cannot be determined, so that the whole workspace counts.
    """

    paths: tuple[str, ...] = ()
    everything: bool = False


EVERYTHING = Modifies(everything=True)

_decorated: ByName[tuple[str, ...]] = ByName()


def modifies_files(*arguments: str) -> Callable[[Tool], Tool]:
    """Declare that a tool modifies files, so that they are kept before each of its calls.

    Args:
        arguments: The names of those that hold a path, a list of paths, or things that have a path. None given: the
            tool may modify any file of the workspace.

    Raises:
        InvalidInput: The tool has no such argument, or is nothing that can be declared.

    Example:
        >>> @modifies_files("report")
        ... def publish(report: str, title: str) -> str: ...
        >>> paths_of("publish", publish, {"report": "out/june.md", "title": "June"})
        Modifies(paths=('out/june.md',), everything=False)
    """

    def declare(tool: Tool) -> Tool:
        if unknown := set(arguments) - (_parameters(tool) or set(arguments)):
            raise InvalidInput(
                f"{tool_name(tool)} has no argument {', '.join(sorted(unknown))}. Name those with a path."
            )
        for candidate in (getattr(tool, "func", None), getattr(tool, "coroutine", None), tool):
            try:
                object.__setattr__(candidate, ATTRIBUTE, arguments)  # also on pydantic, which refuses unknown ones
            except (AttributeError, TypeError):
                continue  # there is no such function, or it is a method, which takes no attributes
            _decorated.add(tool, arguments)
            return tool
        raise InvalidInput(f"{tool!r} cannot be declared. Decorate a function or a tool.")

    return declare


def paths_of(tool_name: str, tool: Any, args: Mapping[str, Any]) -> Modifies | None:
    """Return what a call may modify; None if it modifies no files.

    What a tool declares of itself counts; of all others, the name does. A tool that is known to modify files and does
    not name any modifies everything.

    Args:
        tool_name: Its name for the model. A server's prefix of the name, as in `files__write_file`, is not counted.
        tool: The tool or its function; None if it is out of sight.
        args: The arguments of the call.

    Example:
        >>> paths_of("write_file", None, {"file_path": "a.txt", "content": "x"})
        Modifies(paths=('a.txt',), everything=False)
        >>> paths_of("bash", None, {"command": "make"})
        Modifies(paths=(), everything=True)
        >>> paths_of("search", None, {"query": "chairs"}) is None
        True
    """
    declared = _declared(tool_name, tool)
    if declared is not None:
        return _modifies(path for name in declared for path in _paths_in(args.get(name)))
    effect = declared_on(tool)
    if effect is not None and effect.kind == READ_ONLY:
        return None
    names = set(_names(tool_name))
    if names & SHELL_TOOLS:
        return EVERYTHING
    if not names & FILE_TOOLS or str(args.get("command")) in LOOKING:
        return None
    return _modifies(_named_in(args))


def _declared(tool_name: str, tool: Any) -> tuple[str, ...] | None:
    for candidate in (tool, getattr(tool, "func", None), getattr(tool, "coroutine", None)):
        found = getattr(candidate, ATTRIBUTE, None)
        if isinstance(found, tuple):
            return found
    said = _decorated.get(tool_name)
    return said[0] if len(said) == 1 else () if said else None  # two tools of one name: any file may be meant


def _modifies(paths: Iterator[str]) -> Modifies:
    found = tuple(dict.fromkeys(paths))
    return Modifies(found) if found else EVERYTHING


def _named_in(args: Mapping[str, Any]) -> Iterator[str]:
    """Visit the paths among the arguments, and those that a patch names."""
    for name, value in args.items():
        if _short(name) in PATH_ARGUMENTS:
            yield from _paths_in(value)
        elif _short(name) in PATCH_ARGUMENTS and isinstance(value, str):
            yield from _patched_by(value)


def _paths_in(value: Any) -> Iterator[str]:
    """Visit the paths that an argument holds: it is one, a list, or things with a path, as in `[{"path": …}]`."""
    if isinstance(value, str | os.PathLike):
        if path := os.fsdecode(value):
            yield path
    elif isinstance(value, Mapping):
        yield from _named_in(value)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths_in(item)


def _patched_by(patch: str) -> Iterator[str]:
    for found in PATCHED.finditer(patch):
        path = found["path"].strip()
        unified = found[0].startswith(("---", "+++"))
        if path != "/dev/null":
            yield re.sub(r"^[ab]/", "", path) if unified else path


def _names(tool_name: str) -> Iterator[str]:
    """Visit what a tool may be called where nothing stands before its name; one joined by `_` has two words or more."""
    yield _short(tool_name)
    yield _short(re.split(r"__|[.:/]", tool_name)[-1])
    words = re.split(r"[^a-zA-Z0-9]+", tool_name)
    yield from (_short("".join(words[start:])) for start in range(1, len(words) - 1))


def _short(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _parameters(tool: Any) -> set[str] | None:
    """Return the names of a tool's arguments; None if it takes any, or does not tell."""
    schema = getattr(tool, "args", None)  # a LangChain tool's
    if isinstance(schema, Mapping):
        return set(schema)
    try:
        parameters = inspect.signature(tool).parameters.values()
    except (TypeError, ValueError):
        return None
    return None if any(one.kind is one.VAR_KEYWORD for one in parameters) else {one.name for one in parameters}
