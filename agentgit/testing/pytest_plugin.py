"""The pytest plugin: it gives tests marked by `agentgit.testing.sessions` their files, and shows their reports.

pytest loads it in every project with agentgit, so it imports nothing before a test uses it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from agentgit.testing.mark import MARK

if TYPE_CHECKING:
    from agentgit.testing.recorded_session import RecordedSession

ARGUMENT = "recorded"
"""The argument of a test that receives the session."""

_SESSION = pytest.StashKey["RecordedSession"]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", f"{MARK}(*patterns): runs the test once for each exported session of agentgit")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a marked test once for each of its files."""
    marks = list(metafunc.definition.iter_markers(MARK))
    if not marks:
        return
    name = metafunc.definition.nodeid
    if ARGUMENT not in metafunc.fixturenames:
        raise pytest.Collector.CollectError(f"{name} needs an argument named {ARGUMENT}, which receives the session.")
    root = metafunc.config.rootpath
    patterns = [pattern for mark in marks for pattern in mark.args]
    try:
        paths = sorted({path for pattern in patterns for path in root.glob(pattern) if not path.is_dir()})
    except (ValueError, IndexError, OSError, NotImplementedError) as error:  # what `glob` raises
        raise pytest.Collector.CollectError(
            f"{name}: {patterns} are not patterns of files, like 'tests/sessions/*.agentgit'. {error}"
        ) from None
    if not paths:
        raise pytest.Collector.CollectError(
            f"{name}: no file matches {', '.join(patterns)} in {root}. Write one with: agentgit export --as-test "
            "SESSION FILE"
        )
    metafunc.parametrize(ARGUMENT, paths, indirect=True, ids=[path.relative_to(root).as_posix() for path in paths])


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Iterator[RecordedSession]:
    """Return the recorded session of a test that `agentgit.testing.sessions` marks."""
    from agentgit.testing.recorded_session import RecordedSession

    if not hasattr(request, "param"):
        pytest.fail("Name the files of the sessions: @agentgit.testing.sessions('tests/sessions/*.agentgit')")
    session = RecordedSession(request.param)
    request.node.stash[_SESSION] = session
    yield session
    session.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the reports of the reruns of a test that failed."""
    report = yield
    session = item.stash.get(_SESSION, None)
    if session is not None and report.when == "call" and report.failed:
        for number, rerun in enumerate(session.reports, 1):
            title = f"agentgit rerun of {session.path.name}"
            report.sections.append((title if number == 1 else f"{title} ({number})", _shown(str(rerun))))
    return report


def _shown(text: str) -> str:
    from agentgit.render.text import visible

    return "\n".join(map(visible, text.splitlines()))
