"""References to checkpoints: an id, a tag or a name, or text like `main`, `main#7`, `main~2`, `HEAD` or `HEAD~1`."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass

from agentgit.errors import InvalidInput

HEAD = "HEAD"

MESSAGE_PREFIX = "message:"
"""The prefix of a reference to the checkpoint before a user's message; the id of the message follows."""

_REFERENCE_PATTERN = re.compile(r"(?P<base>.+?)(?:#(?P<number>\d{1,9})|~(?P<back>\d{0,9}))?", re.DOTALL)


@dataclass(frozen=True)
class Reference:
    text: str
    base: str
    number: int | None = None
    back: int = 0

    @property
    def id(self) -> int | None:
        """The reference as a checkpoint id; None if it cannot be one."""
        return int(self.text) if self.text.isascii() and self.text.isdigit() and len(self.text) < 17 else None


def parse(text: str) -> Reference:
    """Parse a reference.

    Example:
        >>> parse("main#7").number, parse("HEAD~2").back, parse("HEAD~").back
        (7, 2, 1)
    """
    match = _REFERENCE_PATTERN.fullmatch(text)
    if match is None:
        raise InvalidInput("The reference is empty; give a name, an id, or a place like main#7 or HEAD~1.")
    number, back = match["number"], match["back"]
    return Reference(
        text=text,
        base=match["base"],
        number=int(number) if number is not None else None,
        back=0 if back is None else int(back or 1),
    )


def require_name(text: str, kind: str) -> str:
    """Check the name of a branch or a tag and return it; a valid name makes every reference to it parsable."""
    if not isinstance(text, str):
        raise InvalidInput(f"The name of a {kind} must be a string, not {text!r}.")
    if (
        not text.strip()
        or text.isdigit()
        or text == HEAD
        or text.startswith((MESSAGE_PREFIX, "-"))  # a command would read the latter as an option
        or len(text) > 200
        or re.search(r"[#~@\x00-\x1f\x7f]", text)
    ):
        raise InvalidInput(
            f"A {kind} cannot be called {text!r}: a name has 1 to 200 characters, is not a number or HEAD, has no # ~ "
            "@ or control characters, and does not start with - or message:."
        )
    return text


def similar_names(text: str, names: Iterable[str]) -> tuple[str, ...]:
    """List up to five names that are similar to a text, the most similar first.

    Example:
        >>> similar_names("before paymnt", ["before payment", "start"])
        ('before payment',)
    """
    by_folded_name = {name.casefold(): name for name in names}
    return tuple(
        by_folded_name[match] for match in difflib.get_close_matches(text.casefold(), by_folded_name, n=5, cutoff=0.5)
    )


def free_name(base: str, used_names: Container[str]) -> str:
    """Return a name, or the first of `base-2`, `base-3`, ... if it is taken.

    Example:
        >>> free_name("demo", set()), free_name("demo", {"demo", "demo-2"})
        ('demo', 'demo-3')
    """
    numbered = (f"{base[:180]}-{n}" for n in itertools.count(2))
    return next(name for name in itertools.chain([base], numbered) if name not in used_names)
