"""Plain checkpoints: values built by hand, or the JSON array of their `to_dict`, stored as a session of one branch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from reprlib import repr as short_repr
from typing import IO, Any

from agentgit.checkpoints import Checkpoint
from agentgit.effects.invocation import DONE
from agentgit.effects.kinds import KINDS, UNDECLARED, kind_of
from agentgit.errors import InvalidInput
from agentgit.sessions.messages import to_stored
from agentgit.sessions.session import IMPORTED
from agentgit.store.objects.blobs import Leaf
from agentgit.store.objects.content import Encoded
from agentgit.store.objects.plain_values import JSON, MESSAGE, NOT_COMPUTED, encode_leaf
from agentgit.store.records.checkpoints import MERGE_KEY, Label, require_text
from agentgit.store.records.journal import CallOutcome, Intent
from agentgit.store.records.json_shapes import Nullable, is_shaped, require_flat, time
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, GRAPH_CHECKPOINT, TOOL_INVOCATION
from agentgit.store.sql.transaction import Writing
from agentgit.store.store import Store, checkpoint_state
from agentgit.store.threads.graph_rows import Draft, GraphCheckpoint, GraphKey, NewCheckpoint, is_shown
from agentgit.store.threads.graph_store import GraphStore
from agentgit.store.threads.message_rewrite import new_checkpoint_id
from agentgit.store.transfer.forms import EXPORTED_STATUS, STATUSES
from agentgit.store.transfer.values import stored_message
from agentgit.values import portable

MAX_BYTES = 256 * 2**20  # of a JSON file, which is read as a whole


def parse_checkpoints(file: IO[bytes]) -> list[Any]:
    text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise InvalidInput(f"The JSON is larger than {MAX_BYTES // 2**20} MiB. Import its parts as several sessions.")
    try:
        items: list[Any] = json.loads(text)  # orjson would change huge numbers
        require_flat(items)
        return items
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"This is not a JSON array of checkpoints: {error}. Nothing was imported.") from error


@contextmanager
def _naming(number: int) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError, InvalidInput) as error:
        raise InvalidInput(f"Checkpoint {number}: {str(error).rstrip('.')}. Nothing was imported.") from error


class PlainSession:
    """A new session with one branch, and the checkpoints that were added to it."""

    def __init__(self, transaction: Writing, store: Store, user_id: int, name: str) -> None:
        self.transaction, self.store, self.user_id = transaction, store, user_id
        self.id = store.sessions.create(transaction, user_id, name, metadata={IMPORTED: True})
        self.branch = store.sessions.branches(transaction, self.id)[0]
        # Caches of its own: the shared ones would remember what is not stored if this transaction is rolled back.
        self.graphs = GraphStore(store.compression)
        self.head: GraphCheckpoint | None = None
        self.logged = 0
        self.counts = {BRANCH.name: 1, CHECKPOINT.name: 0, GRAPH_CHECKPOINT.name: 0, TOOL_INVOCATION.name: 0}
        self._values: dict[str, Encoded] = {}
        self._versions: dict[str, int] = {}
        self._hashes: set[bytes] = set()
        self._messages: list[tuple[dict[str, Any], Leaf]] = []
        self._calls: list[tuple[Any, ...]] = []

    def add_all(self, checkpoints: Sequence[Checkpoint | Mapping[str, Any]]) -> None:
        """Add checkpoints in the order of their times. A mistake names the one that has it."""
        if not checkpoints:
            raise InvalidInput("There are no checkpoints to import.")
        now, checked = datetime.now(UTC), []
        for number, one in enumerate(checkpoints, 1):
            with _naming(number):  # one that a program changed after it was built is checked like one from a file
                checkpoint = Checkpoint.from_dict(one.to_dict() if isinstance(one, Checkpoint) else one)
                checked.append((time((checkpoint.created_at or now).isoformat()), number, checkpoint))
        for at, number, checkpoint in sorted(checked, key=lambda item: item[0]):
            with _naming(number):
                self._add(checkpoint, at)
        self.store.sessions.set_world_seen(self.transaction, self.branch, self.logged)

    def _add(self, checkpoint: Checkpoint, at: datetime) -> None:
        kind, description, point = (checkpoint.metadata.get(name) for name in ("kind", "description", "restore_point"))
        require_text(checkpoint.checkpoint_name, description)
        self._put_state(checkpoint, at)
        self._add_calls(checkpoint, at)
        state = checkpoint_state(self.head, len(self._calls))
        label = Label(
            kind="named" if not checkpoint.is_auto else kind if kind in ("before", "tools") else "after",
            user_id=self.user_id,
            name=checkpoint.checkpoint_name,
            description=description,
            restore_point=point if isinstance(point, str) else None,
            data=portable(_data(checkpoint)),
            created_at=at,
        )
        number = self.counts[CHECKPOINT.name]
        self.store.checkpoints.add(self.transaction, self.branch.id, state, label, last_number=number, is_imported=True)
        self.counts |= {CHECKPOINT.name: number + 1, TOOL_INVOCATION.name: len(self._calls), "value": len(self._hashes)}

    def _put_state(self, checkpoint: Checkpoint, at: datetime) -> None:
        """Store the state of a checkpoint as a graph checkpoint, unless it is that of the one before."""
        state = {k: v for k, v in checkpoint.session_state.items() if type(v) is not str or v != NOT_COMPUTED}
        for name in state:
            if not isinstance(name, str) or not is_shown(name) or name == "messages":
                raise ValueError(f"session_state cannot have a key {short_repr(name)}: LangGraph uses it itself")
        values = {name: Encoded(encode_leaf(JSON, portable(value))) for name, value in state.items()}
        self._hashes.update(value.body.hash for value in values.values() if isinstance(value.body, Leaf))
        history, known = checkpoint.conversation_history, dict(enumerate(self._messages))
        leaves = [
            known[n][1] if n in known and known[n][0] == one else _message_leaf(n, one) for n, one in enumerate(history)
        ]
        self._messages = list(zip(history, leaves, strict=True))
        values |= {"messages": Encoded(leaves, len(leaves))} if leaves else {}
        self._hashes.update(message.hash for message in leaves)
        if values == self._values:
            return
        step = self.counts[GRAPH_CHECKPOINT.name] + 1
        changed = frozenset(name for name, value in values.items() if value != self._values.get(name))
        self._versions = {name: step if name in changed else self._versions[name] for name in values}
        draft = Draft(
            parent_id=self.head.key.checkpoint_id if self.head is not None else None,
            meta={"source": "update", "step": step - 1, "parents": {}},
            header={"v": 4, "ts": at.isoformat(), "versions": self._versions, "seen": {}, IMPORTED: True},
            channels=list(values),
            changed_channels=changed,
            encode=values.__getitem__,
        )
        key = GraphKey(self.branch.thread_id, "", new_checkpoint_id())
        self.head = self.graphs.put(self.transaction, NewCheckpoint(key, draft))
        self._values, self.counts[GRAPH_CHECKPOINT.name] = values, step

    def _add_calls(self, checkpoint: Checkpoint, at: datetime) -> None:
        """Record the calls that a checkpoint has and the one before it has not, as calls that were made elsewhere."""
        calls, known = checkpoint.tool_invocations, len(self._calls)
        found = [tuple(map(call.get, ("tool_name", "args", "tool_call_id"))) for call in calls]
        if found[:known] != self._calls:
            raise ValueError("its tool calls do not continue those of the checkpoint before it; import one branch")
        new = [self._call(number, call, at) for number, call in enumerate(portable(calls[known:]), known)]
        self._calls, self.logged = found, self.store.journal.add_imported(self.transaction, new, known, self.logged)

    def _call(self, number: int, call: Mapping[str, Any], at: datetime) -> tuple[Intent, CallOutcome]:
        name, args, call_id, effect = (call.get(key) for key in ("tool_name", "args", "tool_call_id", "effect"))
        status, error, result = call.get("status") or DONE, call.get("error_message"), call.get("result")
        status = EXPORTED_STATUS.get(status, status) if isinstance(status, str) else status
        if not isinstance(name, str) or not name or not isinstance(args or {}, dict) or status not in STATUSES:
            raise ValueError(f"tool call {number + 1} has a wrong tool_name, args or status: {short_repr(dict(call))}")
        intent = Intent(
            session_id=self.id,
            branch_id=self.branch.id,
            batch=number,
            batch_index=0,
            tool_name=name,
            tool_call_id=call_id if isinstance(call_id, str) else None,
            effect=kind_of(effect) if effect in KINDS else UNDECLARED,
            undo=None,
            args=args or {},
            idempotency_key=sha256(f"{self.branch.id}:{number}".encode()).hexdigest()[:32],
            owner="",
            started_at=is_shaped(Nullable(time), call.get("started_at")) or at,
            made_on=self.branch.id,  # so that nothing here reverses it, runs it again or waits for it
        )
        ended, text = is_shaped(Nullable(time), call.get("ended_at")), None if error is None else str(error)
        return intent, CallOutcome(status=status, result=result, error=text, ended_at=ended)


def _data(checkpoint: Checkpoint) -> Any:
    """Return the data of a checkpoint, with its former id and what else its metadata say under `imported`."""
    former, data = {**checkpoint.metadata, "id": checkpoint.id}, checkpoint.metadata.get("data")
    former.pop("data", None)
    if isinstance(data, dict):
        data = {name: value for name, value in data.items() if name != MERGE_KEY}  # nothing was merged here
    if not any(former.values()):
        return data
    return {**(data if isinstance(data, dict) else {"data": data} if data is not None else {}), "imported": former}


def _message_leaf(number: int, message: Mapping[str, Any]) -> Leaf:
    try:
        return encode_leaf(MESSAGE, portable(stored_message(to_stored(message))))
    except ValueError as error:
        raise ValueError(f"message {number + 1} {error}") from error
