"""Tracking of a turn's graph checkpoints, so that a call with an effect can wait until those before it are saved.

LangGraph derives the id of a task from the preceding graph checkpoint, and by default saves that checkpoint in the
background while the task already runs. If the process died in between, the task would run again with a different id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from agentgit.agents.turn.fence_errors import as_bubble_up
from agentgit.errors import AgentGitError, Unavailable
from agentgit.langgraph_internals import CONFIG_KEY_CHECKPOINT_MAP, CONFIG_KEY_DURABILITY, CONFIG_KEY_THREAD_ID
from agentgit.next_steps import Next
from agentgit.store.threads.graph_rows import GraphKey

SAVE_TIMEOUT = 60.0
"""How long a call waits for a graph checkpoint, in seconds; one that is not saved by then never will be."""

POLL_SECONDS = 0.001
"""How long a call waits before it looks again."""


class CheckpointTracker:
    """Tracks which graph checkpoints of a turn are saved."""

    def __init__(self) -> None:
        self._read_graphs: set[tuple[str, str]] = set()
        self._started_keys: set[GraphKey] = set()
        self._saved_keys: set[GraphKey] = set()
        self._failure: BaseException | None = None

    def record_read(self, thread: str, ns: str, graph_key: GraphKey | None) -> None:
        """Record that a graph reads its checkpoint from the saver, so it also saves there."""
        self._read_graphs.add((thread, ns))
        if graph_key is not None:
            self._saved_keys.add(graph_key)

    @contextmanager
    def saving(self, graph_key: GraphKey) -> Iterator[None]:
        """Record that the block saves a checkpoint or fails to."""
        self._started_keys.add(graph_key)
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise
        self._saved_keys.add(graph_key)

    def graph_numbers(self, task: str) -> Iterator[int]:
        """Yield the numbers of the graphs that a task has called, as far as they are saved."""
        for _, ns in self._read_graphs.copy():
            number = ns[len(task) + 1 :] or "0"
            if (ns == task or ns.startswith(f"{task}|")) and number.isdigit():
                yield int(number)

    def unsaved(self, configurable: Mapping[str, Any]) -> Iterator[None]:
        """Iterate until the checkpoints from which the id of a task is derived are saved; the caller waits between."""
        deadline = monotonic() + SAVE_TIMEOUT
        while not self._is_saved(configurable):
            if monotonic() > deadline:
                raise _unsaved_error(TimeoutError())
            yield

    def _is_saved(self, configurable: Mapping[str, Any]) -> bool:
        """Return whether the checkpoints of a task are saved, and raise if one never will be."""
        thread, failure = str(configurable.get(CONFIG_KEY_THREAD_ID)), self._failure
        keys = {GraphKey(thread, ns, id) for ns, id in configurable.get(CONFIG_KEY_CHECKPOINT_MAP, {}).items()}
        if configurable.get(CONFIG_KEY_DURABILITY) == "exit":  # the graph saves nothing until it ends
            keys &= self._started_keys
        unsaved = {key for key in keys - self._saved_keys if (thread, key.ns) in self._read_graphs}
        if unsaved and failure is not None:
            raise _unsaved_error(failure) from failure
        return not unsaved


def _unsaved_error(error: BaseException) -> AgentGitError:
    return as_bubble_up(
        Unavailable(
            f"The step of the graph before this call could not be saved ({type(error).__name__}: {error}), so the call "
            "was not made: after a crash it could not be recognized. Fix the database first.",
            Next("continue"),
        )
    )
