"""The table of commands and their helps, and the group that imports the module of a command only when it runs.

So `agentgit --help` and the completion of commands need neither a database nor LangGraph, and answer at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand
from typer.main import get_group

from agentgit.cli.options import CommandGroup, add_shared_options, usage


class Entry(NamedTuple):
    """A command or a group of commands in the table."""

    module: str
    help: str
    usage: str = ""
    """The words after the command, if the parser cannot declare them."""


HEADINGS: Mapping[str, Mapping[str, Entry]] = {
    "Get started": {
        "demo": Entry("foreground", "Run a demo of rollbacks in a small shop, without an API key or network."),
        "chat": Entry(
            "foreground",
            "Talk with your graph; every turn is recorded, and /help lists the commands for going back.",
        ),
    },
    "Look around": {
        "sessions": Entry("sessions", "List the sessions, most recently updated first."),
        "status": Entry("sessions", "Show a session's branch, head and unfinished operations."),
        "tree": Entry("sessions", "Draw the branches of a session as a tree."),
        "log": Entry("history", "List the checkpoints of a branch, newest first."),
        "show": Entry("sessions", "Show a checkpoint: its state, messages and tool calls."),
        "tool-track": Entry(
            "sessions", "List the tool calls of a branch, oldest first, with their effects and statuses."
        ),
        "branches": Entry("sessions", "List the branches of a session; * marks the current one."),
        "diff": Entry(
            "history", "Compare two checkpoints: state, messages, tool calls, files, tokens.", "[SESSION] [A B]"
        ),
        "search": Entry(
            "history",
            "Find messages, tool calls and named checkpoints by words: names first, then newest first.",
            "[SESSION[@BRANCH]] TEXT",
        ),
        "events": Entry("events", "List events, newest last."),
        "stats": Entry("maintenance", "Count checkpoints, calls, rollbacks, reversals and tokens."),
    },
    "Roll back and branch": {
        "plan": Entry("rollback", "Show what a rollback would do; nothing is changed.", "[SESSION[@BRANCH]] REF"),
        "rollback": Entry(
            "rollback",
            "Roll back to a checkpoint, on a new branch: show the plan, ask, then reverse later effects.",
            "[SESSION[@BRANCH]] REF",
        ),
        "undo": Entry(
            "branches", "Go back one turn or several, on a new branch: show the plan, ask, then reverse later effects."
        ),
        "redo": Entry("branches", "Take back the rollback that created a branch: run again what it reversed."),
        "rewind-files": Entry(
            "rollback",
            "Restore only the files, as they were before a user's message; the conversation stays.",
            "[SESSION[@BRANCH]] RESTORE_POINT",
        ),
        "switch": Entry(
            "rollback",
            "Continue a session on another branch; with --sync world, change the world to match it.",
            "[SESSION] BRANCH",
        ),
        "fork": Entry(
            "branches",
            "Create a branch without touching the world; the session stays on its current branch.",
            "[SESSION[@BRANCH]] [REF]",
        ),
        "rename": Entry(
            "branches", "Rename a session or, with @BRANCH, one of its branches.", "[SESSION[@BRANCH]] NAME"
        ),
        "checkpoint": Entry("branches", "Create and delete checkpoints; `agentgit log` lists them."),
        "annotate": Entry(
            "branches", "Rename a checkpoint, or change its description or data.", "[SESSION[@BRANCH]] REF"
        ),
        "tag": Entry("history", "Tag a checkpoint, so that it is kept; or list the tags.", "[SESSION] [REF NAME]"),
        "merge": Entry(
            "merge",
            "Merge the messages and values of another branch, or of one checkpoint; no tool runs.",
            "MODULE:GRAPH [SESSION[@BRANCH]] REF",
        ),
        "explore": Entry("branches", "Try alternatives, each on a branch of its own, and compare the results."),
        "rerun": Entry("rerun", "Run recorded sessions again in a graph; tools do not run. Fail below a bar, for CI."),
    },
    "Finish what stopped": {
        "resume": Entry(
            "rollback", "Finish an interrupted rollback or switch; ask if it would do more than was planned."
        ),
        "resolve": Entry("rollback", "Record whether a call or its reversal happened, if its outcome is unknown."),
        "recover": Entry("branches", "Recover a branch whose process died on another machine."),
    },
    "Exchange and connect": {
        "export": Entry(
            "transfer", "Export a session, a branch or a checkpoint to one file.", "[SESSION[@BRANCH] [REF]] FILE"
        ),
        "import": Entry(
            "transfer", "Create sessions from an exported file, from plain checkpoints, or from threads of LangGraph."
        ),
        "mcp": Entry(
            "foreground",
            "Serve the checkpoints of one session, or of all, as MCP tools over standard input and output.",
        ),
        "serve": Entry("foreground", "Serve the web pages and the HTTP API."),
    },
    "Share": {
        "share": Entry("users", "Share a session with a user or with a link; without a user, list its members."),
        "accept": Entry("users", "Join a session with a link."),
        "users": Entry("users", "Manage the users of the database; for admins."),
        "keys": Entry("users", "Manage API keys."),
    },
    "Operate": {
        "workspace": Entry("workspace", "Save, compare and restore the files of a folder."),
        "retention": Entry("maintenance", "Show or set which checkpoints a session keeps."),
        "gc": Entry("maintenance", "Delete data that nothing needs any more, and free its space."),
        "fsck": Entry(
            "maintenance",
            "Check the integrity of the database, or of one session; no file is read, nothing is changed.",
        ),
        "delete": Entry("maintenance", "Erase a session and its trail permanently."),
        "audit": Entry("events", "List events that belong to no session: users, keys, refusals; for admins."),
        "db": Entry("database", "Manage the schema and the encryption of a database."),
    },
}
"""The headings of the help, each with its commands."""

COMMANDS = {name: entry for entries in HEADINGS.values() for name, entry in entries.items()}


class UnloadedCommand(TyperCommand):
    """A command whose module is not imported yet; it has only a name and a help line."""


class AllCommands(CommandGroup):
    """All commands of `agentgit`. Before a command runs or completes its words, its module is imported."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands.update(
            {name: UnloadedCommand(name, help=entry.help, rich_markup_mode=None) for name, entry in COMMANDS.items()}
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args:
            self._load(args[0])
        return super().resolve_command(ctx, args)

    def load_all(self) -> None:
        """Import the modules of all commands, to read their arguments and options."""
        for name in COMMANDS:
            self._load(name)

    def _load(self, name: str) -> None:
        if isinstance(self.commands.get(name), UnloadedCommand):
            app, module = typer.Typer(rich_markup_mode=None, callback=lambda: None), COMMANDS[name].module
            imported = importlib.import_module(f"agentgit.cli.{module}")
            for one, entry in COMMANDS.items():
                if entry.module == module:
                    _add_to(app, one, entry, imported)
            add_shared_options(app)
            loaded = get_group(app)
            _hide_types(loaded)
            self.commands.update(loaded.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, entries in HEADINGS.items():
            self.write_section(formatter, heading, entries)


def _add_to(app: typer.Typer, name: str, entry: Entry, imported: Any) -> None:
    found = getattr(imported, "import_" if name == "import" else name.replace("-", "_"), None) or imported.app
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name, help=entry.help)
    else:
        app.command(name, cls=usage(entry.usage) if entry.usage else None, help=entry.help)(found)


def _hide_types(command: Any) -> None:
    """Leave out the types that Typer writes after the names of arguments, as in `SESSION <str>`."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None
    for below in getattr(command, "commands", {}).values():
        _hide_types(below)
