"""The threads of a served graph: each is a session, and a run takes place on one of its branches."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple
from weakref import WeakValueDictionary

from langchain_core.runnables import RunnableConfig

from agentgit.agents.branch_context import ClientThread, Graph
from agentgit.agents.branch_runner import Run
from agentgit.agents.graph import confirmation
from agentgit.agents.graph.confirmation import Confirmation, describe
from agentgit.agents.graph.host_saver import POLL_INTERVAL, HostSaver, ThreadSessions
from agentgit.agents.graph.served_graphs import GRAPH_NAME, HostRun, ServedGraphs
from agentgit.agents.graph.thread_runner import ThreadRunner, run_id_of
from agentgit.agents.memory import store_of_run
from agentgit.agents.wrap import PreparedGraph
from agentgit.auth.principal import WRITE
from agentgit.effects import RollbackPlan
from agentgit.effects.function_names import printable_name
from agentgit.errors import InvalidInput, NotFound, PlanChanged, RollbackBlocked
from agentgit.handles.branching import Branching
from agentgit.handles.context import Context
from agentgit.handles.rollbacks import Rollbacks
from agentgit.handles.templates import LONGEST_NAME, require_name
from agentgit.next_steps import Next
from agentgit.rollback.request import RollbackOptions, require_one_of
from agentgit.saver.config import address, require_checkpoint_id
from agentgit.store.queries.graph_points import BranchHead, GraphPlace, GraphPoint
from agentgit.store.records.json_columns import read_meta
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads.graph_rows import INTERRUPT, RESUME

Confirm = Literal["interrupt", "raise", "never"]
"""What a run does before it reverses an effect that a compensating action only makes good."""


class Threads(ThreadSessions):
    """The threads of a served graph."""

    def __init__(self, context: Context, wrapped: PreparedGraph, confirm: Confirm) -> None:
        require_one_of("confirm", confirm, ("interrupt", "raise", "never"))
        super().__init__(context)
        self.wrapped, self.confirm = wrapped, confirm
        self.graphs = ServedGraphs.of(context.registry)
        self.graphs.add(wrapped)
        self.reader = HostSaver(context)
        self.reader.channels = wrapped.graph.channels
        self._runners: WeakValueDictionary[str, ThreadRunner] = WeakValueDictionary()
        """The last runner of each thread, as long as something needs it."""

    async def await_previous_run(self, config: RunnableConfig) -> None:
        """Wait for a run of the same thread that was cancelled, or briefly if its stream was not read to its end."""
        thread_id, _, _ = address(config)
        runner = self._runners.get(thread_id)
        if runner is not None:
            await runner.await_previous_turn()
        while thread_id in self.graphs.held:
            await asyncio.sleep(POLL_INTERVAL)

    # -- sessions

    def ensure(self, thread_id: str) -> int:
        """Return the id of the session of a thread, which is created if there is none."""
        return self.find(thread_id) or self.context.change(lambda c: self._find_or_create(c, thread_id))

    def _find_or_create(self, transaction: Writing, thread_id: str) -> int:
        sessions, user_id = self.context.store.sessions, self.context.user.id
        session_id = sessions.of_thread(transaction, user_id, thread_id)
        if session_id is not None:
            return session_id
        self.context.lookup.require_scope(transaction, WRITE)
        require_name(thread_id[:LONGEST_NAME])
        name, taken = thread_id[:LONGEST_NAME], sessions.names(transaction, user_id)
        number = 2
        while name in taken:  # another session was renamed to it, or has a thread id that begins in the same way
            name, number = f"{thread_id[: LONGEST_NAME - 8]}-{number}", number + 1
        return sessions.create(transaction, user_id, name, thread_id, {GRAPH_NAME: self.wrapped.name})

    # -- runs

    def run(self, config: RunnableConfig, input: Any, graph: Graph) -> Run:
        """Bring a thread and its world to the point at which a run begins."""
        thread = self._open(config, graph, is_answered=confirmation.is_resume(input))
        branch, asked, is_declined = thread.branch, thread.asked, False
        if thread.moves_to is not None:
            branch, asked = self._move(thread, thread.moves_to)
            input = confirmation.without_answer(input) if asked is not None else input
        elif asked is not None:
            branch, input, asked = self._answer(thread, input, asked)
            is_declined = branch.id == thread.previous_id and input is None
        elif confirmation.is_resume(input):
            self._require_known_question(config)
        host_run = self._host_run(config, input, branch, asked) if run_id_of(config) is not None else None
        runner = self._runner(thread, branch, config, graph, asked, host_run)
        return Run(runner, input, _run_config(config), is_declined)

    def _host_run(self, config: RunnableConfig, input: Any, branch: StoredRow, asked: Confirmation | None) -> HostRun:
        """Return where a run of a host begins. Only a turn with a new input makes a checkpoint of that point."""
        start_id = None
        if asked is None and (input is None or confirmation.is_resume(input)):
            branching = Branching(self.context, branch.external_session_id)
            snapshot = branching.take_snapshot("run")
            start_id = self.context.change(lambda c: branching.ensure_checkpoint(c, branch.id, snapshot)).id
        thread_id, _, _ = address(config)
        return HostRun(thread_id, branch.external_session_id, branch.id, branch.epoch, branch.head_id, start_id)

    def update(self, config: RunnableConfig, graph: Graph) -> Run:
        """Bring a thread to the point at which its state is updated. The next run brings the world to it."""
        thread = self._open(config, graph)
        branch, asked, cancel = thread.branch, thread.asked, None
        if thread.moves_to is not None:
            branch, asked = self._fork(thread, thread.moves_to, Confirmation(previous=thread.previous_id))
            cancel = partial(self._leave, thread, branch, thread.branch.id)
        runner = self._runner(thread, branch, config, graph, asked)
        runner.leaves_world_alone()
        ns = config["configurable"].get("checkpoint_ns")
        own = {"checkpoint_ns": ns} if ns else {}
        run_config = _run_config(config)
        return Run(runner, None, {**run_config, "configurable": {**run_config["configurable"], **own}}, cancel=cancel)

    def _open(self, config: RunnableConfig, graph: Graph, *, is_answered: bool = False) -> _Thread:
        thread_id, _, _ = address(config)
        place = _place(config["configurable"], is_answered=is_answered)
        head = self.context.read(lambda transaction: self.find_head(transaction, thread_id))
        if head is None:
            if place is not None:
                raise _no_checkpoint(thread_id, place.checkpoint_id)
            self.ensure(thread_id)
            head = self.context.read(lambda transaction: self.find_head(transaction, thread_id))
        if head is None:
            raise NotFound(f"Thread {thread_id} was deleted. Nothing was run.")
        session_id = head.row.external_session_id
        self.wrapped.attach(session_id, store_of_run(config["configurable"], graph.store))
        thread = _Thread(Rollbacks(self.context, session_id), head, confirmation.read(read_meta(head.row)), None)
        if place is None or (place.checkpoint_id == head.checkpoint_id and not place.subgraphs):
            return thread
        point = self.find_point(session_id, place)
        if point is None:
            raise _no_checkpoint(thread_id, place.checkpoint_id)
        is_here = point.is_head and point.branch.id == thread.branch.id  # it was saved in the meantime
        return thread if is_here else thread._replace(moves_to=point)

    def _require_known_question(self, config: RunnableConfig) -> None:
        """Check that an answer is not for a question for consent of which nothing else is known here."""
        newest = self.reader.get_tuple(_run_config(config))
        writes = (newest.pending_writes or []) if newest is not None else []
        ended = {task for task, channel, _ in writes if channel not in (INTERRUPT, RESUME)}  # their questions stay
        waiting = (given for task, channel, given in writes if channel == INTERRUPT and task not in ended)
        values = [one.value for given in waiting for one in given]
        if any(map(confirmation.is_question, values)):
            raise InvalidInput(
                "This question was asked in another database, so nothing was run. Run at an older checkpoint again."
            )

    def _runner(
        self,
        thread: _Thread,
        branch: StoredRow,
        config: RunnableConfig,
        graph: Graph,
        asked: Confirmation | None,
        host_run: HostRun | None = None,
    ) -> ThreadRunner:
        client = ClientThread(address(config)[0], self.reader)
        known = thread.head if branch is thread.branch else branch.id
        is_confirmed = thread.asked is not None and asked is None and branch.id == thread.branch.id
        # A run that only asks leaves the files of its branch as they are to be restored.
        settings = self.wrapped.settings if asked is None else replace(self.wrapped.settings, workspace=None)
        runner = ThreadRunner(
            self.context, graph, settings, known, client, asked, is_confirmed=is_confirmed, host_run=host_run
        )
        self._runners[client.id] = runner
        return runner

    def _move(self, thread: _Thread, point: GraphPoint) -> tuple[StoredRow, Confirmation | None]:
        """Roll back to a point, or switch to the branch whose head it is."""
        rollbacks, current_id = thread.rollbacks, thread.branch.id
        if point.is_head:
            plan = rollbacks.plan_switch(point.branch.id)
            if not self._requires_consent(plan):
                self._reconcile(thread, point.branch.id, plan)
                return rollbacks.read_branch(point.branch.id), None
        elif point.branch.id == current_id:
            point = self.require_target(rollbacks.session_id, point)
            options = RollbackOptions(only_from_current=True)
            plan = rollbacks.plan(point, current_id, options)
            if not self._requires_consent(plan):
                return rollbacks.read_branch(rollbacks.run(point, current_id, replace(options, plan=plan))), None
        # What is asked is what is done then: the world is brought to the new branch.
        branch, asked = self._fork(thread, point, Confirmation(previous=thread.previous_id))
        return self._bring_world(thread, branch, asked)

    def _requires_consent(self, plan: RollbackPlan) -> bool:
        """Return whether a run must ask before it acts on the world."""
        if not plan.is_admissible:
            raise RollbackBlocked(f"Nothing was done. {plan.blocking_reasons}.", *plan.next, plan=plan)
        steps = [step for step in plan.steps if confirmation.needs_consent(step)]
        if not steps or self.confirm == "never":
            return False
        if self.confirm == "raise":
            raise RollbackBlocked(f"Nothing was done. This needs consent: {'; '.join(map(str, steps))}.", plan=plan)
        return True

    def _reconcile(self, thread: _Thread, branch_id: int, plan: RollbackPlan | str) -> None:
        """Bring the world to the state of a branch as planned, and continue there."""
        thread.rollbacks.switch(branch_id, thread.branch.id, sync="world", only_from_current=True, plan=plan)

    def _fork(self, thread: _Thread, point: GraphPoint, asked: Confirmation) -> tuple[StoredRow, Confirmation]:
        """Continue on a new branch, and leave the world as it is until a run has brought it to that branch."""
        point = self.require_target(thread.rollbacks.session_id, point)
        branching = Branching(self.context, thread.rollbacks.session_id)
        snapshot = self.context.engine().files.of_checkpoint(point.require_target())
        return self._ask(thread, branching.fork(thread.branch.id, point, None, snapshot).row.id, asked)

    def _ask(self, thread: _Thread, branch_id: int, asked: Confirmation) -> tuple[StoredRow, Confirmation]:
        self._remember(branch_id, asked)
        return thread.rollbacks.set_current_branch(branch_id, source_id=thread.branch.id), asked

    def _answer(self, thread: _Thread, input: Any, asked: Confirmation) -> tuple[StoredRow, Any, Confirmation | None]:
        """Act on a person's answer, or ask if nothing was asked yet."""
        rollbacks, branch = thread.rollbacks, thread.branch
        if asked.plan is None or not self._is_waiting(branch):
            branch, question = self._bring_world(thread, branch, asked)
            return branch, confirmation.without_answer(input) if question is not None else input, question
        if input is None or (confirmation.is_resume(input) and confirmation.is_of_another(input, asked.plan)):
            return branch, None, asked
        if not (confirmation.is_resume(input) and confirmation.is_consent(input)):
            input = None if confirmation.is_resume(input) else input
            return self._leave(thread, branch, asked.previous), input, None
        input = confirmation.without_answer(input)
        try:
            self._reconcile(thread, branch.id, asked.plan["identity"])
        except PlanChanged:
            branch, question = self._bring_world(thread, branch, asked)
            return branch, input, question
        self._remember(branch.id, None)
        # The task begins now, and asks its own questions.
        return rollbacks.read_branch(branch.id), input, None

    def _bring_world(
        self, thread: _Thread, branch: StoredRow, asked: Confirmation
    ) -> tuple[StoredRow, Confirmation | None]:
        """Bring the world to the state of the current branch, or return the question to ask first."""
        plan = thread.rollbacks.plan_switch(branch.id)
        try:
            requires_consent = self._requires_consent(plan)
        except RollbackBlocked:
            self._leave(thread, branch, asked.previous)
            raise
        if requires_consent:
            return self._ask(thread, branch.id, Confirmation(previous=asked.previous, plan=describe(plan)))
        self._reconcile(thread, branch.id, plan)
        self._remember(branch.id, None)
        return thread.rollbacks.read_branch(branch.id), None

    def _leave(self, thread: _Thread, branch: StoredRow, previous_id: int) -> StoredRow:
        """Return to a previous branch from one to which the world was not brought."""
        self._remember(branch.id, None)
        return thread.rollbacks.set_current_branch(previous_id, source_id=branch.id)

    def _is_waiting(self, branch: StoredRow) -> bool:
        graphs = self.context.store.graphs

        def read(transaction: Reading) -> bool:
            newest = graphs.newest(transaction, branch.thread_id)
            return newest is not None and bool(self.context.store.asked(transaction, newest))

        return self.context.read(read)

    def _remember(self, branch_id: int, asked: Confirmation | None) -> None:
        entry = confirmation.entry(asked)
        self.context.change(lambda c: self.context.store.sessions.merge_metadata(c, branch_id, entry))


class _Thread(NamedTuple):
    """A thread when a run begins."""

    rollbacks: Rollbacks
    head: BranchHead
    asked: Confirmation | None
    moves_to: GraphPoint | None

    @property
    def branch(self) -> StoredRow:
        return self.head.row

    @property
    def previous_id(self) -> int:
        """The branch to return to without consent: the current one, unless it waits for consent itself."""
        return self.branch.id if self.asked is None else self.asked.previous


def _no_checkpoint(thread_id: str, checkpoint_id: str) -> NotFound:
    return NotFound(
        f"Thread {printable_name(thread_id)} has no checkpoint {printable_name(checkpoint_id)}.",
        Next("list_checkpoints"),
    )


def _place(configurable: Mapping[str, Any], *, is_answered: bool) -> GraphPlace | None:
    ns, id = configurable.get("checkpoint_ns"), require_checkpoint_id(configurable.get("checkpoint_id"))
    if not ns:
        return GraphPlace(id, is_answered=is_answered) if id else None
    given = configurable.get("checkpoint_map")
    ids_by_ns = {str(k): require_checkpoint_id(v) or "" for k, v in given.items()} if isinstance(given, Mapping) else {}
    root_id, inner_id = ids_by_ns.pop("", None), id or ids_by_ns.pop(str(ns), None)
    ids_by_ns = {**{k: v for k, v in ids_by_ns.items() if k != ns}, str(ns): inner_id} if inner_id else {}
    return GraphPlace(root_id, ids_by_ns, is_answered) if root_id else None


def _run_config(config: RunnableConfig) -> RunnableConfig:
    """Return a config without the checkpoint from which its run begins, which is the newest one then."""
    left_out = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")
    kept = {k: v for k, v in config["configurable"].items() if k not in left_out}
    return {**config, "configurable": {**kept, "thread_id": str(kept["thread_id"])}}
