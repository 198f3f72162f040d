"""The engine of a workspace with an environment of its user's own: all that two methods allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from agentgit.errors import AgentGitError, InvalidInput, NotFound, Unavailable
from agentgit.workspace.catalog import Catalog, CatalogRow
from agentgit.workspace.engines.files import Target
from agentgit.workspace.restore import Progress
from agentgit.workspace.values import Environment, FileCheckpoint, Restored, RestorePlan, WorkspaceDiff

Paths = Iterable[bytes] | None


class Own:
    """Snapshots that an environment takes and restores; it alone knows what is in them.

    Args:
        environment: Takes them; if it has `delete(id)`, that is called for those that are not needed any more. If its
            `takes_safety` is true, its `restore` takes the safety snapshot, and names it as `safety` of what it gives.
        catalog: The catalog that lists the snapshots.
    """

    def __init__(self, environment: Environment, catalog: Catalog) -> None:
        if not isinstance(environment, Environment):
            raise InvalidInput(f"{environment!r} is not an environment: it needs checkpoint() -> id and restore(id).")
        self._environment, self._catalog = environment, catalog

    def snapshot(
        self,
        made: Callable[[int], FileCheckpoint],
        paths: Paths = None,
        progress: Progress | None = None,
        *,
        anew: bool = True,
    ) -> FileCheckpoint:
        """See `Files.snapshot`; it is always a new one, because nobody can tell whether an older one is the same."""
        if paths is not None:
            self._refuse("paths")
        with self._asking("checkpoint"):
            tree = str(self._environment.checkpoint())
        return self._entered(tree, made)

    def _entered(self, tree: str, made: Callable[[int], FileCheckpoint]) -> FileCheckpoint:
        known = self._catalog.known(None)
        known.key = tree
        snapshot = made(0)
        self._catalog.enter(snapshot, known)
        return snapshot

    def restore(self, target: Target, safety: Callable[[int], FileCheckpoint], progress: Progress | None) -> Restored:
        """See `Files.restore`."""
        if target.paths is not None or target.expected is not None:
            self._refuse("paths" if target.paths is not None else "expect")
        if not getattr(self._environment, "takes_safety", False):
            taken = self.snapshot(safety)
            with self._asking("restore"):
                self._environment.restore(target.row.tree)
            return Restored(target.row.snapshot.id, taken.id, everything=True)
        with self._asking("restore"):
            done = self._environment.restore(target.row.tree)
        kept = self._entered(done.safety, safety).id if done.safety else None
        said = {name: tuple(getattr(done, name, ())) for name in ("missing", "left")}
        return Restored(target.row.snapshot.id, kept, everything=True, **said)

    def finish(self) -> list[Restored]:
        """There is no journal of what an environment does."""
        return []

    def forget(self) -> None:
        """There is nothing that it remembers."""

    def skipped(self) -> tuple[tuple[str, str], ...]:
        """It does not tell what it leaves out."""
        return ()

    def plan(self, target: CatalogRow, paths: Paths, since: CatalogRow | None = None) -> RestorePlan:
        """Not known."""
        self._refuse("plan_restore")

    def changed(self) -> tuple[str, ...]:
        """Not known."""
        self._refuse("changed")

    def diff(self, a: CatalogRow | None, b: CatalogRow | None, paths: Paths) -> WorkspaceDiff:
        """Not known."""
        self._refuse("diff")

    def collect(self) -> int:
        """Delete what is not needed, if the environment can; it does not tell how much that freed."""
        delete: Callable[[str], Any] | None = getattr(self._environment, "delete", None)
        failures: list[AgentGitError] = []
        if delete is None:
            return 0
        for tree in self._catalog.waste():
            try:
                with self._asking("delete"):
                    delete(tree)
            except NotFound:
                pass  # somebody deleted it
            except AgentGitError as error:  # the others are to go too
                failures.append(error)
                continue  # it stays waste, and the next time tries again
            self._catalog.gone([tree])
        if failures:
            raise failures[0]
        return 0

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Make what its user's code raises a failure that whoever uses a workspace knows."""
        try:
            yield
        except AgentGitError:
            raise
        except Exception as error:
            name = type(self._environment).__name__
            raise Unavailable(f"{name}.{what} failed: {type(error).__name__}: {error}") from error

    def _refuse(self, what: str) -> NoReturn:
        name = type(self._environment).__name__
        raise InvalidInput(f'{name} can only take and restore snapshots; {what} needs "git" or "directory".')
