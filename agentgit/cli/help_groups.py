"""The help of the command line: its commands grouped by task, those that a newcomer needs first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from typer.core import TyperGroup

GROUPS = {
    "Get started": ("demo", "chat", "start"),
    "Look around": (
        "sessions",
        "status",
        "tree",
        "log",
        "show",
        "track",
        "branches",
        "diff",
        "compare",
        "search",
        "events",
        "operations",
        "stats",
    ),
    "Roll back and branch": (
        "plan",
        "rollback",
        "undo",
        "redo",
        "rewind",
        "switch",
        "fork",
        "rename",
        "checkpoint",
        "tag",
        "merge",
        "cherry-pick",
        "explore",
        "promote",
    ),
    "Finish what stopped": ("resume", "resolve", "recover"),
    "Exchange and connect": ("export", "import", "import-langgraph", "trajectory", "mcp", "serve", "webhooks"),
    "Share": ("share", "unshare", "members", "link", "accept", "users", "keys", "whoami"),
    "Operate": ("workspace", "retention", "gc", "fsck", "delete", "audit", "db"),
}
"""The headings, each with its commands."""

OTHERS = "Others"


def brief(text: str, width: int) -> str:
    """Shorten a sentence at a pause so that it fits.

    Args:
        text: The help of a command; only its first line is used.
        width: The available width in terminal cells.

    Example:
        >>> brief("Roll back to a checkpoint, on a new branch: show the plan, ask.", 48)
        'Roll back to a checkpoint, on a new branch'
    """
    sentence = text.partition("\n")[0].rstrip(".")
    for pauses in ("$", "[:;]", ","):
        if ends := [pause.start() for pause in re.finditer(pauses, sentence) if pause.start() <= width]:
            return sentence[: ends[-1]]
    return sentence[: width - 1].rstrip() + "…"


class Brief(TyperGroup):
    """A group whose help shows a whole clause for each of its commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands."""
        self.list_below(formatter, "Commands", self.list_commands(ctx))

    def list_below(self, formatter: Any, heading: str, names: Iterable[str]) -> None:
        """Write the named commands under a heading, or nothing if none exists."""
        width = max(map(len, self.commands))
        rows = [
            (name.ljust(width), brief(self.commands[name].help or "", formatter.width - width - 4))
            for name in names
            if name in self.commands and not self.commands[name].hidden
        ]
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


class Grouped(Brief):
    """A group whose help lists its commands under headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each group under its heading."""
        known = {name for names in GROUPS.values() for name in names}
        groups = {**GROUPS, OTHERS: tuple(name for name in self.list_commands(ctx) if name not in known)}
        for heading, names in groups.items():
            self.list_below(formatter, heading, names)
