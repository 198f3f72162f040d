"""Rules about LangGraph's checkpoints: the contract of its savers, and a consistent database after all checks."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any

from agentgit.conformance.rules import CheckContext, NotCheckable, Rule, breach, expect


def is_a_whole_saver(trial: CheckContext) -> None:
    """The saver on this database passes every part of LangGraph's own conformance suite."""
    if find_spec("langgraph.checkpoint.conformance") is None:
        raise NotCheckable("LangGraph's suite is not installed. Run: pip install langgraph-checkpoint-conformance")
    suite = importlib.import_module("langgraph.checkpoint.conformance")
    saver_class = importlib.import_module("agentgit.saver.saver").SQLModelSaver  # loading LangGraph takes a second

    @suite.checkpointer_test(name="SQLModelSaver")  # type: ignore[untyped-decorator]  # the suite is optional
    async def create_saver() -> AsyncIterator[Any]:
        yield saver_class(trial.repo.context.store.database)

    report = asyncio.run(suite.validate(create_saver))
    for name, result in report.results.items():
        if not result.passed:
            breach(f"{name}: {'; '.join(map(str, result.failures)) or 'it did not run'}")


def leaves_all_sound(trial: CheckContext) -> None:
    """After all other checks, the contents of the database are consistent."""
    fsck_result = trial.repo.maintenance.fsck(3)
    expect(fsck_result.is_sound, "; ".join(str(finding) for finding in fsck_result.findings[:3]))


RULES = (Rule("saver", is_a_whole_saver), Rule("whole", leaves_all_sound))
