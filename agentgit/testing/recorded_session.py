"""Exported sessions as tests: each file is a case, which a test runs again in a graph."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentgit.async_api import twin_of

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from agentgit.agents.rerun.answers import OnMiss
    from agentgit.agents.rerun.session import JudgedRerun, OneRerun
    from agentgit.effects import Effect
    from agentgit.handles.session import Session
    from agentgit.repository import Repository
    from agentgit.sessions.rerun import RerunReport
    from agentgit.testing.recorded_model import RecordedModel

Test = TypeVar("Test", bound=Callable[..., Any])


def sessions(*patterns: str) -> Callable[[Test], Test]:
    """Run a test once for each exported session, which its argument `recorded` receives as a `RecordedSession`.

    `agentgit export --as-test SESSION FILE` writes such a file. If a test fails, pytest shows the report of its rerun.

    Args:
        patterns: Patterns of files, relative to the root of the project (the `rootdir` of pytest).

    Raises:
        InvalidInput: There is no pattern.

    Example:
        >>> import agentgit.testing
        >>> @agentgit.testing.sessions("tests/sessions/*.agentgit")
        ... def test_yesterday_still_works(recorded):
        ...     assert recorded.rerun(build()).report.match_rate > 0.9
    """
    import pytest

    from agentgit.errors import InvalidInput
    from agentgit.testing.mark import MARK

    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise InvalidInput("Name the files of the sessions: @agentgit.testing.sessions('tests/sessions/*.agentgit')")
    mark: Callable[[Test], Test] = getattr(pytest.mark, MARK)(*patterns)
    return mark


class RecordedSession:
    """A session in a file that `agentgit export` wrote. It is read into memory when it is first used.

    Args:
        path: The file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._repository: Repository | None = None
        self._session: Session | None = None
        self.reports: list[RerunReport] = []
        """The reports of its reruns so far."""

    def __repr__(self) -> str:
        return f"RecordedSession({str(self.path)!r})"

    @property
    def session(self) -> Session:
        """The session, in a database in memory. Its current branch is the one that was exported.

        Raises:
            NotFound, InvalidInput, Corrupt: The file is missing, is no export, or is damaged.
        """
        if self._session is None:
            from agentgit.repository import open

            self._repository = open(":memory:")
            imported = self._repository.import_(self.path).session
            self._session = self._repository.session(imported.id)
        return self._session

    def close(self) -> None:
        """Forget the session."""
        if self._repository is not None:
            self._repository.close()
        self._repository = self._session = None

    def model(self) -> RecordedModel:
        """Return a model that answers with the recorded replies, for a graph that must do just what was recorded."""
        from agentgit.testing.recorded_model import RecordedModel

        return RecordedModel(self.session)

    def rerun(
        self,
        graph: Any,
        *,
        effects: Mapping[str, Effect | str] | None = None,
        tools: Any = "record",
        on_miss: OnMiss = "tell",
        config: RunnableConfig | None = None,
        context: Any = None,
        max_calls: int | None = None,
    ) -> JudgedRerun:
        """Run the session again in a graph, as `RollbackAgent.rerun` does. No tool acts on the world.

        Args:
            graph: The compiled graph.
            effects: The effects of its tools, as `Repository.wrap` takes them.
            tools: How calls are answered.
            on_miss: What to do about a call that is not in the record: `tell` the model so, `stop`, or a function.
            config: The config for all turns.
            context: The context for all turns, if the graph has a `context_schema`; it is not recorded.
            max_calls: The most calls that the rerun may make.

        Returns:
            The rerun, with its `report`, `messages` and `state`, and `recorded_messages` and `recorded_state`.

        Raises:
            InvalidInput: An argument is not valid, or `graph` does not take the recorded inputs; nothing was run.
            RerunDiverged: `on_miss` is `stop` and a call is not in the record, or there were more than `max_calls`.
        """
        one = self._prepare(
            graph,
            effects=effects,
            tools=tools,
            on_miss=on_miss,
            config=config,
            context=context,
            max_calls=max_calls,
        )
        try:
            one.rerun.run()
        finally:
            self._note(one)
        return self._judged(one)

    @twin_of(rerun)
    async def arerun(self, graph: Any, **options: Any) -> JudgedRerun:
        one = await asyncio.to_thread(self._prepare, graph, **options)
        try:
            await one.rerun.arun()
        finally:
            self._note(one)
        return self._judged(one)

    def _prepare(self, graph: Any, **options: Any) -> OneRerun:
        from agentgit.agents.rerun.session import OneRerun, RerunPlan

        return OneRerun(self.session._context, RerunPlan(graph=graph, factory=None, **options), self.session)

    def _note(self, one: OneRerun) -> None:
        """Remember the report of a rerun, also of one that raised."""
        from agentgit.sessions.rerun import RerunReport

        report = one.agent().report
        if isinstance(report, RerunReport):
            self.reports.append(report)

    def _judged(self, one: OneRerun) -> JudgedRerun:
        return one.judged(one.agent(), self.reports[-1])
