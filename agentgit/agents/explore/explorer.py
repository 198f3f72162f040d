"""Explorations: the same steps in several variants, each on its own branch.

Variants share their common first steps. Each step of each variant is one turn, on a branch forked from the end of the
step before. So n steps with α choices are α + α² + … + αⁿ turns, and not n·αⁿ.

Variants run depth first, one after the other. Before each turn the world is brought to the state of its branch, as
`switch(sync="world")` does. All results are saved in the database as they occur, so that the same call continues an
interrupted exploration.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor, merge_configs
from sqlalchemy import Connection

from agentgit.agents import inputs
from agentgit.agents.branch_context import BranchContext
from agentgit.agents.branch_runner import BranchRunner
from agentgit.agents.explore.variants import Variant
from agentgit.agents.memory import is_wrappable
from agentgit.async_api import awaiting
from agentgit.checkpoints import references
from agentgit.effects import ToolInvocation, invocation
from agentgit.effects.effects import NEUTRAL, UNDECLARED
from agentgit.effects.files import SnapshotRef
from agentgit.effects.memory import MEMORY_TOOLS, is_memory_write
from agentgit.effects.plan import BLOCK, REDO, REVERSE
from agentgit.errors import Conflict, InvalidInput, WorldDiverged
from agentgit.handles.branching import Branching
from agentgit.handles.rollbacks import Rollbacks
from agentgit.rollback import awaiter_for_current_loop
from agentgit.rollback.crash_recovery import recover_all_abandoned
from agentgit.rollback.verification import await_result
from agentgit.sessions.tree import BEGUN, DONE, FAILED, WAITING, ExploredBranch
from agentgit.store.queries.explorations import Explorations, branch_name, mark_of
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import CHECKPOINT

DEFAULT_CONCURRENCY = 8
"""The default number of turns that run at the same time."""


def run_exploration(explorer: Explorer, max_concurrency: int) -> None:
    """Run the turns of an exploration.

    Args:
        explorer: The exploration.
        max_concurrency: The maximum number of turns that run at the same time.
    """
    with _note_on_error(explorer):
        for trials in explorer.walk():
            _run_all(trials, max_concurrency)


async def arun_exploration(explorer: Explorer, max_concurrency: int) -> None:
    """Run the turns of an exploration, as `run_exploration`, on the event loop."""
    with _note_on_error(explorer), awaiting():
        walk = explorer.walk()
        while (trials := await asyncio.to_thread(next, walk, None)) is not None:
            await _arun_all(trials, max_concurrency)


def parse_parallel(parallel: bool | int) -> int:
    """Return how many turns may run at the same time.

    Raises:
        InvalidInput: The number is negative.
    """
    if parallel < 0:
        raise InvalidInput(f"parallel must be 0 or more, not {parallel}.")
    return DEFAULT_CONCURRENCY if parallel is True else max(1, int(parallel))


@contextmanager
def _note_on_error(explorer: Explorer) -> Iterator[None]:
    """Add a note to an error that ends an exploration: where to find the results so far."""
    try:
        yield
    except BaseException as error:
        if explorer.is_begun:
            error.add_note(
                f"The results so far: agent.exploration({explorer.name!r}). "
                f"To continue, call the same explore(...) with name={explorer.name!r}."
            )
        raise


def _run_all(trials: list[ExploredTurn], max_concurrency: int) -> None:
    if len(trials) == 1:
        _run(trials[0])
        return
    with ContextThreadPoolExecutor(max_concurrency) as pool:
        list(pool.map(_run, trials))


def _run(trial: ExploredTurn) -> None:
    try:
        trial.agent.invoke(trial.value, trial.config)
    except Exception as error:  # noqa: BLE001  # any error of a graph is recorded with its branch
        trial.error = error


async def _arun_all(trials: list[ExploredTurn], max_concurrency: int) -> None:
    semaphore = asyncio.Semaphore(max_concurrency)

    async def run(trial: ExploredTurn) -> None:
        async with semaphore:
            try:
                await trial.agent.ainvoke(trial.value, trial.config)
            except Exception as error:  # noqa: BLE001  # as in `_run`
                trial.error = error

    await asyncio.gather(*map(run, trials))


Score = Callable[[ExploredBranch], float | Awaitable[float]]
"""A function that rates a leaf. Higher is better."""


@dataclass
class ExploredTurn:
    """One turn of an exploration.

    Args:
        agent: The agent on the branch of this turn.
        choices: The number of the choice, from 1, at each step up to this one.
        value: The input of the graph.
        config: The config to run the graph with.
        is_pending: True if the turn must be run; False if it has run, or waits for a user's answer.
        end_id: The id of the checkpoint at its end; None if it has not ended.
        error: The exception that it raised.
    """

    agent: BranchRunner
    choices: tuple[int, ...]
    value: Any
    config: RunnableConfig
    is_pending: bool = True
    end_id: int | None = None
    error: Exception | None = None


class Explorer:
    """Creates the branches of one exploration, yields the turns to run, and records their results.

    Args:
        branch: The branch to start from.
        create_runner: A function that returns a runner of the graph on another branch.
        variants: The variants of each step.
        name: The name of the exploration, which may be one to continue; None for a new name.
        score: A function that rates a leaf.
        config: The config for all turns.
        together: True if turns are to run at the same time.
    """

    def __init__(
        self,
        branch: BranchContext,
        create_runner: Callable[[int], BranchRunner],
        variants: list[list[Variant]],
        *,
        name: str | None,
        score: Score | None,
        config: RunnableConfig | None,
        together: bool,
    ) -> None:
        self.branch = branch
        self.create_runner = create_runner
        self.settings = self.branch.settings
        self.branching = Branching(self.branch.context, self.branch.session_id)
        self.rollbacks = Rollbacks(self.branch.context, self.branch.session_id)
        self.variants = variants
        self.name = name if name is None else references.require_branch_name(name)
        self.score = score
        self.config = config
        self.together = together
        self.store = self.branch.store
        self.explorations = Explorations(self.store)
        self._explored_rows: dict[str, StoredRow] = {}
        self._must_sync_world = False
        self._initial_log_length: int | None = None
        """The length of the world log while the world is in its state from the start of the exploration; else None."""
        self.is_begun = False
        """True if branches of the exploration may exist."""

    @property
    def _required_name(self) -> str:
        return str(self.name)

    def walk(self) -> Iterator[list[ExploredTurn]]:
        """Yield lists of turns that may run at the same time; run each list before requesting the next one.

        Raises:
            InvalidInput: Turns are to run at the same time, but the tools change the world.
            WorldDiverged: The world is not as the agent's branch left it.
            RollbackBlocked, RollbackIncomplete: The world cannot be brought to the state of the next branch.
            Conflict: The name belongs to another exploration.
        """
        kinds = self.settings.effects.kinds()
        acting_tools = [name for name, kind in kinds.items() if kind not in (*NEUTRAL, UNDECLARED)]
        if self.settings.workspace is not None:
            acting_tools.append("those that write files")
        writers = [*acting_tools, *(["those that write to memory"] if self._shares_memory else [])]
        if self.together and writers:
            raise InvalidInput(
                f"These tools change the world: {', '.join(writers)}. Branches that run in parallel would affect "
                "each other. Leave parallel out, so that they run one after the other, each in its own world."
            )
        recover_all_abandoned(self.store, self.branch.session_id)
        files = self.branch.take_snapshot("before an exploration")
        beginning = self.store.database.write(lambda connection: self._begin(connection, files), durable=True)
        self.name, self._explored_rows, start_row = beginning
        self._must_sync_world = self._check_world(start_row, acting_tools)
        self.is_begun = True
        yield from self._breadth_first(start_row.id) if self.together else self._depth_first(start_row.id, ())
        # With another agent, so that this agent still notices if somebody else has moved its branch meanwhile.
        self._sync_world(self.create_runner(self.branch.branch_id))

    @property
    def _shares_memory(self) -> bool:
        """True if the graph has a store whose writes are undone, so that its branches would affect each other."""
        declared = self.settings.effects.tools
        return is_wrappable(self.branch.graph.store) and not all(declared.get(name) for name in MEMORY_TOOLS)

    def _begin(self, connection: Connection, files: SnapshotRef | None) -> tuple[str, dict[str, StoredRow], StoredRow]:
        """Return the name, the branches explored before, and the checkpoint from which the exploration starts."""
        session_id = self.branch.session_id
        self.branch.authorize(connection)
        name = self.name or self.explorations.free_name(connection, session_id)
        rows = self.explorations.load_branches(connection, session_id, name)
        if rows and mark_of(rows[0])["of"] != self.branch.branch_id:
            raise Conflict(f"An exploration {name!r} from another branch already exists. Choose another name.")
        # A continued exploration keeps its starting point, even if the branch has moved since.
        start_row = (
            self.branch.checkpoint(connection, rows[0].branch_point_id)
            if rows
            else self.branching.ensure_checkpoint(connection, self.branch.branch_id, files)
        )
        return name, {row.name: row for row in rows}, start_row

    # -- order

    def _depth_first(self, start_id: int, choices: tuple[int, ...]) -> Iterator[list[ExploredTurn]]:
        """Yield the turns depth first, so that the effects of a step need not be repeated for the steps after it."""
        for number, variant in enumerate(self.variants[len(choices)], 1):
            trial = self._prepare_turn(start_id, (*choices, number), variant)
            if trial.is_pending or self._is_unscored(trial):
                self._sync_world(trial.agent)
            if trial.is_pending:
                yield [trial]
            self._record_turns([trial])
            if trial.end_id is not None and not self._is_leaf(trial):
                yield from self._depth_first(trial.end_id, trial.choices)

    def _breadth_first(self, start_id: int) -> Iterator[list[ExploredTurn]]:
        """Yield the turns breadth first: the same step of all variants together."""
        level: list[tuple[int, tuple[int, ...]]] = [(start_id, ())]
        for step_variants in self.variants:
            trials = [
                self._prepare_turn(end, (*choices, number), variant)
                for end, choices in level
                for number, variant in enumerate(step_variants, 1)
            ]
            if pending := [trial for trial in trials if trial.is_pending]:
                yield pending
            self._record_turns(trials)
            level = [(trial.end_id, trial.choices) for trial in trials if trial.end_id is not None]

    def _is_leaf(self, trial: ExploredTurn) -> bool:
        return len(trial.choices) == len(self.variants)

    # -- the world

    def _check_world(self, start_row: StoredRow, acting_tools: list[str]) -> bool:
        """Return whether the world must be brought to the state of each branch before its turn.

        If no tool changes the world, differences in the world are ignored, except for memory, which any node can write.

        Raises:
            WorldDiverged: The world differs from its state at the starting point by effects that are not the
                exploration's own. The exploration would reverse these and never restore them.
        """
        with self.store.database.reading() as connection:
            own_positions = self._end_positions(connection)
            plan = self.branch.planner.plan_rollback(connection, self.branch.branch_id, start_row, "", replay=REDO)
            last_seq = self.store.world.last_seq(connection, self.branch.session_id)
        foreign_steps = [
            s
            for s in plan.steps
            if s.action in (REVERSE, REDO, BLOCK) and not _is_own_call(s.invocation, own_positions)
        ]
        blocking_steps = [step for step in foreign_steps if not is_memory_write(step.invocation)]  # memory is shared
        if blocking_steps and acting_tools:
            raise WorldDiverged(
                "An exploration reverses every effect that is not on its own path, and these are not its own: "
                f"{'; '.join(map(str, blocking_steps))}. First bring the world to this branch with "
                f"agent = agent.switch({start_row.branch_name!r}, sync='world'), or choose a new name.",
                plan,
            )
        self._initial_log_length = None if plan.changes_world else last_seq
        return bool(acting_tools) or not blocking_steps

    def _end_positions(self, connection: Connection) -> dict[int, float]:
        """Return for each explored branch the track position at the end of its turn; later calls are not part of it."""
        end_ids = {row.id: mark_of(row)["end"] for row in self._explored_rows.values()}
        rows = self.store.checkpoints.find(connection, CHECKPOINT.c.id.in_([end for end in end_ids.values() if end]))
        positions = {row.id: row.position for row in rows}
        return {branch_id: positions.get(end, math.inf) for branch_id, end in end_ids.items()}

    def _sync_world(self, agent: BranchRunner) -> None:
        """Reverse the effects of other variants, and run again the reversed calls of this one."""
        if not self._must_sync_world:
            return
        if self.settings.workspace is not None:
            plan = self.rollbacks.plan_switch(agent.branch_id)
        else:
            with self.store.database.reading() as connection:
                if self.store.world.last_seq(connection, self.branch.session_id) == self._initial_log_length:
                    return
                plan = self.branch.planner.plan_switch(
                    connection, self.store.sessions.branch(connection, agent.branch_id)
                )
        if plan.changes_world:
            self.rollbacks.switch(agent.branch_id, agent.branch_id, sync="world", current=False)

    # -- one turn

    def _prepare_turn(self, start_id: int, choices: tuple[int, ...], variant: Variant) -> ExploredTurn:
        """Create the branch of one turn, or return it if it exists."""
        name = branch_name(self._required_name, choices)
        title = inputs.parse(self.branch.graph, variant.value).title
        if name in self._explored_rows:
            return self._resume_turn(self._explored_rows[name], choices, variant, title)

        def fork(connection: Connection) -> int:
            self.branch.authorize(connection)
            target = self.branch.checkpoint(connection, start_id)
            source_id, user_id = target.internal_session_id, self.settings.user_id
            snapshot = self.store.snapshots.of_checkpoint(connection, target)
            branch_id = self.branch.context.engine().fork(connection, target, name, source_id, user_id, snapshot)
            self._mark(
                connection,
                branch_id,
                name=self._required_name,
                of=self.branch.branch_id,
                choices=choices,
                said=title,
                status=BEGUN,
                end=None,
            )
            return branch_id

        agent = self.create_runner(self.store.database.write(fork, durable=True))
        return ExploredTurn(agent, choices, variant.value, self._config(variant))

    def _resume_turn(
        self, row: StoredRow, choices: tuple[int, ...], variant: Variant, title: str | None
    ) -> ExploredTurn:
        """Resume a branch that exists: run its turn, continue it, or leave it as it is."""
        mark = mark_of(row)
        if mark["said"] != title:
            raise Conflict(
                f"{row.name} was explored with {mark['said']!r}, not with {title!r}. Give a new name or the same steps."
            )
        agent = self.create_runner(row.id)
        trial = ExploredTurn(agent, choices, variant.value, self._config(variant), is_pending=False, end_id=mark["end"])
        if trial.end_id is None:
            state = agent.get_state()
            with self.store.database.reading() as connection:
                branch_point = self.branch.checkpoint(connection, row.branch_point_id)
                newest = self.store.graphs.head(connection, row.thread_id)
            head_id = newest.checkpoint_id if newest is not None else None
            has_input = head_id != branch_point.graph_checkpoint_id
            trial.is_pending = not has_input or bool(state.next and not state.interrupts)
            trial.value = None if has_input else variant.value
        return trial

    def _config(self, variant: Variant) -> RunnableConfig:
        return merge_configs(self.config, variant.config)

    def _record_turns(self, trials: list[ExploredTurn]) -> None:
        """Record the results of turns, and score the leaves. A turn that raised is a failed leaf."""
        for trial in trials:
            if trial.end_id is None:
                self._record_result(trial)
            if self._is_unscored(trial):
                self._score_leaf(trial)

    def _record_result(self, trial: ExploredTurn) -> None:
        is_complete = trial.error is None and not trial.agent.get_state().next
        status = DONE if is_complete else FAILED if trial.error is not None else WAITING
        error = None if trial.error is None else f"{type(trial.error).__name__}: {trial.error}"

        def write(connection: Connection) -> int | None:
            end_id = (
                int(self.branching.ensure_checkpoint(connection, trial.agent.branch_id, None).id)
                if is_complete
                else None
            )
            self._mark(connection, trial.agent.branch_id, status=status, end=end_id, error=error)
            return end_id

        trial.end_id = self.store.database.write(write, durable=True)

    def _is_unscored(self, trial: ExploredTurn) -> bool:
        if self.score is None or trial.end_id is None or not self._is_leaf(trial):
            return False
        with self.store.database.reading() as connection:
            return mark_of(self.store.sessions.branch(connection, trial.agent.branch_id)).get("score") is None

    def _score_leaf(self, trial: ExploredTurn) -> None:
        """Score a leaf while the world is as the leaf left it."""
        assert self.score is not None  # noqa: S101  # `_is_unscored` is False without a score
        path_names = {branch_name(self._required_name, trial.choices[:end]) for end in range(1, len(trial.choices) + 1)}
        with self.store.database.reading() as connection:
            exploration = self.explorations.read(connection, self.branch.session_id, self._required_name, path_names)
        score = float(await_result(awaiter_for_current_loop(), self.score(exploration.branches[-1])))
        if math.isnan(score):
            raise InvalidInput(f"The score of {exploration.branches[-1].name} is not a number.")
        self.store.database.write(lambda c: self._mark(c, trial.agent.branch_id, score=score))

    def _mark(self, connection: Connection, branch_id: int, **facts: Any) -> None:
        self.explorations.update_mark(connection, self.store.sessions.branch(connection, branch_id), **facts)


def _is_own_call(call: ToolInvocation, positions: Mapping[int, float]) -> bool:
    """Return whether a call was made by a turn of the exploration, or was run again for one of its branches."""
    end_position = positions.get(call.internal_session_id)
    return end_position is not None and (call.kind == invocation.REDO or call.position < end_position)
