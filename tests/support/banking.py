"""A bank whose tools are irreversible, and payments with a new reference each time."""

from __future__ import annotations

import itertools
from typing import Any

from langchain_core.tools import BaseTool, tool
from scripted import call
from scripted import saying as says

from agentgit import effect
from agentgit.effects import Effect

__all__ = ["Bank", "pay", "says"]

_references = itertools.count()


def pay(to: str = "Ann", amount: int = 5, call_id: str | None = None) -> Any:
    """Build a tool call for a payment with a new reference."""
    return call("pay", call_id, to=to, amount=amount, reference=f"ref-{next(_references)}")


class Bank:
    """The bank: `ledger` has (to, amount, reference) of each actual payment, `used` has each used ticket."""

    def __init__(self) -> None:
        self.ledger: list[tuple[str, int, str]] = []
        self.used: list[str] = []

    def tools(self) -> list[BaseTool]:
        """Make the tools: pay, use."""

        def pay(to: str, amount: int, reference: str) -> dict[str, Any]:
            """Pay somebody."""
            self.ledger.append((to, amount, reference))
            return {"receipt": len(self.ledger), "reference": reference}

        def use(ticket: str) -> str:
            """Use a ticket, which works once."""
            self.used.append(ticket)
            return f"used {ticket}"

        return [tool(pay), tool(use)]

    def effects(self, **more: Effect | str) -> dict[str, Effect | str]:
        """Declare the effects of the tools; `more` adds or replaces declarations."""
        declared: dict[str, Effect | str] = {
            "pay": effect("irreversible", identity_args=["to", "amount"]),
            "use": effect("irreversible", once=True),
        }
        return declared | more
