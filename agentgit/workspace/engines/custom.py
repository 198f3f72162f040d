"""The engine of a workspace with a custom environment, of which only `checkpoint` and `restore` are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from agentgit.errors import AgentGitError, InvalidInput, NotFound, Unavailable
from agentgit.workspace.catalog import Catalog, CatalogRow
from agentgit.workspace.engines.files import RestoreTarget
from agentgit.workspace.restore import RestoreProgress
from agentgit.workspace.values import Environment, FileCheckpoint, Restored, RestorePlan, WorkspaceDiff

Paths = Iterable[bytes] | None


class CustomEngine:
    """Snapshots that a custom environment takes and restores. Their contents are opaque to agentgit."""

    def __init__(self, environment: Environment, catalog: Catalog) -> None:
        if not isinstance(environment, Environment):
            raise InvalidInput(f"{environment!r} is not an environment: it needs checkpoint() -> id and restore(id).")
        self._environment, self._catalog = environment, catalog

    def take_snapshot(
        self,
        new_snapshot: FileCheckpoint,
        paths: Paths = None,
        progress: RestoreProgress | None = None,
        *,
        always_new: bool = True,
    ) -> FileCheckpoint:
        """Take a snapshot; see `FileEngine.snapshot`. It is always a new one, because snapshots cannot be compared."""
        if paths is not None:
            self._raise_unsupported("paths")
        with self._converting_errors("checkpoint"):
            tree = str(self._environment.checkpoint())
        return self._store_snapshot(tree, new_snapshot)

    def _store_snapshot(self, tree: str, snapshot: FileCheckpoint) -> FileCheckpoint:
        index = self._catalog.load_index(None)
        index.key = tree
        self._catalog.store_snapshot(snapshot, index)
        return snapshot

    def restore(self, target: RestoreTarget, new_safety: FileCheckpoint, progress: RestoreProgress | None) -> Restored:
        """Restore a snapshot; see `FileEngine.restore`."""
        if target.paths is not None or target.expected is not None:
            self._raise_unsupported("paths" if target.paths is not None else "expect")
        if not getattr(self._environment, "takes_safety", False):
            safety_snapshot = self.take_snapshot(new_safety)
            with self._converting_errors("restore"):
                self._environment.restore(target.row.tree)
            return Restored(target.row.snapshot.id, safety_snapshot.id, everything=True)
        with self._converting_errors("restore"):
            result = self._environment.restore(target.row.tree)
        safety_id = self._store_snapshot(result.safety, new_safety).id if result.safety else None
        excluded_fields = {name: tuple(getattr(result, name, ())) for name in ("missing", "left")}
        return Restored(target.row.snapshot.id, safety_id, everything=True, **excluded_fields)

    def recover(self) -> list[Restored]:
        """Return an empty list: restores by a custom environment are not journaled."""
        return []

    def captures(self, path: bytes) -> bool:
        """Return False: only a custom environment knows what it restores."""
        return False

    def discard_cache(self) -> None:
        """Do nothing: this engine caches no state."""

    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Return an empty tuple: a custom environment does not report what it leaves out."""
        return ()

    def plan(self, target: CatalogRow, paths: Paths, since: CatalogRow | None = None) -> RestorePlan:
        """Raise `InvalidInput`: a custom environment cannot plan a restore."""
        self._raise_unsupported("plan_restore")

    def changed(self) -> tuple[str, ...]:
        """Raise `InvalidInput`: a custom environment does not list changed files."""
        self._raise_unsupported("changed")

    def diff(self, a: CatalogRow | None, b: CatalogRow | None, paths: Paths) -> WorkspaceDiff:
        """Raise `InvalidInput`: a custom environment cannot compare snapshots."""
        self._raise_unsupported("diff")

    def collect(self) -> int:
        """Delete unneeded snapshots, if the environment can. Return 0, because the freed size is not known."""
        delete: Callable[[str], Any] | None = getattr(self._environment, "delete", None)
        failures: list[AgentGitError] = []
        if delete is None:
            return 0
        for tree in self._catalog.unneeded_trees():
            try:
                with self._converting_errors("delete"):
                    delete(tree)
            except NotFound:
                pass  # already deleted
            except AgentGitError as error:  # still delete the others
                failures.append(error)
                continue  # it stays listed as waste, so that the next call tries again
            self._catalog.forget_trees([tree])
        if failures:
            raise failures[0]
        return 0

    @contextmanager
    def _converting_errors(self, method: str) -> Iterator[None]:
        """Convert an exception of the custom environment into `Unavailable`; pass `AgentGitError` through."""
        try:
            yield
        except AgentGitError:
            raise
        except Exception as error:
            name = type(self._environment).__name__
            raise Unavailable(f"{name}.{method} failed: {type(error).__name__}: {error}") from error

    def _raise_unsupported(self, feature: str) -> NoReturn:
        name = type(self._environment).__name__
        raise InvalidInput(f'{name} can only take and restore snapshots; {feature} needs "git" or "directory".')
