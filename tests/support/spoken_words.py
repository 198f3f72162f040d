"""What tells a text for programs and a text for a shell from a text for people."""

from __future__ import annotations

import re

PYTHON = re.compile(
    r"\b(?:repo|session|agent|graph|agentgit|Workspace|Keyring)\.(?!db\b|demo\b)\w+|\bauto_checkpoint is\b"
    r"|\w\(\)|\w\((?:None|\.\.\.|[a-z]{2,}\)|'\w)"  # calls
    r"|\b[a-z_]+=(?:['\"\[{(]|True|False|None|\.\.\.|…|[ ,.;]|$)"  # arguments
)
"""A call or an argument of Python."""

SHELL = re.compile(
    r"--[a-z]"
    r"|(?<!an )\bagentgit (?:audit|branches|chat|checkpoint|db|demo|export|fork|fsck|gc|import|keys|link|log|members"
    r"|operations|resolve|resume|retention|rewind-files|rollback|serve|sessions|share|switch|tag|tool-track|users"
    r"|workspace)\b"
    r"|(?<![\w.<:/])/[a-z]+ "
)
"""A command or an option of agentgit, or a slash command."""


RECORDED_CALL = re.compile(r"\w+\(\w+=[^)]*\)")


def speaks_python(text: str) -> bool:
    """Return whether a text has a call or an argument of Python, apart from the recorded calls of tools."""
    return PYTHON.search(RECORDED_CALL.sub("a call", text)) is not None
