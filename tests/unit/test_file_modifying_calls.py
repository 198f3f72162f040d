"""Detection of the tool calls that modify files, and of the files that they modify."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgit.rollback.modified_files import paths_of

EVERYTHING = ()

PATCH = """*** Begin Patch
*** Add File: new.txt
+hello
*** Update File: src/old.py
*** Move to: src/moved.py
@@
-x
*** Delete File: gone.txt
*** End Patch"""

UNIFIED = "--- a/one.txt\t2026-01-01\n+++ b/two.txt\n@@ -1 +1 @@\n-x\n+y\n--- /dev/null\n+++ b/three.txt\n"


@pytest.mark.parametrize(
    ("name", "args", "paths"),
    [
        ("write_file", {"file_path": "a", "text": "x"}, ["a"]),
        ("write_file", {"path": "a", "content": "path"}, ["a"]),
        ("Write", {"file_path": "/w/a", "content": "x"}, ["/w/a"]),
        ("edit_file", {"target_file": "a", "code_edit": "x"}, ["a"]),
        ("MultiEdit", {"file_path": "a", "edits": [{"old_string": "x", "new_string": "y"}]}, ["a"]),
        ("NotebookEdit", {"notebook_path": "n.ipynb", "new_source": "x"}, ["n.ipynb"]),
        ("create_file", {"filename": Path("a")}, ["a"]),
        ("delete_file", {"file_path": "a"}, ["a"]),
        ("move_file", {"source_path": "a", "destination_path": "b"}, ["a", "b"]),
        ("copy_file", {"source": "a", "destination": "b"}, ["a", "b"]),
        ("rename_file", {"old_path": "a", "new_path": "b"}, ["a", "b"]),
        ("replace_in_file", {"path": "a", "diff": "@@"}, ["a"]),
        ("str_replace_based_edit_tool", {"command": "str_replace", "path": "a"}, ["a"]),
        ("mcp__filesystem__write_file", {"path": "a"}, ["a"]),
        ("filesystem_write_file", {"path": "a"}, ["a"]),
        ("filesystem.edit_file", {"path": "a"}, ["a"]),
        ("write_files", {"paths": ["a", "b"]}, ["a", "b"]),
        ("add_file", {"files": [{"path": "a", "content": "x"}, {"path": "b"}, {"path": "a"}]}, ["a", "b"]),
        ("apply_patch", {"input": PATCH}, ["new.txt", "src/old.py", "src/moved.py", "gone.txt"]),
        ("apply_patch", {"patch": UNIFIED}, ["one.txt", "two.txt", "three.txt"]),
        ("str_replace_editor", {"command": "view", "path": "a"}, None),
        ("read_file", {"path": "a"}, None),
        ("search", {"query": "write_file"}, None),
        ("find_and_replace_order", {"order": "a"}, None),
        ("bash", {"command": "rm -r x"}, EVERYTHING),
        ("Bash", {"command": "ls"}, EVERYTHING),
        ("terminal", {"commands": ["ls"]}, EVERYTHING),
        ("Python_REPL", {"query": "1"}, EVERYTHING),
        ("python_repl_ast", {"query": "1"}, EVERYTHING),
        ("execute", {"command": "ls"}, EVERYTHING),
        ("run_shell_command", {"command": "ls"}, EVERYTHING),
        ("mcp__shell__run_command", {"command": "ls"}, EVERYTHING),
        ("create_directory", {"path": "d"}, EVERYTHING),
        ("write_file", {"__arg1": "a.txt, text"}, EVERYTHING),
        ("write_file", {"path": ""}, EVERYTHING),
        ("apply_patch", {"patch": "no patch"}, EVERYTHING),
    ],
)
def test_the_arguments_of_a_file_tool_name_the_modified_files(name, args, paths):
    """Reading tools modify none; shell tools, and file tools that name no file, may modify everything."""
    assert paths_of(name, "undeclared", args) == (tuple(paths) if isinstance(paths, list) else paths)


def test_a_tool_declared_workspace_modifies_the_files_that_its_arguments_name():
    assert paths_of("publish", "workspace", {"output_file": "a", "title": "x"}) == ("a",)
    assert paths_of("build", "workspace", {"title": "x"}) == ()
    assert paths_of("build", "idempotent", {"path": "a"}) is None
