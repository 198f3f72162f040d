"""The world of the demo: a shop in a SQLite file, the tools that act on it, and their undo functions."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.tools import BaseTool, tool

from agentgit.effects import Effect, compensable, reversible
from agentgit.errors import Conflict, InvalidInput, NotFound, Unavailable

SHOP_VARIABLE = "AGENTGIT_DEMO_SHOP"
"""The environment variable with the path of the shop, if its file was moved after a call was recorded."""

CATALOGUE = {"chair": 40, "table": 120, "lamp": 25, "sofa": 300}
"""The items of the shop, each with its unit price in euros."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS catalogue (item TEXT PRIMARY KEY, price INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, item TEXT, quantity INTEGER, price INTEGER, status TEXT);
CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY, amount INTEGER, status TEXT);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY, recipient TEXT, text TEXT);
CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT);
"""

INSERT_ORDER = """
INSERT INTO orders
SELECT item || '-' || (SELECT count(*) + 1 FROM orders WHERE item = :item), item, :quantity, price * :quantity, 'open'
FROM catalogue WHERE item = :item RETURNING id, price
"""


class Order(NamedTuple):
    """An order in the shop. `price` is in euros; `status` is `open` or `cancelled`."""

    id: str
    item: str
    quantity: int
    price: int
    status: str

    def __str__(self) -> str:
        return f"{self.id:<9} {format_count(self.quantity, self.item):<9} {self.price:>4} euros  {self.status}"


@contextmanager
def _connect(shop: str | Path) -> Iterator[sqlite3.Connection]:
    """Open a connection whose changes are committed unless the block raises."""
    if not Path(shop).is_file():
        raise NotFound(f"There is no shop at {shop}. Set {SHOP_VARIABLE} to its path.")
    with closing(sqlite3.connect(shop, timeout=30)) as connection, connection:
        yield connection


def open_shop(shop: str | Path) -> str:
    """Create the shop's tables if they do not exist, and return the absolute path of its file."""
    path = Path(shop).absolute()
    try:
        with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if tables and "catalogue" not in tables:
                raise InvalidInput(f"{path} is a database of another program. Give the shop its own file.")
            connection.executescript(SCHEMA)
            connection.executemany("INSERT OR IGNORE INTO catalogue VALUES (?, ?)", CATALOGUE.items())
    except sqlite3.OperationalError as error:
        raise Unavailable(f"The shop {path} cannot be opened: {error}. Does its folder exist?") from error
    except sqlite3.DatabaseError as error:
        raise InvalidInput(f"{path} is not a shop: {error}. Give another path; this file was not changed.") from error
    return str(path)


def orders(shop: str | Path) -> list[Order]:
    """Return the shop's orders, sorted by item.

    Raises:
        NotFound: There is no such shop.
    """
    with _connect(shop) as connection:
        rows = connection.execute("SELECT id, item, quantity, price, status FROM orders ORDER BY item, rowid")
        return [Order(*row) for row in rows]


def format_count(n: int, noun: str) -> str:
    """Format a number with a noun.

    Example:
        >>> format_count(1, "chair"), format_count(2, "chair")
        ('1 chair', '2 chairs')
    """
    return f"{n} {noun}" + ("" if n == 1 else "s")


def tools(shop: str) -> list[BaseTool]:
    """Return the tools that act on a shop.

    The results of orders and payments contain the path of the shop, so that they can be undone after a restart.
    """

    @tool
    def search_catalogue() -> dict[str, Any]:
        """List what the shop sells."""
        with _connect(shop) as connection:
            rows = connection.execute("SELECT item, price FROM catalogue ORDER BY item").fetchall()
        return {"items": ", ".join(f"{item} ({price})" for item, price in rows)}

    @tool
    def create_order(item: str, quantity: int) -> dict[str, Any]:
        """Order a quantity of one item."""
        if quantity < 1:
            raise InvalidInput(f"Order at least one {item}.")
        with _connect(shop) as connection:
            row = connection.execute(INSERT_ORDER, {"item": item, "quantity": quantity}).fetchone()
        if row is None:
            raise InvalidInput(f"The shop sells no {item}; it sells {', '.join(CATALOGUE)}.")
        return {"order": row[0], "what": format_count(quantity, item), "price": row[1], "shop": shop}

    @tool
    def charge_card(amount: int) -> dict[str, Any]:
        """Charge the customer's card, in euros."""
        with _connect(shop) as connection:
            payment = connection.execute("INSERT INTO payments VALUES (NULL, ?, 'charged')", [amount]).lastrowid
        return {"payment": payment, "amount": amount, "shop": shop}

    @tool
    def send_mail(to: str, text: str) -> dict[str, Any]:
        """Send an email."""
        with _connect(shop) as connection:
            connection.execute("INSERT INTO outbox VALUES (NULL, ?, ?)", [to, text])
        return {"to": to, "text": text}

    @tool
    def add_note(text: str) -> dict[str, Any]:
        """Save a note about the customer."""
        with _connect(shop) as connection:
            connection.execute("INSERT INTO notes VALUES (NULL, ?)", [text])
        return {"text": text}

    return [search_catalogue, create_order, charge_card, send_mail, add_note]


def cancel_order(args: dict[str, Any], result: dict[str, Any]) -> None:
    """Undo `create_order`, using only the recorded call.

    Args:
        args: The recorded arguments.
        result: The recorded result.

    Raises:
        NotFound: The shop is not at its recorded path, or at the path in the environment variable `AGENTGIT_DEMO_SHOP`.
        Conflict: The order is not open, so there is nothing to cancel.
    """
    _reverse_row(result, "UPDATE orders SET status = 'cancelled' WHERE id = ? AND status = 'open'", "order")


def refund(args: dict[str, Any], result: dict[str, Any]) -> None:
    """Compensate for `charge_card`: the payment stays in the books as refunded.

    Args:
        args: The recorded arguments.
        result: The recorded result.

    Raises:
        NotFound: The shop is not at its recorded path, or at the path in the environment variable `AGENTGIT_DEMO_SHOP`.
        Conflict: The payment was already refunded.
    """
    _reverse_row(result, "UPDATE payments SET status = 'refunded' WHERE id = ? AND status = 'charged'", "payment")


def _reverse_row(result: dict[str, Any], statement: str, kind: str) -> None:
    with _connect(os.environ.get(SHOP_VARIABLE) or result["shop"]) as connection:
        if connection.execute(statement, [result[kind]]).rowcount != 1:
            raise Conflict(
                f"The {kind} {result[kind]} was already reversed, or never existed. Check the shop's tables."
            )


EFFECTS: dict[str, Effect | str] = {
    "search_catalogue": "read_only",
    "create_order": reversible(cancel_order),
    "charge_card": compensable(refund),
    "send_mail": "irreversible",
}
"""The effects of the tools. `add_note` is undeclared, and every report says so."""
