"""Explorations: the same steps in several variants, each on its own branch.

Variants share their common first steps. Each step of each variant is one turn, on a branch forked from the end of the
step before. So n steps with α choices are α + α² + … + αⁿ turns, and not n·αⁿ.

Variants run depth first, one after the other. Before each turn the world is brought to the state of its branch, as
`switch(sync="world")` does. If no tool changes the world, turns can run at the same time, and in other processes. All
results are saved in the database as they occur, so that the same call continues an interrupted exploration.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs

from agentgit.agents import inputs
from agentgit.agents.branch_context import BranchContext, TurnSettings
from agentgit.agents.branch_graph import BranchGraph
from agentgit.agents.explore.turns import Outcome, acting_tools, require_parallel, unfinished_input
from agentgit.checkpoints import references
from agentgit.effects import ToolInvocation, invocation
from agentgit.effects.files import SnapshotRef
from agentgit.effects.kinds import MEMORY
from agentgit.effects.plan import BLOCK, REDO, REVERSE
from agentgit.errors import Conflict, InvalidInput, WorldDiverged
from agentgit.handles.branching import Branching
from agentgit.handles.rollbacks import Rollbacks
from agentgit.next_steps import Next
from agentgit.rollback import awaiter_for_current_loop
from agentgit.rollback.crash_recovery import recover_all_abandoned
from agentgit.rollback.fork import Fork
from agentgit.rollback.verification import await_result
from agentgit.sessions.tree import BEGUN, DONE, FAILED, WAITING, ExploredBranch
from agentgit.store.queries.explorations import MARK_KEY, Explorations, branch_name, mark_of
from agentgit.store.queries.graph_points import BranchHead, read_branch_head
from agentgit.store.records.sessions import StoredRow, require_real
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.sql.transaction import Reading, Writing

Steps = int | str | Sequence[Any]
"""The steps of an exploration: a list of inputs, or only the number of steps."""

Choices = int | Sequence[Any]
"""The choices at each step: a list of them, or only their number."""


@dataclass(frozen=True)
class Variant:
    """One variant of a step."""

    graph_input: Any
    config: RunnableConfig

    @property
    def value(self) -> Any:
        """The input for one run, with copies of its messages, because LangGraph sets ids on the message objects."""
        messages = self.graph_input.get(inputs.MESSAGES) if isinstance(self.graph_input, Mapping) else None
        if not isinstance(messages, list):
            return self.graph_input
        return {
            **self.graph_input,
            inputs.MESSAGES: [m.model_copy() if isinstance(m, BaseMessage) else m for m in messages],
        }


def plan_variants(steps: Steps, choices: Choices) -> list[list[Variant]]:
    choice_list = _choice_list(choices)
    if isinstance(steps, int) and not isinstance(steps, bool):
        if steps < 1 or isinstance(choices, int):
            raise InvalidInput(
                f"explore({steps!r}, {choices!r}) has no inputs. Give the input of each step, as in "
                "explore(['order two chairs', 'pay'], 2); or the number of steps and the inputs to try, as in "
                "explore(2, ['be brief', 'be thorough'])."
            )
        return [[_numbered_variant(number, choice) for choice in choice_list] for number in range(1, steps + 1)]
    step_inputs = [steps] if isinstance(steps, str) else steps
    if not isinstance(step_inputs, Sequence) or not step_inputs:
        raise InvalidInput(f"steps must be a list with the input of each step, or their number, not {steps!r}.")
    return [[_variant_of(step, choice) for choice in choice_list] for step in step_inputs]


def _choice_list(choices: Choices) -> Sequence[Any]:
    if isinstance(choices, int) and not isinstance(choices, bool) and choices > 0:
        return [None] * choices
    if isinstance(choices, Sequence) and not isinstance(choices, str) and choices:
        return choices
    raise InvalidInput(f"choices must be a list of choices, or their number at each step, not {choices!r}.")


def _numbered_variant(number: int, choice: Any) -> Variant:
    return Variant(_as_graph_input(choice(number) if callable(choice) else choice), {})


def _variant_of(step: Any, choice: Any) -> Variant:
    if callable(choice):
        return Variant(_as_graph_input(choice(step)), {})
    if not _is_config(choice):
        raise InvalidInput(
            f"{choice!r} is not a choice; give a config like {{'configurable': ...}}, or a function that returns "
            "the input of the step. To choose between inputs, give the number of steps: explore(2, ['a', 'b'])."
        )
    return Variant(_as_graph_input(step), choice or {})


def _is_config(choice: object) -> TypeGuard[RunnableConfig | None]:
    return choice is None or isinstance(choice, Mapping)


def _as_graph_input(step: Any) -> Any:
    return {inputs.MESSAGES: [("user", step)]} if isinstance(step, str) else step


Score = Callable[[ExploredBranch], float | Awaitable[float]]
"""A function that rates a leaf. Higher is better."""


@dataclass
class ExploredTurn:
    """One turn of an exploration."""

    branch_id: int
    choices: tuple[int, ...]
    value: Any
    config: RunnableConfig
    is_new: bool = False
    is_pending: bool = True
    outcome: Outcome | None = None
    end_id: int | None = None


class Explorer:
    """Creates the branches of one exploration, yields the turns to run, and records their results."""

    def __init__(
        self,
        branch: BranchContext,
        create_runner: Callable[[TurnSettings, int | BranchHead], BranchGraph],
        variants: list[list[Variant]],
        *,
        name: str | None = None,
        score: Score | None = None,
        config: RunnableConfig | None = None,
        together: bool,
        elsewhere: bool = False,
    ) -> None:
        self.branch = branch
        self._create_runner = create_runner
        interval = self.branch.settings.checkpoint_interval
        # The next step starts at the checkpoint at the end of a turn.
        self.settings = replace(self.branch.settings, checkpoint_interval=interval.with_each_end())
        self.branching = Branching(self.branch.context, self.branch.session_id)
        self.rollbacks = Rollbacks(self.branch.context, self.branch.session_id)
        self.variants = variants
        self.name = name if name is None else references.require_name(name, "branch")
        self.score = score
        self.config = config
        self.together = together
        self.elsewhere = elsewhere
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

    def walk(self) -> Iterator[ExploredTurn]:
        """Yield the turns depth first; run each one before requesting the next."""
        start_id = self.begin()
        yield from self._depth_first(start_id, ())
        self.finish()

    def begin(self) -> int:
        """Begin the exploration, and return the id of the checkpoint at which its first turns start."""
        if self.together:
            require_parallel(self.branch.graph, self.settings)
        if any(isinstance(one.graph_input, Mapping) for one in self.variants[0]):  # no answer, but a message
            inputs.require_no_question(self.branch.open_questions(), has_run=False)
        recover_all_abandoned(self.store, self.branch.session_id)
        files = self.branch.take_snapshot("before an exploration")
        beginning = self.store.database.write(lambda transaction: self._begin(transaction, files), durable=True)
        self.name, self._explored_rows, start_row = beginning
        self._must_sync_world = self._check_world(start_row, acting_tools(self.settings))
        self.is_begun = True
        return int(start_row.id)

    def finish(self) -> None:
        """Bring the world back to the branch that explores."""
        self._sync_world(self.branch.branch_id)

    def runner_of(self, trial: ExploredTurn) -> BranchGraph:
        return self._create_runner(self.settings, trial.branch_id)

    def next_turns(self, start_id: int, choices: tuple[int, ...]) -> Iterator[ExploredTurn]:
        """Yield the turns that start at a checkpoint, creating the branch of each one only when it is requested."""
        for number, variant in enumerate(self.variants[len(choices)], 1):
            yield self._prepare_turn(start_id, (*choices, number), variant)

    def _begin(self, transaction: Writing, files: SnapshotRef | None) -> tuple[str, dict[str, StoredRow], StoredRow]:
        """Return the name, the branches explored before, and the checkpoint from which the exploration starts."""
        session_id = self.branch.session_id
        self.branch.authorize(transaction)
        require_real(self.branch.row(transaction))
        name = self.name or self.explorations.free_name(transaction, session_id)
        rows = self.explorations.load_branches(transaction, session_id, name)
        if rows and mark_of(rows[0])["of"] != self.branch.branch_id:
            raise Conflict(f"An exploration {name!r} from another branch already exists. Choose another name.")
        # A continued exploration keeps its starting point, even if the branch has moved since.
        start_row = (
            self.branch.checkpoint(transaction, rows[0].branch_point_id)
            if rows
            else self.branching.ensure_checkpoint(transaction, self.branch.branch_id, files)
        )
        return name, {row.name: row for row in rows}, start_row

    # -- order

    def _depth_first(self, start_id: int, choices: tuple[int, ...]) -> Iterator[ExploredTurn]:
        """Yield the turns depth first, so that the effects of a step need not be repeated for the steps after it."""
        for trial in self.next_turns(start_id, choices):
            if trial.is_pending or self._is_unscored(trial):
                self._sync_world(trial.branch_id)
            if trial.is_pending:
                yield trial
            self.record_turns([trial])
            if trial.end_id is not None and not self.is_leaf(trial):
                yield from self._depth_first(trial.end_id, trial.choices)

    def is_leaf(self, trial: ExploredTurn) -> bool:
        return len(trial.choices) == len(self.variants)

    # -- the world

    def _check_world(self, start_row: StoredRow, acting_tools: list[str]) -> bool:
        """Return whether the world must be brought to the state of each branch before its turn."""
        with self.store.database.reading() as transaction:
            own_positions = self._end_positions(transaction)
            planner, branch_id, label = self.branch.planner, self.branch.branch_id, start_row.branch_name
            plan = planner.plan_rollback(transaction, branch_id, start_row, label, replay=REDO)
            plan = planner.add_names(transaction, plan, branch_id)
            last_seq = self.store.world.last_seq(transaction, self.branch.session_id)
        foreign_steps = [
            s
            for s in plan.steps
            if s.action in (REVERSE, REDO, BLOCK) and not _is_own_call(s.invocation, own_positions)
        ]
        blocking_steps = [step for step in foreign_steps if step.invocation.effect != MEMORY]  # memory is shared
        if blocking_steps and acting_tools:
            raise WorldDiverged(
                "An exploration reverses every effect that is not on its own path, and these are not its own: "
                f"{'; '.join(map(str, blocking_steps))}. Choose a new name, or bring the world to this branch first.",
                Next("switch_world", branch=start_row.branch_name),
                plan=plan,
            )
        self._initial_log_length = None if plan.changes_world else last_seq
        return bool(acting_tools) or not blocking_steps

    def _end_positions(self, transaction: Reading) -> dict[int, float]:
        """Return for each explored branch the track position at the end of its turn; later calls are not part of it."""
        end_ids = {row.id: mark_of(row)["end"] for row in self._explored_rows.values()}
        rows = self.store.checkpoints.find(transaction, CHECKPOINT.c.id.in_([end for end in end_ids.values() if end]))
        positions = {row.id: row.position for row in rows}
        return {branch_id: positions.get(end, math.inf) for branch_id, end in end_ids.items()}

    def _sync_world(self, branch_id: int) -> None:
        """Reverse the effects of other variants, and run again the reversed calls of this one."""
        if not self._must_sync_world:
            return
        if self.settings.workspace is not None:
            plan = self.rollbacks.plan_switch(branch_id)
        else:
            with self.store.database.reading() as transaction:
                if self.store.world.last_seq(transaction, self.branch.session_id) == self._initial_log_length:
                    return
                plan = self.branch.planner.plan_switch(transaction, self.store.sessions.branch(transaction, branch_id))
        if plan.changes_world:
            self.rollbacks.switch(branch_id, branch_id, sync="world", current=False)

    # -- one turn

    def _prepare_turn(self, start_id: int, choices: tuple[int, ...], variant: Variant) -> ExploredTurn:
        """Create the branch of one turn, or return it if it exists."""
        name = branch_name(self._required_name, choices)
        title = inputs.parse(self.branch.graph, variant.value).title
        if name in self._explored_rows:
            return self._resume_turn(self._explored_rows[name], choices, variant, title)

        mark = {"name": self._required_name, "of": self.branch.branch_id, "choices": choices, "said": title}
        meta = {MARK_KEY: {**mark, "status": BEGUN, "end": None}}

        def fork(transaction: Writing) -> int:
            store, session_id = self.store, self.branch.session_id
            self.branch.authorize(transaction)
            store.sessions.lock(transaction, session_id)
            target = store.checkpoints.load(transaction, start_id)
            source = store.sessions.require_branch(transaction, session_id, target.internal_session_id)
            snapshot = store.snapshots.of_checkpoint(transaction, target)
            return int(Fork(self.branch.planner, transaction, source, target).make(name, snapshot, meta).head.row.id)

        # Need not be durable: the end of its turn is, and takes everything written before it to disk.
        branch_id = self.store.database.write(fork, async_commit=True)
        return ExploredTurn(branch_id, choices, variant.value, self.config_of(variant), is_new=True)

    def _resume_turn(
        self, row: StoredRow, choices: tuple[int, ...], variant: Variant, title: str | None
    ) -> ExploredTurn:
        """Resume a branch that exists: run its turn, continue it, or leave it as it is."""
        mark = mark_of(row)
        if mark["said"] != title:
            raise Conflict(
                f"{row.name} was explored with {mark['said']!r}, not with {title!r}. Give a new name or the same steps."
            )
        trial = ExploredTurn(row.id, choices, variant.value, self.config_of(variant), end_id=mark["end"])
        if trial.end_id is not None:
            trial.is_pending = False
        elif not self.elsewhere:  # another process knows what is left, with the graph that it builds
            with self.store.database.reading() as transaction:
                head = read_branch_head(self.store, transaction, row.id)
            runner = self._create_runner(self.settings, head)
            trial.is_pending, trial.value = unfinished_input(runner, head, variant.value)
            trial.outcome = None if trial.is_pending else Outcome.of(runner)
        return trial

    def config_of(self, variant: Variant) -> RunnableConfig:
        return merge_configs(self.config, variant.config)

    def record_turns(self, trials: list[ExploredTurn]) -> None:
        """Record the results of turns, and score the leaves. A turn that raised is a failed leaf."""
        if any(trial.outcome is not None for trial in trials):
            self.store.database.write(lambda transaction: self._record_outcomes(transaction, trials), durable=True)
        for trial in trials:
            if self._is_unscored(trial):
                self._score_leaf(trial)

    def _record_outcomes(self, transaction: Writing, trials: list[ExploredTurn]) -> None:
        for trial in trials:
            if (outcome := trial.outcome) is None:
                continue
            trial.end_id = outcome.checkpoint_id if outcome.has_ended else None
            if outcome.has_ended and trial.end_id is None:
                trial.end_id = self.branching.ensure_checkpoint(transaction, trial.branch_id, None).id
            status = DONE if outcome.has_ended else WAITING if outcome.error is None else FAILED
            self.explorations.update_mark(
                transaction, trial.branch_id, status=status, end=trial.end_id, error=outcome.error
            )

    def _is_unscored(self, trial: ExploredTurn) -> bool:
        if self.score is None or trial.end_id is None or not self.is_leaf(trial):
            return False
        with self.store.database.reading() as transaction:
            return mark_of(self.store.sessions.branch(transaction, trial.branch_id)).get("score") is None

    def _score_leaf(self, trial: ExploredTurn) -> None:
        """Score a leaf while the world is as the leaf left it."""
        assert self.score is not None  # noqa: S101  # `_is_unscored` is False without a score
        path_names = {branch_name(self._required_name, trial.choices[:end]) for end in range(1, len(trial.choices) + 1)}
        with self.store.database.reading() as transaction:
            exploration = self.explorations.read(transaction, self.branch.session_id, self._required_name, path_names)
        score = float(await_result(awaiter_for_current_loop(), self.score(exploration.branches[-1])))
        if math.isnan(score):
            raise InvalidInput(f"The score of {exploration.branches[-1].name} is not a number.")
        self.store.database.write(lambda c: self.explorations.update_mark(c, trial.branch_id, score=score))


def _is_own_call(call: ToolInvocation, positions: Mapping[int, float]) -> bool:
    """Return whether a call was made by a turn of the exploration, or was run again for one of its branches."""
    end_position = positions.get(call.internal_session_id)
    return end_position is not None and (call.kind == invocation.REDO or call.position < end_position)
