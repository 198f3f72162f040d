"""The help of the command line: its commands by what somebody wants to do, those first that a newcomer needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from typer.core import TyperGroup

GROUPS = {
    "Begin": ("demo", "chat", "start"),
    "Look": (
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
    "Go back and go on": (
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
    "Mend what stopped": ("resume", "resolve", "recover"),
    "Carry and connect": ("export", "import", "import-langgraph", "trajectory", "mcp", "serve", "webhooks"),
    "Share": ("share", "unshare", "members", "link", "accept", "users", "keys", "whoami"),
    "Keep in order": ("workspace", "retention", "gc", "fsck", "delete", "audit", "db"),
}
"""The headings, each with its commands."""

OTHERS = "Others"


def brief(text: str, width: int) -> str:
    """Return what of a sentence fits, up to where it pauses.

    Args:
        text: The help of a command; its first line counts.
        width: The cells there are.

    Example:
        >>> brief("Go back to a place, on a new branch: show the plan, ask.", 40)
        'Go back to a place, on a new branch'
    """
    sentence = text.partition("\n")[0].rstrip(".")
    for pauses in ("$", "[:;]", ","):
        if ends := [pause.start() for pause in re.finditer(pauses, sentence) if pause.start() <= width]:
            return sentence[: ends[-1]]
    return sentence[: width - 1].rstrip() + "…"


class Brief(TyperGroup):
    """A command whose help says of each command below it a whole clause."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands."""
        self.list_below(formatter, "Commands", self.list_commands(ctx))

    def list_below(self, formatter: Any, heading: str, names: Iterable[str]) -> None:
        """Write some of the commands under a heading; nothing if there are none."""
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
    """A command whose help lists the commands below it under headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each group under its heading."""
        known = {name for names in GROUPS.values() for name in names}
        groups = {**GROUPS, OTHERS: tuple(name for name in self.list_commands(ctx) if name not in known)}
        for heading, names in groups.items():
            self.list_below(formatter, heading, names)
