"""Rules and the results of checking them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NoReturn

from agentgit.repository import Repository
from agentgit.store.sql.ids import new_id

Opener = Callable[[], Repository]
"""Opens the database anew; what it gives is closed after use."""

OK, FAILED, LEFT_OUT = "ok", "FAILED", "left out"


class Breach(AssertionError):
    """A rule is not kept; the text says how that was seen."""


class NotCheckable(Exception):
    """A rule cannot be checked here; the text says why."""


class Trial:
    """One check: repositories on the database, and names that nothing there has yet.

    Args:
        opener: A function that opens the database.
        stack: The stack that closes what was opened.
    """

    def __init__(self, opener: Opener, stack: ExitStack) -> None:
        self._opener, self._stack = opener, stack
        self.name = f"conformance-{new_id()}"
        self.repo = self.another()

    def another(self) -> Repository:
        """Open the database once more, with connections of its own."""
        return self._stack.enter_context(self._opener())

    def branch(self) -> int:
        """Make a session of its own; give the id of its branch."""
        self.repo.session(self.name, create=True)
        return self.repo.session(self.name).branch().id


@dataclass(frozen=True)
class Rule:
    """One thing that must be so.

    Args:
        group: The subject of the rule.
        run: Checks it; raises `Breach` if it is not kept.
    """

    group: str
    run: Callable[[Trial], None]

    @property
    def text(self) -> str:
        """The text of the rule."""
        return " ".join((inspect.getdoc(self.run) or "").split())

    def __str__(self) -> str:
        return f"{self.group}-{self.run.__name__}"

    def check(self, opener: Opener) -> None:
        """Check it on a database.

        Args:
            opener: Opens the database anew each time.

        Raises:
            Breach: It is not kept.
            LeftOut: It cannot be checked here.
        """
        with ExitStack() as stack:
            self.run(Trial(opener, stack))


@dataclass(frozen=True)
class Result:
    """The result of checking one rule.

    Args:
        rule: The rule.
        status: `ok`, `FAILED` or `left out`.
        why: The evidence; empty if the rule is kept.
    """

    rule: Rule
    status: str
    why: str = ""

    def __str__(self) -> str:
        told = f"\n          {self.why}" if self.why else ""
        return f"{self.status:8}  {self.rule.group}: {self.rule.text}{told}"


@dataclass(frozen=True)
class Report:
    """The results of checking rules; `str` lists them.

    Args:
        results: One for each rule.
    """

    results: tuple[Result, ...]

    @property
    def is_kept(self) -> bool:
        """True if no rule failed."""
        return all(result.status != FAILED for result in self.results)

    def __str__(self) -> str:
        counts = ", ".join(f"{sum(r.status == s for r in self.results)} {s}" for s in (OK, FAILED, LEFT_OUT))
        return "\n".join([*map(str, self.results), "", f"{len(self.results)} rules: {counts}"])


def check(opener: Opener, rules: Iterable[Rule]) -> Report:
    """Check rules on a database, each on its own: one that fails keeps no other from being checked.

    Args:
        opener: Opens the database anew each time; it should hold nothing that is needed.
        rules: The rules to check; `RULES` has all.
    """
    return Report(tuple(_result(rule, opener) for rule in rules))


def _result(rule: Rule, opener: Opener) -> Result:
    try:
        rule.check(opener)
    except NotCheckable as reason:
        return Result(rule, LEFT_OUT, str(reason))
    except Exception as error:  # noqa: BLE001  # whatever a backend raises breaks the rule, and is told
        told = str(error) if isinstance(error, Breach) else f"{type(error).__name__}: {error}"
        return Result(rule, FAILED, told)
    return Result(rule, OK)


def expect(kept: object, why: str) -> None:
    """Break off if something is not so.

    Raises:
        Breach: It is not.
    """
    if not kept:
        breach(why)


def breach(why: str) -> NoReturn:
    """Raise `Breach`: a rule is not kept."""
    raise Breach(why)


def refused(work: Callable[[], object], by: type[Exception], why: str) -> None:
    """Check that an operation is refused.

    Args:
        work: A function that tries the operation.
        by: The exception that it has to raise.
        why: The meaning, if the operation is not refused.

    Raises:
        Breach: The operation was done.
    """
    try:
        work()
    except by:
        return
    breach(why)
