"""Detects which files a tool call may modify, from its declared effect or from its name and arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentgit.effects.kinds import WORKSPACE


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


def paths_of(tool_name: str, effect: str, args: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the files that a call may modify: empty if it may be any file; None if it modifies none."""
    names = set(_tool_names(tool_name))
    if names & SHELL_TOOLS:
        return ()
    if (effect != WORKSPACE and not names & FILE_TOOLS) or str(args.get("command")) in READING_COMMANDS:
        return None
    return named_paths(args)


def named_paths(args: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths in the arguments of a call, by the names of the arguments."""
    return tuple(dict.fromkeys(_paths_in_arguments(args)))


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
