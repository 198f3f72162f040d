"""Errors of tools as evidence about the outside world: an error is no proof that nothing happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agentgit.effects.effects import COMPENSABLE, IRREVERSIBLE, REVERSIBLE, Effect

LASTING = frozenset({REVERSIBLE, COMPENSABLE, IRREVERSIBLE})
"""The effects of which something stands in the world after a call, so that it matters whether the call acted."""


class NothingDone(Exception):  # it is no failure of its own: it says what another one means
    """The part of `agentgit.NotDone` that needs no LangChain."""

    raised_by: Any = None
    """The call that raised it first. For a call that it only passes through, it proves nothing."""


@dataclass(eq=False)
class Body:
    """The known facts about a run of one tool's own function.

    Args:
        effect: The declared effect of the tool; None if it is undeclared.
        is_seen: True if the function runs inside `running`; else there are only the errors that LangChain reports.
        has_begun: False if the function was not entered: the arguments of the call did not fit.
        error: The exception that the function raised; None if it returned.
    """

    effect: Effect | None
    is_seen: bool = True
    has_begun: bool = False
    error: BaseException | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Note that the function begins, and what it raises."""
        self.has_begun = True
        try:
            yield
        except BaseException as error:
            self.raised(error, has_begun=True)
            raise

    def raised(self, error: BaseException, *, has_begun: bool) -> None:
        """Note an error of the call; `has_begun` is False if the function was not entered."""
        self.error, self.has_begun = error, has_begun
        if isinstance(error, NothingDone) and error.raised_by is None:
            error.raised_by = self

    @property
    def may_have_acted(self) -> bool:
        """True if the call raised and nothing proves that it did nothing before."""
        if not self.has_begun:
            return False
        if isinstance(self.error, NothingDone) and self.error.raised_by is self:
            return False
        return self.effect is None or not isinstance(self.error, self.effect.failed_on)

    @property
    def matters(self) -> bool:
        """True if it must be known whether the call acted: something stands then, or it may happen only once."""
        return self.effect is not None and (self.effect.kind in LASTING or self.effect.once)
