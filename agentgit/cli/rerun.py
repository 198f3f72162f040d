"""`agentgit rerun`: run recorded sessions again in a graph, and fail below a bar."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from agentgit.cli import output
from agentgit.cli.completion import complete_session
from agentgit.cli.options import Price, import_from_here, parse_prices, repository
from agentgit.errors import InvalidInput
from agentgit.next_steps import Next
from agentgit.sessions.rerun import LIVE, RECORD

BELOW_BAR = 1
"""The exit code if the sessions do not reach the bar."""


def rerun(
    graph: Annotated[
        str,
        typer.Option(
            "--graph",
            metavar="MODULE:NAME",
            help="Your compiled graph, or a function that returns it; one with a parameter receives the session.",
        ),
    ],
    sessions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SESSION[@BRANCH]", autocompletion=complete_session, help="The sessions, or branches of them."
        ),
    ] = None,
    matching: Annotated[
        str | None, typer.Option("--matching", metavar="TEXT", help="Also the sessions with this text in their names.")
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            "--judge", metavar="MODULE:NAME", help="A function that rates a rerun: a bool, a number or a word."
        ),
    ] = None,
    fail_under: Annotated[
        float,
        typer.Option(
            "--fail-under",
            metavar="SHARE",
            min=0,
            max=1,
            help="Fail if the mean of the verdicts is lower, or without a judge that returns numbers, of the match "
            "rates; from 0 to 1.",
        ),
    ] = 1.0,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write the results as JUnit XML for a CI server.")
    ] = None,
    effects: Annotated[
        str | None, typer.Option("--effects", metavar="MODULE:NAME", help="The effects of the tools, by their names.")
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tools",
            metavar="[TOOL=]POLICY",
            help="How calls are answered: record, or live for tools that are read_only or state; repeatable by tool.",
        ),
    ] = None,
    on_miss: Annotated[
        Literal["tell", "stop"],
        typer.Option(
            "--on-miss", help="What to do about a call that the record does not have: tell the model, or stop."
        ),
    ] = "tell",
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="JSON",
            help="The context of all turns, if the graph has a context_schema.",
        ),
    ] = None,
    max_calls: Annotated[
        int | None,
        typer.Option("--max-calls", metavar="N", min=0, help="The most calls that each session may make."),
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", min=1, help="The number of sessions that run at the same time.")
    ] = 1,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The name of the reruns; by default one with the time.")
    ] = None,
    price: Price = None,
) -> None:
    from agentgit.handles.export import open_target
    from agentgit.render.views import reruns

    if not sessions and matching is None:
        raise InvalidInput("Name the sessions to run again, or a text in their names: --matching TEXT")
    prices = parse_prices(price)
    import_from_here()
    options = _graph_or_factory(graph) | {"effects": _import(effects), "judge": _import(judge)}
    with ExitStack() as stack:
        repo = stack.enter_context(repository())
        executor = stack.enter_context(ThreadPoolExecutor(parallel)) if parallel > 1 else None
        found = list(repo.sessions(name=matching)) if matching is not None else []
        if matching is not None and not found:
            raise InvalidInput(f"No session has {matching!r} in its name.", Next("list_sessions"))
        file = stack.enter_context(open_target(junit)) if junit is not None else None  # before the models run
        with output.bar("running again") as progress:
            results = repo.rerun(
                [*(sessions or ()), *found],
                executor=executor,
                progress=progress,
                name=name,
                tools=_policies(tools or ()),
                on_miss=on_miss,
                context=output.parse_json(context, "--context") if context is not None else None,
                max_calls=max_calls,
                prices=prices,
                **options,
            )
        if file is not None:
            file.write(reruns.junit(results, fail_under))
    is_passed = results.is_passed(fail_under)
    data = {"fail_under": fail_under, "is_passed": is_passed}
    output.emit(lambda: results.to_dict() | data, lambda: reruns.results(results))
    if not is_passed:
        raise typer.Exit(BELOW_BAR)


def _graph_or_factory(path: str) -> dict[str, Any]:
    """Return the named graph, or the named function if it takes the session."""
    from agentgit.agents import user_modules

    value = user_modules.value_in(path) if ":" in path else None
    if inspect.isroutine(value) and any(
        one.default is one.empty for one in inspect.signature(value).parameters.values()
    ):
        return {"factory": value}
    return {"graph": user_modules.graph_in(path)}


def _policies(words: Sequence[str]) -> Any:
    """Return the policies of tools: one for all, or a mapping from their names."""
    policies: dict[str, str] = {}
    for word in words:
        name, _, policy = word.rpartition("=")
        if policy not in (RECORD, LIVE):
            raise InvalidInput(f"--tools {word}: the policy must be record or live, as in --tools price=live")
        policies[name or "*"] = policy
    return policies


def _import(path: str | None) -> Callable[..., Any] | None:
    from agentgit.agents import user_modules

    value: Callable[..., Any] | None = user_modules.value_in(path) if path is not None else None
    return value
