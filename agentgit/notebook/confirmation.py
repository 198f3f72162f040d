"""The question that a magic asks before it changes something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentgit.effects import RollbackPlan
from agentgit.errors import Conflict, InvalidInput


def confirm(
    question: str, load_plan: Callable[[], RollbackPlan], display: Callable[[Any], None], *, force: bool
) -> None:
    """Show a plan, and ask whether to carry it out.

    For a blocked plan this does nothing: the operation raises an error that says what to do.
    """
    plan = load_plan()
    admissible = plan.forced() if force else plan
    if not admissible.is_admissible:
        return
    display(admissible)
    if not _ask(question):
        raise InvalidInput("Nothing was changed, because the answer is not yes.")
    if load_plan() != plan:
        raise Conflict("Nothing was changed: the session moved on while this cell waited. Run the cell again.")


def _ask(question: str) -> bool:
    try:
        answer = input(f"{question} [y/N] ")
    except (EOFError, OSError, RuntimeError) as error:  # a process without a terminal, or a kernel without an input box
        raise InvalidInput(f"Nothing was changed, because nobody can answer here: {question} Add --yes.") from error
    return answer.strip().lower() in ("y", "yes")
