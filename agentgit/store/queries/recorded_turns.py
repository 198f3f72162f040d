"""The turns of a recorded branch, read from its graph checkpoints: inputs, commands, updates, questions and answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import and_, func, or_, select

from agentgit.errors import InvalidInput
from agentgit.langgraph_internals import TASKS
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import (
    AS_NODE,
    ASKED,
    ASKED_INDEX,
    BRANCH_TO,
    ERROR,
    INTERRUPT,
    NULL_TASK,
    RESUME,
    GraphCheckpoint,
    GraphKey,
    PendingWrite,
    parse_graph_checkpoint,
    parse_write,
    parse_writes_by_checkpoint,
)

INPUT, COMMAND, UPDATE, CONTINUE = "input", "command", "update", "continue"
"""The kinds of a recorded turn: new input, a `Command` that a caller gave, an update of the state, and no input: the
graph went on from the state at the start."""

UPDATE_PATH = f"~{INTERRUPT}"
"""The beginning of the task path of what `update_state` writes."""

PAGE = 512
"""The number of graph checkpoints that are read at once."""


@dataclass
class TurnRecord:
    kind: str
    writes: Sequence[PendingWrite]
    before: GraphKey | None = None
    began: Sequence[datetime] = ()
    times: list[datetime] = field(default_factory=list)
    has_raised: bool = False
    has_failed: bool = False
    pending: Sequence[PendingWrite] = ()
    as_node: str | None = None


class RecordedQuestions(NamedTuple):
    """The questions of one task, and a person's answers to them."""

    questions: Mapping[int, PendingWrite]
    last: PendingWrite | None
    answers: PendingWrite | None
    path: str


def read_turns(
    store: Store,
    transaction: Reading,
    branch: StoredRow,
    start: str | None,
    end: str | None,
    input_channels: Sequence[str],
) -> list[TurnRecord]:
    """Read the turns of a path after one graph checkpoint and up to another."""
    turns: list[TurnRecord] = []
    next_step = FIRST_STEP
    previous: Mapping[str, Any] = {}
    before: GraphKey | None = None
    is_started, is_ended = start is None, False
    for checkpoint, writes, is_new in _read_path(store, transaction, branch):
        step = checkpoint.meta.get("step")
        if is_started and is_new and isinstance(step, int) and step > next_step:
            raise InvalidInput(
                f"Branch {branch.name} lacks steps, and with them the inputs of its turns, so nothing was run: gc has "
                "deleted them, or they were never saved. Choose a later start, and let gc keep the steps of sessions "
                "that you run again."
            )
        next_step = step + 1 if isinstance(step, int) else next_step
        if is_started and is_new:
            source, time = checkpoint.meta.get("source"), checkpoint.made_at
            if source == "input":
                versions = checkpoint.header["versions"]
                changed = [name for name in input_channels if versions.get(name) != previous.get(name)]
                found = [PendingWrite("", name, checkpoint.values[name], checkpoint.session_id) for name in changed]
                turns.append(TurnRecord(INPUT, found, before, [time]))
            else:
                turns = turns or [TurnRecord(CONTINUE, [], before)]
                turns[-1].times.append(time)
                turns[-1].has_failed = False
                turns[-1].as_node = turns[-1].as_node or checkpoint.meta.get(AS_NODE)
                turns[-1].pending = [
                    PendingWrite("", name, key, checkpoint.session_id)
                    for name, key in checkpoint.values.items()
                    if name == TASKS or name.startswith(BRANCH_TO)
                ]
        is_started = is_started or checkpoint.key.checkpoint_id == start
        previous, before = checkpoint.header["versions"], checkpoint.key
        is_ended = is_ended or checkpoint.key.checkpoint_id == end
        if is_ended:
            break
        if is_started:
            given = [write for write in writes if write.task_id == NULL_TASK and write.channel != RESUME]
            updates = [write for write in writes if write.task_path.startswith(UPDATE_PATH)]
            groups = ((COMMAND, given), (UPDATE, updates))
            begun = [TurnRecord(kind, group, before) for kind, group in groups if group]
            # The tasks of a command run on the same graph checkpoint; those of an update, on the next one.
            run_here = [*turns[-1:], *(turn for turn in begun if turn.kind == COMMAND)]
            if run_here and any(write.channel == ERROR for write in writes):
                run_here[-1].has_raised = run_here[-1].has_failed = True
            turns += begun
    if not is_started or (end is not None and not is_ended):
        raise InvalidInput("start and end must be checkpoints of this branch's path, and end must not be before start.")
    return turns


FIRST_STEP = -1
"""LangGraph's number of the first step of a thread."""


def _read_path(
    store: Store, transaction: Reading, branch: StoredRow
) -> Iterator[tuple[GraphCheckpoint, list[PendingWrite], bool]]:
    """Yield the graph checkpoints of a path, what callers and failed tasks wrote there, and whether it is no copy."""
    lineage = [segment.branch for segment in store.sessions.lineage(transaction, branch)]
    for row, child in zip(lineage, [*lineage[1:], None], strict=True):
        is_new = row.parent_id is None
        last_id = first_id(transaction, child) if child is not None else None
        if child is not None and last_id is None:
            continue  # the child began with the empty state
        writes = _read_writes(transaction, row)
        for checkpoint in _read_thread(transaction, row.thread_id):
            checkpoint_id = checkpoint.key.checkpoint_id
            if checkpoint_id == last_id:
                if is_new:
                    yield checkpoint, [], True
                break
            yield checkpoint, writes.get(checkpoint_id, []), is_new
            is_new = True


def _read_thread(transaction: Reading, thread: str, page_size: int = PAGE) -> Iterator[GraphCheckpoint]:
    columns, after = GRAPH_CHECKPOINT.c, -1
    query = select(GRAPH_CHECKPOINT).where(columns.thread_id == thread, columns.ns == "")
    while True:
        page = query.where(columns.seq > after).order_by(columns.seq).limit(page_size)
        rows = transaction.execute(page).all()
        yield from map(parse_graph_checkpoint, rows)
        if len(rows) < page_size:
            return
        after = rows[-1].seq


def first_id(transaction: Reading, branch: StoredRow) -> str | None:
    """Return LangGraph's id of the first state on a branch; None if there is none."""
    return next((one.key.checkpoint_id for one in _read_thread(transaction, branch.thread_id, 1)), None)


def _read_writes(transaction: Reading, branch: StoredRow) -> dict[str, list[PendingWrite]]:
    columns = GRAPH_WRITE.c
    is_read = or_(
        columns.task_id == NULL_TASK,
        columns.channel == ERROR,
        columns.task_path.startswith(UPDATE_PATH, autoescape=True),
    )
    query = select(GRAPH_WRITE).where(columns.thread_id == branch.thread_id, columns.ns == "", is_read)
    return parse_writes_by_checkpoint(transaction.execute(query))


def read_questions(
    store: Store, transaction: Reading, branch: StoredRow, start: str | None, end: str
) -> list[RecordedQuestions]:
    """Read the questions that the tasks of a path asked, with the answers, oldest first."""
    threads = [segment.branch.thread_id for segment in store.sessions.lineage(transaction, branch)]
    roots = GRAPH_CHECKPOINT.c
    is_after = and_(roots.thread_id.in_(threads), roots.ns == "", roots.checkpoint_id > end)
    # What subgraphs saved on the last state is newer than it.
    after = transaction.execute(select(func.min(roots.checkpoint_id)).where(is_after)).scalar()
    columns = GRAPH_WRITE.c
    query = select(GRAPH_WRITE).where(
        columns.thread_id.in_(threads),
        columns.channel.in_((ASKED, INTERRUPT, RESUME)),
        columns.task_id != NULL_TASK,
        *((columns.checkpoint_id >= start,) if start is not None else ()),
        *((columns.checkpoint_id < after,) if after is not None else ()),
    )
    rows = transaction.execute(query).all()
    paths = {row.task_id: row.task_path for row in rows}
    # The question of a subgraph also stands at the tasks that called it.
    callers = {part.partition(":")[2] for row in rows for part in row.ns.split("|")}
    tasks: dict[str, RecordedQuestions] = {}
    # A nearer branch has copied the questions of its branch point, and its own answers count.
    for row in sorted(rows, key=lambda row: (row.checkpoint_id, threads.index(row.thread_id))):
        if row.task_id in callers:
            continue
        root = row.ns.partition("|")[0].partition(":")[2] or row.task_id
        key, write = f"{row.ns}/{row.checkpoint_id}/{row.task_id}", parse_write(row)
        task = tasks.setdefault(key, RecordedQuestions({}, None, None, task_place(paths.get(root, ""))))
        if row.channel == RESUME:
            tasks[key] = task._replace(answers=write)
        elif row.channel == INTERRUPT:
            tasks[key] = task._replace(last=write)
        else:
            tasks[key] = task._replace(questions={**task.questions, ASKED_INDEX - row.idx: write})
    return list(tasks.values())


def read_tasks(store: Store, transaction: Reading, branch: StoredRow) -> list[tuple[str, str]]:
    """Read the paths and the ids of the tasks that the graph itself started on a path and the branches before it."""
    threads = [segment.branch.thread_id for segment in store.sessions.lineage(transaction, branch)]
    columns = GRAPH_WRITE.c
    query = select(columns.task_path, columns.task_id).where(
        columns.thread_id.in_(threads), columns.ns == "", columns.task_id != NULL_TASK
    )
    return [(row.task_path, row.task_id) for row in transaction.execute(query.distinct())]


def task_place(path: str) -> str:
    """Return the path of a task without the ids of other tasks in it, which are new in each run."""
    return _TASK_ID.sub("", path)


_TASK_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
