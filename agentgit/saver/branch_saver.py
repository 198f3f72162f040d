"""The savers of sessions: one for the runs of a branch, one for reading all branches as one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple
from sqlalchemy import select

from agentgit.errors import Conflict, InvalidInput
from agentgit.langgraph_internals import TURN
from agentgit.saver.config import address, config_of, scope
from agentgit.saver.recorded_turn import RecordedTurn
from agentgit.saver.saver import SQLModelSaver
from agentgit.store.sql.tables import GRAPH_CHECKPOINT
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import GraphKey, GraphScope


class SessionSaver(SQLModelSaver):
    """A saver for the sessions, whose threads its callers know by other ids."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.database, graphs=store.graphs, exclude_metadata=store.exclude_metadata, sessions=True)


class BranchSaver(SessionSaver):
    """The saver of the runs of one branch."""

    def __init__(self, store: Store, thread_id: str, client_thread: str, shared: SessionSaver | None = None) -> None:
        super().__init__(store)
        if shared is not None:
            self.serde, self._codec = shared.serde, shared.codec
        self._thread_id, self._client_thread = thread_id, client_thread

    def _own(self, thread: str) -> str:
        return self._thread_id if thread == self._client_thread else thread

    def _parse_address(self, config: RunnableConfig) -> tuple[str, str, str | None]:
        thread, ns, checkpoint_id = address(config)
        return self._own(thread), ns, checkpoint_id

    def _turn_of(self, config: RunnableConfig) -> RecordedTurn | None:
        turn = self.turn
        owner = turn.owner if turn is not None else None
        if config["configurable"].get(TURN, owner) != owner:
            raise _interrupted()
        return turn

    def _require_no_run(self, config: RunnableConfig) -> None:
        if TURN in config["configurable"] and self._parse_address(config)[0] == self._thread_id:
            raise _interrupted()  # the turn has ended meanwhile

    def _scope(self, config: RunnableConfig | None) -> tuple[GraphScope, Sequence[str] | None]:
        graph_scope = scope(config)
        thread = self._own(graph_scope.thread) if graph_scope.thread is not None else None
        return graph_scope._replace(thread=thread), None

    def _config_of(self, graph_key: GraphKey) -> RunnableConfig:
        is_own = graph_key.thread == self._thread_id
        return config_of(graph_key._replace(thread=self._client_thread) if is_own else graph_key)


def _interrupted() -> Conflict:
    """Return the error for what a run saves after its turn: Ctrl-C does not stop LangGraph's threads."""
    return Conflict("This run was interrupted. What it has done since is not saved.")


class SessionThreads(NamedTuple):
    """The threads of the branches of a session."""

    current: str
    all: Sequence[str]


class ThreadReader(SessionSaver):
    """Reads the branches of a session as one thread. Only a turn of a session writes to it."""

    def __init__(self, store: Store, find_threads: Callable[[str], SessionThreads | None]) -> None:
        super().__init__(store)
        self._find_threads = find_threads

    def _parse_address(self, config: RunnableConfig) -> tuple[str, str, str | None]:
        client_thread, ns, checkpoint_id = address(config)
        threads = self._find_threads(client_thread)
        if threads is None:
            return "", ns, checkpoint_id  # a thread that nobody has
        thread = self._thread_with(threads, ns, checkpoint_id) if checkpoint_id else None
        return thread or threads.current, ns, checkpoint_id

    def _thread_with(self, threads: SessionThreads, ns: str, checkpoint_id: str) -> str | None:
        """Return the thread that has a checkpoint: the current one, else that of the oldest branch."""
        found = {row.thread_id for row in self._read_copies(threads, ns, checkpoint_id)}
        ordered = [threads.current, *threads.all]
        return next((thread for thread in ordered if thread in found), None)

    def _read_copies(self, threads: SessionThreads, ns: str, checkpoint_id: str) -> Sequence[Any]:
        c = GRAPH_CHECKPOINT.c
        query = select(c.thread_id, c.parent_id).where(
            c.thread_id.in_(threads.all), c.ns == ns, c.checkpoint_id == checkpoint_id
        )
        with self.database.reading() as transaction:
            return transaction.execute(query).all()

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read the checkpoint that the config names, or the newest of the current branch."""
        client_thread, ns, _ = address(config)
        found = super().get_tuple(config)
        if found is None:
            return None
        if found.parent_config is None and (threads := self._find_threads(client_thread)) is not None:
            # A fork copies a checkpoint without its parents.
            id = found.config["configurable"]["checkpoint_id"]
            parents = [row.parent_id for row in self._read_copies(threads, ns, id) if row.parent_id]
            if parents:
                found = found._replace(parent_config=config_of(GraphKey(client_thread, ns, parents[0])))
        return _for_client(found, client_thread)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """List the checkpoints of all branches, newest first, each once."""
        if config is None:
            raise InvalidInput('Name the thread to list: {"configurable": {"thread_id": …}}.')
        client_thread, _, _ = address(config)
        threads = self._find_threads(client_thread)
        copies = groupby(super().list(config, filter=filter, before=before), key=_name)
        for number, (_, group) in enumerate(copies):
            if threads is None or number == limit:
                return
            same = [*group]
            shown = next((one for one in same if _thread(one) == threads.current), same[-1])
            parent = next((one.parent_config for one in same if one.parent_config is not None), None)
            yield _for_client(shown._replace(parent_config=parent), client_thread)

    def _scope(self, config: RunnableConfig | None) -> tuple[GraphScope, Sequence[str] | None]:
        graph_scope = scope(config)
        threads = self._find_threads(graph_scope.thread or "")
        return graph_scope._replace(thread=None), threads.all if threads is not None else ()

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        raise InvalidInput(READ_ONLY)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        raise InvalidInput(READ_ONLY)


READ_ONLY = (
    "Threads of sessions are written only by runs of repo.graph(...). A host deletes and copies them with repo.saver()."
)


def _name(found: CheckpointTuple) -> tuple[str, str]:
    configurable = found.config["configurable"]
    return configurable["checkpoint_id"], configurable["checkpoint_ns"]


def _thread(found: CheckpointTuple) -> str:
    return str(found.config["configurable"]["thread_id"])


def _for_client(found: CheckpointTuple, client_thread: str) -> CheckpointTuple:
    """Return a checkpoint with the thread id that the client knows."""

    def renamed(config: RunnableConfig) -> RunnableConfig:
        return {**config, "configurable": {**config["configurable"], "thread_id": client_thread}}

    parent = found.parent_config
    return found._replace(config=renamed(found.config), parent_config=renamed(parent) if parent is not None else None)
