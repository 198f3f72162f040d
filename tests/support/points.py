"""Places inside agentgit at which tests inject concurrent actions, killed processes and full disks.

Tests name a point, and `faults` acts there. Only this file contains the library's own names. A point is a function or
a method; the last sections list limits and settings.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Point(NamedTuple):
    """A place in agentgit.

    Args:
        module: The module, below `agentgit`.
        path: The function or method in the module.
    """

    module: str
    path: str

    @property
    def owner(self) -> Any:
        """The module or class that has the function."""
        found: Any = importlib.import_module(f"agentgit.{self.module}")
        for name in self.path.split(".")[:-1]:
            found = getattr(found, name)
        return found

    @property
    def name(self) -> str:
        """The name of the function in its owner."""
        return self.path.rpartition(".")[2]

    @property
    def place(self) -> tuple[Any, str]:
        """The module or class and the name in it, for `getattr` and `setattr`."""
        return self.owner, self.name


# -- the database

EVERY_READ = Point("store.database", "Database.reading")
EVERY_WRITE = Point("store.database", "Database.write")
SEND_COMMIT = Point("store.sql.batch", "Batch.commit")
"""The commit of a transaction on PostgreSQL, with the statements that are sent together with it."""
READ_STATE = Point("store.threads.graph_store", "GraphStore.read_state")
FIND_STATE = Point("store.threads.graph_store", "GraphStore.find")
READ_VALUE = Point("store.objects.content", "Content.get")
READ_VALUES = Point("store.objects.blobs", "Blobs.get_many")
READ_MESSAGES = Point("store.threads.graph_store", "GraphStore.messages_of")

# -- turns and calls

SAVE_STATE = Point("saver.saver", "SQLModelSaver.put")
TURN_OF_SAVE = Point("saver.branch_saver", "BranchSaver._turn_of")
SAVE_TASK = Point("saver.saver", "SQLModelSaver.put_writes")
STORE_CHECKPOINT = Point("store.records.checkpoints", "CheckpointStore.add")
BEGIN_TURN = Point("agents.turn.turn", "Turn.begin")
END_TURN = Point("agents.turn.turn", "Turn.end")
AUTHORIZE_CALL = Point("agents.turn.call_interceptor", "CallInterceptor.authorize")
CHECK_WORLD = Point("agents.turn.files", "TurnFiles.divergence")
RECORD_CALL = Point("agents.turn.calls", "Calls.end")
WRITE_INTENT = Point("store.records.journal", "Journal.intend")
WRITE_OUTCOME = Point("store.records.journal", "Journal.end")
MOVE_CALL = Point("store.records.journal", "Journal.move")
"""The change of a recorded call's status."""
FLUSH = Point("store.unit_of_work", "UnitOfWork.flush")
"""The write of what waits in a turn, and nothing else."""
FLUSH_WITH_WORK = Point("store.unit_of_work", "UnitOfWork.write")
"""The write of what waits in a turn, with an intent or the end of the turn."""
SLOW_FLUSH = Point("store.unit_of_work", "SLOW_SECONDS")
FLUSH_IN_BACKGROUND = Point("store.unit_of_work", "UnitOfWork.flush_in_background")
WRITE_STEPS = Point("store.unit_of_work", "UnitOfWork._write")
"""The statements that write what waits, in a transaction that has checked that the turn holds its branch."""
RECOVER_DEAD_TURN = Point("store.store", "Store.recover")

# -- rollbacks and switches

BEGIN_OPERATION = Point("store.records.operations", "OperationStore.begin")
WORK_ON_WORLD = Point("rollback.executor", "Executor.execute")
UNDO_CALL = Point("rollback.executor", "Executor._run_undo")
REPEAT_CALL = Point("rollback.executor", "Executor._run_tool")
GIVE_BACK = Point("rollback.crash_recovery", "recover_all_abandoned")
"""The recovery of what a piece of work that was interrupted still holds."""
PUBLISH_OPERATION = Point("rollback.finish", "Finisher.end")
OPEN_NEW_BRANCH = Point("rollback.finish", "Finisher._publish_branch")
FINISH_OPERATION = Point("rollback.engine", "RollbackEngine._execute_and_publish")
LOCK_SESSION = Point("store.records.sessions", "SessionStore.lock")
SET_CURRENT_BRANCH = Point("store.records.sessions", "SessionStore.set_current")
READ_BRANCHES = Point("store.records.sessions", "SessionStore.branches")
READ_LINEAGE = Point("store.records.sessions", "SessionStore.lineage")

# -- merges and imports

DELETE_THREAD = Point("store.threads.lifecycle", "delete_thread")
PUBLISH_MERGE = Point("agents.merge", "Merger._publish")
LOOK_FOR_IMPORTED = Point("agents.importing.commit", "ImportCommit.find")
READ_BACK_IMPORTED = Point("agents.importing.copying", "_Checker.get_tuple")
COMPARE_IMPORTED = Point("agents.importing.copying", "CheckpointCopier.differences")
LAND_IMPORTED = Point("agents.importing.commit", "ImportCommit.commit")
LAND_IMPORTED_ROWS = Point("agents.importing.commit", "ImportCommit._land")
LAND_IMPORTED_BRANCH = Point("agents.importing.commit", "ImportCommit._branch")

# -- sessions, users, upkeep

BEGIN_FROM_TEMPLATE = Point("store.queries.templates", "create_session")
COMPARE_WITH_TEMPLATE = Point("store.queries.templates", "require_same")
ERASE_LAST_ADMIN = Point("store.maintenance.erasure", "_lock_and_measure")
END_SHARED_LINKS = Point("store.records.session_access", "delete")
THIN_OUT = Point("repository.maintenance", "Maintenance._thin_all")
WRITE_EVENT = Point("store.audit.trail", "_row")
GRANT_RIGHTS = Point("store.schema.schema", "grant_rights")

# -- files

KEEP_FILES = Point("rollback.workspace_adapter", "WorkspaceAdapter.back_up")
BRING_FILES = Point("rollback.workspace_adapter", "WorkspaceAdapter.restore")
RELEASE_SNAPSHOTS = Point("rollback.workspace_adapter", "WorkspaceAdapter.release")
RELEASE_ALL_SNAPSHOTS = Point("rollback.files", "RollbackFiles.release_all")
WRITE_TREE = Point("workspace.objects", "PackWriter.finish")
HASH_FILE = Point("workspace.objects", "object_id")
ENTER_SNAPSHOT = Point("workspace.catalog", "Catalog.add")
SET_VALUE = Point("workspace.catalog", "Catalog.set")
"""A restore sets that it has begun, the snapshot that it has restored, and that it has ended."""
RUN_RESTORE = Point("workspace.restore", "Restore.run")
REPLACE_FILE = Point("workspace.disk", "Place.replace")
CREATE_FILE = Point("workspace.disk", "Place._create")
HIDE_FILE = Point("workspace.disk", "Place._hide")
NAME_FILE = Point("workspace.disk", "Place._take_name")
"""The name is given to a new file, or back to one of another writer."""
REMOVE_OLD_FILE = Point("workspace.disk", "remove_file")
RENAME_FILE = Point("workspace.disk", "os.rename")
LINK_FILE = Point("workspace.disk", "os.link")
"""The link that gives a file its name."""


# -- limits and durations

POOL_SECONDS = Point("store.sql.postgres", "POOL_SECONDS")
IDLE_SECONDS = Point("store.sql.postgres", "IDLE_SECONDS")
SECONDS_PER_LEASE = Point("store.sql.process", "PER_LEASE")
SECONDS_BETWEEN_LOOKS_OF_FEEDS = Point("web.event_stream", "POLL_SECONDS")

# -- settings of this process

NAME_OF_MACHINE = Point("store.sql.process", "_here")
OPENTELEMETRY = Point("tracing", "_api")
FOLDS_OF_DELTA_CHANNELS = Point("saver.config", "folds")
NEW_ID_OF_EVENT = Point("store.audit.trail", "new_id")
PAGES_RUN_TURN = Point("web.pages.actions", "_run")
PAGES_BRANCH_IS_NEW = Point("web.pages.actions", "_is_new")
RESERVE_RUN_OF_PAGES = Point("web.pages.actions", "_reserve_run")
RELEASE_RUN_OF_PAGES = Point("web.pages.actions", "_release_run")
SHOW_BESIDE_MAGIC = Point("notebook.magics", "_show")
LIST_CHECKPOINTS_TOOL = Point("mcp.write_tools", "WriteTools.list_checkpoints")
FOLDER_OF_MIGRATIONS = Point("store.schema.migrations", "folder")
NEWEST_SCHEMA = Point("store.schema.schema", "REVISION")
