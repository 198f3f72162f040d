"""Snapshots that an environment of the user takes and restores. Their contents are opaque to agentgit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from agentgit.errors import AgentGitError, InvalidInput, NotFound, Unavailable
from agentgit.workspace.files import Captured
from agentgit.workspace.values import Environment, Restored


class CustomEnvironment:
    def __init__(self, environment: Environment) -> None:
        if not isinstance(environment, Environment):
            raise InvalidInput(f"{environment!r} is not an environment: it needs checkpoint() -> id and restore(id).")
        self._environment = environment

        self.takes_safety = bool(getattr(environment, "takes_safety", False))
        """True if `restore` takes the safety snapshot itself, and returns its id as `safety`."""

    def capture(self) -> Captured:
        with self._converting_errors("checkpoint"):
            return Captured(str(self._environment.checkpoint()))

    def restore(self, id: str, tree: str) -> tuple[Restored, str | None]:
        """Restore a snapshot; also return the safety snapshot that the environment took, if any."""
        with self._converting_errors("restore"):
            result = self._environment.restore(tree)
        missing, left = (tuple(getattr(result, name, ())) for name in ("missing", "left"))
        safety = getattr(result, "safety", None) if self.takes_safety else None
        return Restored(id, everything=True, missing=missing, left=left), safety

    def collect(self, trees: Iterable[str]) -> Iterator[str]:
        """Delete snapshots, if the environment can, and yield those that are gone."""
        delete: Callable[[str], Any] | None = getattr(self._environment, "delete", None)
        failures: list[AgentGitError] = []
        if delete is None:
            return
        for tree in trees:
            try:
                with self._converting_errors("delete"):
                    delete(tree)
            except NotFound:
                yield tree
            except AgentGitError as error:  # still delete the others; the next call tries this one again
                failures.append(error)
            else:
                yield tree
        if failures:
            raise failures[0]

    @contextmanager
    def _converting_errors(self, method: str) -> Iterator[None]:
        """Convert an exception of the environment into `Unavailable`; pass `AgentGitError` through."""
        try:
            yield
        except AgentGitError:
            raise
        except Exception as error:
            name = type(self._environment).__name__
            raise Unavailable(f"{name}.{method} failed: {type(error).__name__}: {error}") from error

    def refuse(self, feature: str) -> NoReturn:
        name = type(self._environment).__name__
        raise InvalidInput(f'{name} can only take and restore snapshots; {feature} needs "git" or "directory".')
