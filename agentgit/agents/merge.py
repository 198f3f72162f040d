"""Merge and cherry-pick: what a checkpoint has added since a base, written to this branch through the graph's reducers.

The base of a merge is what both branches have in common; that of a cherry-pick is the checkpoint before the picked one.
The values are written as `update_state` does, by an extra node without edges, so that no node, tool or condition of the
graph runs. One transaction stores the result with its checkpoint.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.channels import AnyValue, BinaryOperatorAggregate, DeltaChannel, LastValue
from langgraph.types import Overwrite

from agentgit.agents.branch_context import BranchContext
from agentgit.agents.inputs import answer_step
from agentgit.agents.isolation import detached
from agentgit.agents.merge_side import Side, find_bases
from agentgit.auth.principal import EDITOR
from agentgit.checkpoints.diff import format_message
from agentgit.checkpoints.merge import (
    APPEND,
    CLASH,
    KEEP,
    OURS,
    TAKE,
    THEIRS,
    Clash,
    MergedValue,
    MergePlan,
    Resolve,
    added_positions,
    complete_batches,
    decide,
    find_additions,
    find_choice,
    select,
)
from agentgit.errors import Conflict, InvalidInput, MergeConflict
from agentgit.langgraph_internals import ChannelWrite, ChannelWriteTupleEntry, PregelNode
from agentgit.next_steps import Next
from agentgit.rollback.crash_recovery import recover_abandoned, recover_all_abandoned
from agentgit.saver.branch_saver import SessionSaver
from agentgit.sessions.session import RUNNING
from agentgit.store.audit.trail import record_event
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import MERGE_KEY, Label, named_label
from agentgit.store.records.sessions import StoredRow, require_no_unfinished_rollback, require_real
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import HeadState, Store, checkpoint_state
from agentgit.store.threads.graph_rows import GraphKey, NewCheckpoint, NewRows, NewWrites
from agentgit.store.threads.pending_writes import NO_WRITES

WRITER = "agentgit"
"""The name of the node that writes the changes."""

PICKED = "picked"
"""The key in the data of a checkpoint under which a cherry-pick records its source."""

REDUCED_CHANNELS = (BinaryOperatorAggregate, DeltaChannel)
"""Channels whose writes go through a reducer."""

MERGED_CHANNELS = (*REDUCED_CHANNELS, LastValue, AnyValue)
"""Channels that can be merged."""


@dataclass
class Merge:
    """The changes that one branch receives, decided by hashes; only the values that change are loaded."""

    bases: Sequence[Side]
    ours: Side
    theirs: Side
    plan: MergePlan
    resolve: Resolve
    head_id: int | None
    facts: Mapping[str, Any]
    updates: dict[str, Any] = field(default_factory=dict)

    def compute(self) -> None:
        for key in self.theirs.hashes:
            decision = self._decide(key)
            if decision == KEEP:
                continue
            if not isinstance(self.ours.channels.get(key), MERGED_CHANNELS):
                self.plan.left_out.append(f"{key}: this graph has no channel for it that can be merged")
            elif key == self.conversation_channel:
                self._merge_conversation(key, decision)
            elif decision == TAKE:
                self._take_value(key, TAKE)
            elif not self._append_value(key):
                self._settle_conflict(key)

    @property
    def conversation_channel(self) -> str | None:
        """The channel of both conversations; None if they are in different channels."""
        ours, theirs = self.ours.conversation_channel, self.theirs.conversation_channel
        return theirs if ours in (None, theirs) else None

    def _decide(self, key: str) -> str:
        ours, theirs = self.ours.hashes.get(key), self.theirs.hashes[key]
        first, *others = {decide(base.hashes.get(key), ours, theirs) for base in self.bases}
        return CLASH if others else first

    # -- values

    def _take_value(self, key: str, how: str) -> None:
        self.plan.values.append(MergedValue(key=key, how=how, value=self.theirs.shown_value(key)))
        self._replace(key, self.theirs.live_value(key))

    def _replace(self, key: str, value: Any) -> None:
        has_reducer = isinstance(self.ours.channels.get(key), REDUCED_CHANNELS)
        self.updates[key] = Overwrite(value) if has_reducer else value

    def _append_value(self, key: str) -> bool:
        """Append their additions to a list or a dict; return False unless both sides and the reducer only add to it."""
        if not isinstance(self.ours.channels[key], REDUCED_CHANNELS):
            return False
        ours, theirs, live = self.ours.shown_value(key), self.theirs.shown_value(key), self.theirs.live_value(key)
        added, *others = {find_additions(base.shown_value(key), ours, theirs) for base in self.bases}
        is_shown_whole = type(live) is list or (type(live) is dict and theirs.keys() == live.keys())
        if added is None or others or not is_shown_whole:
            return False
        new_items, current = select(live, added), self.ours.live_value(key)
        try:
            result = self.ours.value_after(key, new_items)
        except Exception:  # noqa: BLE001  # a user's reducer may raise; then the user decides
            return False
        if result != ({**current, **new_items} if isinstance(current, dict) else [*current, *new_items]):
            return False
        self.plan.values.append(MergedValue(key=key, how=APPEND, value=select(theirs, added)))
        self.updates[key] = new_items
        return True

    def _settle_conflict(self, key: str) -> None:
        side, is_conversation = find_choice(self.resolve, key), key == self.conversation_channel
        if side is None:
            states = {"base": self.bases[0], "ours": self.ours, "theirs": self.theirs}
            values = {n: one.messages() if is_conversation else one.shown_value(key) for n, one in states.items()}
            self.plan.conflicts.append(Clash(key=key, **values))
        elif side == OURS:
            self.plan.values.append(MergedValue(key=key, how=OURS))
        else:
            take = self._take_conversation if is_conversation else self._take_value
            take(key, THEIRS)

    # -- the conversation

    def _merge_conversation(self, key: str, decision: str) -> None:
        counts: Counter[bytes] = Counter()
        for base in self.bases:
            counts |= Counter(base.message_hashes)
        # A message that both sides removed, as when both edited it alike, does not count as their change.
        present = {*self.ours.message_hashes, *self.theirs.message_hashes}
        added = added_positions([one for one in counts.elements() if one in present], self.theirs.message_hashes)
        shown = self.theirs.messages(added or ())
        if added is not None and all(message == self._our_messages.get(message["id"], message) for message in shown):
            self._add_messages(key, added, shown)
        elif decision == CLASH:
            self._settle_conflict(key)
        else:
            self._take_conversation(key, TAKE)

    @functools.cached_property
    def _our_messages(self) -> Mapping[str, Mapping[str, Any]]:
        """Our messages that the base does not have, as shown, by id."""
        base = set(self.bases[0].message_hashes)
        shown = self.ours.messages([n for n, key in enumerate(self.ours.message_hashes) if key not in base])
        return {message["id"]: message for message in shown if message["id"]}

    def _add_messages(self, key: str, positions: Sequence[int], shown: Sequence[dict[str, Any]]) -> None:
        """Append those of their messages that are not here yet; tool calls only together with their results."""
        new = [(at, one) for at, one in zip(positions, shown, strict=True) if one["id"] not in self._our_messages]
        kept = self._leave_out_incomplete([message for _, message in new])
        if not kept:
            return
        self.plan.messages.extend(new[n][1] for n in kept)
        items = [self.theirs.live_value(key)[new[n][0]] for n in kept]
        has_reducer = isinstance(self.ours.channels.get(key), REDUCED_CHANNELS)
        self.updates[key] = items if has_reducer else [*(self.ours.live_value(key) or ()), *items]

    def _take_conversation(self, key: str, how: str) -> None:
        """Replace our conversation with theirs, without batches of tool calls that lack results."""
        shown = self.theirs.messages()
        kept = self._leave_out_incomplete(shown)
        self.plan.values.append(MergedValue(key=key, how=how, value=[format_message(shown[n]) for n in kept]))
        self._replace(key, [self.theirs.live_value(key)[n] for n in kept])

    def _leave_out_incomplete(self, shown: Sequence[Mapping[str, Any]]) -> list[int]:
        kept = complete_batches(shown)
        left = [format_message(shown[n]) for n in sorted({*range(len(shown))} - {*kept})]
        self.plan.left_out.extend(f"{message}: its batch of tool calls and results is incomplete" for message in left)
        return kept


class _CollectingSaver(SessionSaver):
    """Keeps what LangGraph saves during the write of a merge; the transaction of the merge stores it."""

    def __init__(self, store: Store, *, is_imported: bool) -> None:
        super().__init__(store)
        self.steps: list[NewRows] = []
        self._is_imported = is_imported

    def _put_now(self, new: NewCheckpoint) -> None:
        self.steps.append(new.as_imported() if self._is_imported else new)

    def _put_writes_now(self, new: NewWrites) -> None:
        self.steps.append(new)


class Merger:
    """Merges and cherry-picks from other branches into one branch. Both add a checkpoint and remove nothing."""

    def __init__(self, branch: BranchContext) -> None:
        self.branch, self.store = branch, branch.store

    def compute(self, source: CheckpointRef, resolve: Resolve, *, picks: bool = False) -> Merge:
        recover_all_abandoned(self.store, self.branch.session_id)
        with self.branch.reading() as transaction:
            our_row, head_state = self._position(transaction)
            session_name = self.branch.planner.name_session(transaction, self.branch.session_id)
            their_row, label = self.branch.target(transaction, source)
            self.store.sessions.require_real_thread(transaction, their_row.thread_id)
            bases = self._previous(transaction, their_row) if picks else self._common(transaction, our_row, their_row)
            side = functools.partial(Side, self.branch, transaction)
            base_sides = [side(row.thread_id, row.graph_checkpoint_id) for row in bases] or [side()]
            ours = side(our_row.thread_id, head_state.latest_id)
            theirs = side(their_row.thread_id, their_row.graph_checkpoint_id)
        base_label = " and ".join(f"{one.branch_name}#{one.number}" for one in bases)
        kind = "cherry_pick" if picks else "merge"
        plan = MergePlan(kind=kind, source=label, into=our_row.name, base=base_label, session_name=session_name)
        facts = {"checkpoint": their_row.id, "source": label, "base": base_label}
        merge = Merge(base_sides, ours, theirs, plan, resolve, our_row.head_id, facts)
        merge.compute()
        return merge

    def _common(self, transaction: Reading, our_row: StoredRow, their_row: StoredRow) -> list[StoredRow]:
        """Return the newest checkpoints that both branches have."""
        if our_row.head_id is None:
            raise InvalidInput(f"Branch {our_row.name} has no checkpoint. Run a turn or create one first.")
        (head_row,) = self.store.checkpoints.find(transaction, CHECKPOINT.c.id == our_row.head_id)
        bases = find_bases(self.store, transaction, head_row, their_row)
        if not bases:
            raise InvalidInput("These have no common history. Cherry-pick instead.")
        return bases

    def _previous(self, transaction: Reading, their_row: StoredRow) -> list[StoredRow]:
        """Return the checkpoint before the picked one on its path; none before the first."""
        branch_row = self.store.sessions.branch(transaction, their_row.internal_session_id)
        path = self.branch.context.lookup.path_checkpoints(transaction, branch_row)
        index = next(n for n, point in enumerate(path) if point.id == their_row.id)
        return [path[index - 1]] if index else []

    def _position(self, transaction: Reading) -> tuple[StoredRow, HeadState]:
        """Return the row of the branch and the state of its head, if something can be added there."""
        row = self.store.sessions.branch(transaction, self.branch.branch_id)
        require_no_unfinished_rollback(row)
        require_real(row)
        if row.status == RUNNING:
            raise Conflict(f"Branch {row.name} is running. Wait for its turn to end, then try again.")
        head_state = self.store.head_state(transaction, row)
        self.branch.require_unmoved(row, head_state.latest_id)
        if not head_state.is_settled:
            questions = self.branch.questions(transaction, head_state.latest)
            next_step = answer_step(questions) if questions else Next("continue")
            raise Conflict(f"Branch {row.name} is in the middle of a turn.", next_step)
        return row, head_state

    # -- writing

    def merge(self, source: CheckpointRef, resolve: Resolve, name: str | None, *, picks: bool = False) -> int:
        """Merge or cherry-pick; return the id of the new checkpoint, or of the head if there is nothing to add."""
        self.branch.authorize_now(EDITOR)
        merge = self.compute(source, resolve, picks=picks)
        plan, kind = merge.plan, PICKED if picks else MERGE_KEY
        if plan.conflicts:
            keys = ", ".join(one.key for one in plan.conflicts)
            raise MergeConflict(
                f"Nothing was changed. Both branches have changed {keys} since {plan.base}. Choose which to "
                "keep: ours or theirs, for all or for each key.",
                plan=plan,
            )
        # A merge that keeps our side of all conflicts is recorded, so that the next one begins after it.
        if plan.is_empty if picks else not (plan.values or plan.messages):
            if plan.left_out:
                raise Conflict(f"Nothing of {plan.source} can be added: {plan.left_out[0]}.")
            if merge.head_id is not None:
                return merge.head_id
        label = named_label(self.branch.settings.user_id, name, plan.title, {kind: merge.facts})
        steps, new_id = self._write(merge)
        checkpoint_id = self.store.database.write(
            lambda transaction: self._publish(transaction, merge.ours.graph_key, steps, new_id, label), durable=True
        )
        self.branch.seen_checkpoint_id, self.branch.interrupted_heads = new_id, ()
        return checkpoint_id

    def _write(self, merge: Merge) -> tuple[list[NewRows], str]:
        """Write the values through the channels; return what LangGraph would save, and the new id."""
        graph = self.branch.graph
        if keys := ", ".join(sorted(merge.updates.keys() & graph.trigger_to_nodes.keys())):
            raise InvalidInput(f"Nodes of this graph run when {keys} changes, so that it cannot be merged.")
        saver = _CollectingSaver(self.store, is_imported=merge.ours.is_imported or merge.theirs.is_imported)
        saver.channels = graph.channels
        entry = ChannelWriteTupleEntry(mapper=lambda values: list(values.items()))
        writer = PregelNode(channels=[], triggers=[], writers=[ChannelWrite([entry])])
        copy = graph.copy({"checkpointer": saver, "nodes": {**graph.nodes, WRITER: writer}})
        config: Any = {"configurable": {"thread_id": self.branch.thread_id}}
        with detached():
            if copy.get_state(config).next:
                raise Conflict("The branch is in the middle of a turn.", Next("continue"))
            written = copy.update_state(config, merge.updates, WRITER)
        return saver.steps, str(written["configurable"]["checkpoint_id"])

    def _publish(
        self, transaction: Writing, graph_key: GraphKey | None, steps: Sequence[NewRows], new_id: str, label: Label
    ) -> int:
        """Store the steps and the checkpoint, if the branch has not moved since the values were read."""
        self.branch.authorize(transaction)
        self.store.sessions.lock(transaction, self.branch.session_id)
        if recover_abandoned(self.store, transaction, self.branch.session_id):
            raise Conflict("A rollback is in progress in this session. Wait until it ends, then try again.")
        row, head_state = self._position(transaction)
        if head_state.latest_id != (graph_key.checkpoint_id if graph_key is not None else None):
            raise Conflict(f"Branch {row.name} has moved in the meantime. Nothing was changed; try again.")
        self.store.graphs.write(transaction, steps)
        graph_checkpoint = self.store.graphs.find(transaction, GraphKey(row.thread_id, "", new_id))
        assert graph_checkpoint is not None  # noqa: S101  # it was just stored
        state = checkpoint_state(graph_checkpoint, head_state.checkpoint_state.position, NO_WRITES)
        if snapshot_row := self.store.snapshots.newest_of_branch(transaction, row):
            state = replace(state, workspace_snapshot_id=snapshot_row.id)
        checkpoint_id = self.store.checkpoints.add(transaction, row.id, state, label)
        kind, source = ("merge.done", MERGE_KEY) if MERGE_KEY in label.data else ("cherry_pick.done", PICKED)
        made = {"made": checkpoint_id, "source": label.data[source]}
        record_event(transaction, kind, branch_id=row.id, user_id=label.user_id, **made)
        self.store.sessions.touch(transaction, row)
        return checkpoint_id
