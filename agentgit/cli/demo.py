"""`agentgit demo`: rollbacks in a small shop."""

from __future__ import annotations

from typing import Annotated

import typer

from agentgit.cli import output
from agentgit.cli.options import AsJson, DatabaseOption, address, repository


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(demo)


def demo(
    db: DatabaseOption = None,
    shop: Annotated[str, typer.Option(metavar="PATH", help="The database of the demo shop.")] = "shop.db",
    as_json: AsJson = False,
) -> None:
    """Run a demo of rollbacks in a small shop, without an API key or network."""
    from agentgit.demo import run_story

    story_lines: list[str] = []
    with repository(db, create=True) as repo:
        run_story(repo, shop, story_lines.append if as_json else output.say, database=address(db))
    if as_json:
        output.emit(True, lambda: {"database": address(db), "shop": shop, "said": story_lines}, lambda _: [])
