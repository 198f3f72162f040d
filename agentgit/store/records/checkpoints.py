"""Checkpoints and tags in the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from reprlib import repr as short_repr
from typing import Any

from sqlalchemy import and_, bindparam, delete, func, insert, or_, select

from agentgit.checkpoints.queries import Tag
from agentgit.errors import Conflict, InvalidInput, NotFound
from agentgit.next_steps import Next
from agentgit.store.audit.trail import record_event
from agentgit.store.records.journal import UNBOUNDED
from agentgit.store.records.sessions import Segment, StoredRow
from agentgit.store.sql.batch import slices
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.driver_errors import require_row
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.rows import CompiledUpdate, insert_rows, rows_with, update_rows, value_of
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, TAG
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.tracing import span
from agentgit.values import stored_json, to_json


@dataclass(frozen=True, kw_only=True)
class CheckpointState:
    graph_checkpoint_id: str | None
    state_hash: bytes
    position: int
    message_count: int
    workspace_snapshot_id: int | None = None
    pending: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class Label:
    kind: str
    user_id: int
    name: str | None = None
    description: str | None = None
    restore_point: str | None = None
    data: Any = None
    id: int | None = None
    created_at: datetime | None = None


NAME_LIMIT = 200
"""The maximum length of a checkpoint's name in characters."""


def named_label(
    user_id: int,
    name: str | None,
    description: str | None = None,
    data: Any = None,
    metadata: Mapping[str, Any] | None = None,
) -> Label:
    require_text(name, description)
    if metadata is not None:
        if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
            raise InvalidInput(f"metadata must be a dict with texts as keys, not {short_repr(metadata)}.")
        data = {METADATA: dict(metadata), "data": data}
    return Label(kind="named", user_id=user_id, name=name, description=description, data=data, id=new_id())


METADATA = "agentgit_metadata"
"""The key in the data of a checkpoint for the metadata that a person gave; the data itself is beside it."""


def split_data(stored: bytes | None) -> tuple[dict[str, Any], Any]:
    """Return the metadata that a person gave to a checkpoint, and its data."""
    data = stored_json(stored) if stored is not None else None
    if not isinstance(data, dict) or not isinstance(data.get(METADATA), dict):
        return {}, data
    return data[METADATA], data.get("data")


def require_text(name: object, description: object) -> None:
    if name is not None and (not isinstance(name, str) or not name.strip() or len(name) > NAME_LIMIT):
        raise InvalidInput(f"{short_repr(name)} is not a valid checkpoint name. Use 1 to {NAME_LIMIT} characters.")
    if description is not None and not isinstance(description, str):
        raise InvalidInput(f"description must be a string, not {short_repr(description)}.")


MERGE_KEY = "merged"
"""The key in the data of a checkpoint under which a merge records its source."""


def merge_source_id(data: bytes | None) -> int | None:
    """Return the id of the merged checkpoint from the data of a merge's checkpoint; None for other checkpoints."""
    decoded = stored_json(data) if data is not None and MERGE_KEY.encode() in data else None
    merge = decoded.get(MERGE_KEY) if isinstance(decoded, dict) else None
    source_id = merge.get("checkpoint") if isinstance(merge, dict) else None
    return source_id if type(source_id) is int and 0 < source_id < 2**53 else None


class CheckpointStore:
    def add(
        self,
        transaction: Writing,
        branch_id: int,
        state: CheckpointState,
        label: Label,
        *,
        last_number: int | None = None,
        moves_head: bool = True,
        is_imported: bool = False,
    ) -> int:
        """Store a checkpoint, make it the head of its branch, and return its id. An import records one event."""
        checkpoint_id, created_at = label.id or new_id(), label.created_at or datetime.now(UTC)
        if last_number is None:
            last_number = int(_LAST_NUMBER.all(transaction, {"branch": branch_id})[0].number or 0)
        place = {"id": checkpoint_id, "internal_session_id": branch_id, "number": last_number + 1}
        data = to_json(label.data) if label.data is not None else None
        changed = {"created_at": created_at, "data": data, "is_auto": label.kind != "named"}
        row = {**vars(state), **vars(label), **place, **changed}
        with span("agentgit.checkpoint", agentgit_checkpoint_kind=label.kind) as checkpoint_span:
            _ADD.run(transaction, row)
            if moves_head:
                _MOVE_HEAD.run(transaction, {"id": branch_id}, head_id=checkpoint_id)
            checkpoint_span.set(agentgit_checkpoint_id=checkpoint_id, agentgit_checkpoint_number=row["number"])
        if not is_imported:
            record_event(
                transaction,
                "checkpoint.created",
                branch_id=branch_id,
                user_id=label.user_id,
                checkpoint=checkpoint_id,
                number=row["number"],
                made=label.kind,
                name=label.name,
            )
        return checkpoint_id

    def describe_automatic(self, transaction: Writing, checkpoint_id: int, description: str | None) -> None:
        is_undescribed = CHECKPOINT.c.description.is_(None)
        update_rows(
            transaction,
            CHECKPOINT,
            CHECKPOINT.c.id == checkpoint_id,
            CHECKPOINT.c.is_auto,
            is_undescribed,
            description=description,
        )

    def annotate(self, transaction: Writing, row: StoredRow, user_id: int, changes: Mapping[str, Any]) -> None:
        values, (metadata, _) = dict(changes), split_data(row.data)
        if "data" in values and metadata:
            values["data"] = {METADATA: metadata, "data": values["data"]}
        if values.get("data") is not None:
            values["data"] = to_json(values["data"])
        update_rows(transaction, CHECKPOINT, CHECKPOINT.c.id == row.id, **values)
        record_event(
            transaction,
            "checkpoint.annotated",
            branch_id=row.internal_session_id,
            user_id=user_id,
            checkpoint=row.id,
            number=row.number,
            changed=sorted(changes),
            **({"before": row.name, "name": changes["name"]} if "name" in changes else {}),
        )

    def require_exists(self, transaction: Reading, checkpoint: StoredRow, label: str) -> None:
        """Check that a checkpoint still exists. The session is locked, so nobody else can delete it any more."""
        if self.find_one(transaction, checkpoint.id) is None:
            raise NotFound(f"Checkpoint {label} has been deleted.", Next("list_checkpoints"))

    def find(self, transaction: Reading, *conditions: Any) -> Sequence[StoredRow]:
        """Read checkpoints, each with the name, thread and session of its branch, oldest first."""
        return transaction.execute(CHECKPOINT_WITH_BRANCH.where(*conditions).order_by(CHECKPOINT.c.id)).all()

    def find_one(self, transaction: Reading, checkpoint_id: int) -> StoredRow | None:
        """Read one checkpoint, with the name, thread and session of its branch; None if it does not exist."""
        return _SELECT_WITH_BRANCH.first(transaction, {"checkpoint": checkpoint_id})

    def load(self, transaction: Reading, checkpoint_id: int) -> StoredRow:
        return require_row(self.find_one(transaction, checkpoint_id), "checkpoint", checkpoint_id)

    def on_path(self, transaction: Reading, path: Sequence[Segment]) -> Sequence[StoredRow]:
        ends = {one.branch.id: UNBOUNDED if one.last_number is None else one.last_number for one in path}
        return self.up_to(transaction, ends)

    def up_to(self, transaction: Reading, ends: Mapping[int, int], *conditions: Any) -> Sequence[StoredRow]:
        """Read the checkpoints of some branches up to a number on each, oldest first."""
        c = CHECKPOINT.c
        parts = [and_(c.internal_session_id == id, c.number <= number) for id, number in ends.items()]
        return self.find(transaction, or_(*parts), *conditions)

    def delete(self, transaction: Writing, session_id: int, ids: Sequence[int], user_id: int | None = None) -> None:
        """Delete checkpoints of a session. A reference to one of them refuses it."""
        for part in slices(ids):
            transaction.execute(delete(CHECKPOINT).where(CHECKPOINT.c.id.in_(part)))
            record_event(
                transaction,
                "checkpoint.deleted",
                session_id=session_id,
                user_id=user_id,
                count=len(part),
                checkpoints=list(part),
            )


_ADD = CompiledStatement(insert(CHECKPOINT))
_LAST_NUMBER = CompiledStatement(
    select(func.max(CHECKPOINT.c.number).label("number")).where(CHECKPOINT.c.internal_session_id == bindparam("branch"))
)
_MOVE_HEAD = CompiledUpdate(BRANCH, "head_id")
_IS_OWN_BRANCH = BRANCH.c.id == CHECKPOINT.c.internal_session_id
CHECKPOINT_WITH_BRANCH = select(
    CHECKPOINT, BRANCH.c.name.label("branch_name"), BRANCH.c.thread_id, BRANCH.c.external_session_id
).join_from(CHECKPOINT, BRANCH, _IS_OWN_BRANCH)
_SELECT_WITH_BRANCH = CompiledStatement(CHECKPOINT_WITH_BRANCH.where(CHECKPOINT.c.id == bindparam("checkpoint")))


class TagStore:
    def add(self, transaction: Writing, checkpoint: StoredRow, name: str, description: str | None, user_id: int) -> Tag:
        """Add a tag to a checkpoint. No-op if the checkpoint has it already."""
        tag = self.find(transaction, checkpoint.external_session_id, name)
        if tag is None:
            tag = Tag(
                name=name,
                checkpoint_id=checkpoint.id,
                reference=f"{checkpoint.branch_name}#{checkpoint.number}",
                description=description,
                user_id=user_id,
                created_at=datetime.now(UTC),
            )
            row = {**vars(tag), "external_session_id": checkpoint.external_session_id}
            del row["reference"]
            insert_rows(transaction, TAG, row)
            record_event(
                transaction,
                "tag.created",
                branch_id=checkpoint.internal_session_id,
                user_id=user_id,
                name=name,
                checkpoint=checkpoint.id,
            )
        if tag.checkpoint_id != checkpoint.id:
            raise Conflict(f"{tag.reference} already has the tag {name!r}.", Next("untag", name=name))
        return tag

    def remove(self, transaction: Writing, session_id: int, name: str, user_id: int) -> bool:
        result = transaction.execute(delete(TAG).where(*self._tag_conditions(session_id, name)))
        if result.rowcount:
            record_event(transaction, "tag.deleted", session_id=session_id, user_id=user_id, name=name)
        return bool(result.rowcount)

    def find(self, transaction: Reading, session_id: int, name: str) -> Tag | None:
        row = transaction.execute(_SELECT_TAGS.where(*self._tag_conditions(session_id, name)).limit(1)).first()
        return _tag_from_row(row) if row is not None else None

    def all(self, transaction: Reading, session_id: int) -> list[Tag]:
        query = _SELECT_TAGS.where(TAG.c.external_session_id == session_id)
        rows = transaction.execute(query.order_by(TAG.c.created_at.desc(), TAG.c.name))
        return [_tag_from_row(row) for row in rows]

    def names_of(self, transaction: Reading, checkpoint_ids: Sequence[int]) -> dict[int, list[str]]:
        return _group_names(rows_with(transaction, _SELECT_NAMES, TAG.c.checkpoint_id, checkpoint_ids))

    def names_by_checkpoint(self, transaction: Reading, session_id: int) -> dict[int, list[str]]:
        return _group_names(transaction.execute(_SELECT_NAMES.where(TAG.c.external_session_id == session_id)))

    def _tag_conditions(self, session_id: int, name: str) -> tuple[Any, ...]:
        return TAG.c.external_session_id == session_id, TAG.c.name == name


_SELECT_TAGS = select(TAG, CHECKPOINT.c.number, BRANCH.c.name.label("branch_name")).select_from(
    TAG.join(CHECKPOINT, CHECKPOINT.c.id == TAG.c.checkpoint_id).join(
        BRANCH, BRANCH.c.id == CHECKPOINT.c.internal_session_id
    )
)
_SELECT_NAMES = select(TAG.c.checkpoint_id, TAG.c.name)


def _group_names(rows: Iterable[StoredRow]) -> dict[int, list[str]]:
    names_by_checkpoint: dict[int, list[str]] = {}
    for row in sorted(rows, key=lambda row: row.name):
        names_by_checkpoint.setdefault(row.checkpoint_id, []).append(row.name)
    return names_by_checkpoint


def _tag_from_row(row: StoredRow) -> Tag:
    return value_of(Tag, row, reference=f"{row.branch_name}#{row.number}")
