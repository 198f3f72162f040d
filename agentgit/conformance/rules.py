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
"""A function that opens the database with new connections; the check closes the repository."""

OK, FAILED, LEFT_OUT = "ok", "FAILED", "left out"


class Breach(AssertionError):
    """A rule is broken; the message gives the evidence."""


class NotCheckable(Exception):
    """A rule cannot be checked here; the message says why."""


class CheckContext:
    """The context of one check: repositories on the database, and a name that is unused there."""

    def __init__(self, opener: Opener, stack: ExitStack) -> None:
        self._opener, self._stack = opener, stack
        self.name = f"conformance-{new_id()}"
        self.repo = self.open_again()

    def open_again(self) -> Repository:
        """Open the database again, with separate connections."""
        return self._stack.enter_context(self._opener())

    def branch(self) -> int:
        """Create the session of this check if necessary, and return the id of its branch."""
        self.repo.session(self.name, create=True)
        return self.repo.session(self.name).branch().id


@dataclass(frozen=True)
class Rule:
    """One requirement on a database."""

    group: str
    run: Callable[[CheckContext], None]

    @property
    def text(self) -> str:
        """The text of the rule, on one line."""
        return " ".join((inspect.getdoc(self.run) or "").split())

    def __str__(self) -> str:
        return f"{self.group}-{self.run.__name__}"

    def check(self, opener: Opener) -> None:
        """Check the rule on a database."""
        with ExitStack() as stack:
            self.run(CheckContext(opener, stack))


@dataclass(frozen=True)
class Result:
    """The result of checking one rule."""

    rule: Rule
    status: str
    why: str = ""

    def __str__(self) -> str:
        explanation = f"\n          {self.why}" if self.why else ""
        return f"{self.status:8}  {self.rule.group}: {self.rule.text}{explanation}"


@dataclass(frozen=True)
class Report:
    """The results of checking rules; `str` lists them."""

    results: tuple[Result, ...]

    @property
    def has_passed(self) -> bool:
        """True if no rule failed."""
        return all(result.status != FAILED for result in self.results)

    def __str__(self) -> str:
        counts = ", ".join(f"{sum(r.status == s for r in self.results)} {s}" for s in (OK, FAILED, LEFT_OUT))
        return "\n".join([*map(str, self.results), "", f"{len(self.results)} rules: {counts}"])


def check(opener: Opener, rules: Iterable[Rule]) -> Report:
    """Check rules on a database; a rule that fails does not stop the others."""
    return Report(tuple(_check_rule(rule, opener) for rule in rules))


def _check_rule(rule: Rule, opener: Opener) -> Result:
    try:
        rule.check(opener)
    except NotCheckable as reason:
        return Result(rule, LEFT_OUT, str(reason))
    except Exception as error:  # noqa: BLE001  # any exception of a backend breaks the rule, and is reported
        evidence = str(error) if isinstance(error, Breach) else f"{type(error).__name__}: {error}"
        return Result(rule, FAILED, evidence)
    return Result(rule, OK)


def expect(condition: object, why: str) -> None:
    """Require that a condition is true."""
    if not condition:
        breach(why)


def breach(why: str) -> NoReturn:
    """Raise `Breach`, because a rule is broken."""
    raise Breach(why)


def require_error(operation: Callable[[], object], expected: type[Exception], why: str) -> None:
    """Check that an operation is refused."""
    try:
        operation()
    except expected:
        return
    breach(why)
