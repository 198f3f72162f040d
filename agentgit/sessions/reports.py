"""Results of imports and of database maintenance. Pure values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, TypeVar

from agentgit.errors import AgentGitError

IMPORTED, EXTENDED, UNCHANGED, FAILED = "imported", "extended", "unchanged", "failed"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of an import.

    Args:
        thread_id: The thread that is read.
        number: Its number, from 1.
        threads: The number of threads.
        done: The number of its graph checkpoints that were read.
        total: The number of them that are to be read.
    """

    thread_id: str
    number: int
    threads: int
    done: int
    total: int


@dataclass(frozen=True, kw_only=True)
class ThreadReport:
    """The result for one thread.

    Args:
        thread_id: The thread in the database that it comes from.
        session_name: The session that it is now.
        status: `imported`, `extended` (it had grown), `unchanged` or `failed`.
        graph_checkpoints: The number of graph checkpoints that were added.
        checkpoints: The number of checkpoints of agentgit that were made.
        tool_calls: The number of past calls that were put on the tool track.
        left_out: The number of graph checkpoints on other lines than the newest one, which were left out.
        hidden: Names of metadata that looked like secrets, and were left out.
        error: Why it failed.
    """

    thread_id: str
    session_name: str
    status: str
    graph_checkpoints: int = 0
    checkpoints: int = 0
    tool_calls: int = 0
    left_out: int = 0
    hidden: tuple[str, ...] = ()
    error: AgentGitError | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a JSON-like dict."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        return data | {"hidden": list(self.hidden), "error": str(self.error) if self.error else None}


@dataclass(frozen=True)
class ImportReport:
    """The result of an import.

    Args:
        threads: One report for each thread, in the order in which they were read.

    Example:
        >>> report = ImportReport([ThreadReport(thread_id="t", session_name="t", status="imported")])
        >>> report.count("imported"), report.failed
        (1, [])
    """

    threads: Sequence[ThreadReport]

    @property
    def failed(self) -> list[ThreadReport]:
        """The threads that could not be read; nothing of them is here."""
        return [one for one in self.threads if one.status == FAILED]

    def count(self, status: str) -> int:
        """Count the threads with that status."""
        return sum(one.status == status for one in self.threads)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-like data."""
        return {"threads": [one.to_dict() for one in self.threads]}


T = TypeVar("T")

OnProgress: TypeAlias = Callable[[int, int], None]
"""Is told how many things are done, and of how many."""


class Parts:
    """Tells how far something is that has several parts, one after the other.

    Args:
        progress: Is told; None tells nobody.
        sizes: The number of things that each part has, in their order; a part that is not named has none.

    Example:
        >>> told = []
        >>> parts = Parts(lambda done, total: told.append((done, total)), {"a": 3, "b": 2})
        >>> list(parts.over("a", [[1, 2], [3]])), list(parts.over("b", [[4]])), told
        ([1, 2, 3], [4], [(2, 5), (3, 5), (3, 5), (4, 5), (5, 5)])
    """

    def __init__(self, progress: OnProgress | None = None, sizes: Mapping[str, int] | None = None) -> None:
        self._progress = progress
        self._sizes = dict(sizes or {})
        names = list(self._sizes)
        self._begins = {name: sum(self._sizes[one] for one in names[:n]) for n, name in enumerate(names)}

    def over(self, name: str, pages: Iterable[Sequence[T]]) -> Iterator[T]:
        """Return the things of a part, which come a page at a time; when they end, the part is done."""
        done = 0
        for page in pages:
            yield from page
            done += len(page)
            self._tell(name, done)
        self.end(name)

    def end(self, name: str) -> None:
        """Report that a part is done."""
        self._tell(name, self._sizes.get(name, 0))

    def _tell(self, name: str, done: int) -> None:
        if self._progress is not None:
            there = self._begins.get(name, 0) + min(done, self._sizes.get(name, 0))
            self._progress(there, sum(self._sizes.values()))


@dataclass(frozen=True, kw_only=True)
class Reclaimed:
    """The result of a collection, or of a dry run.

    Args:
        checkpoints: Checkpoints that were removed because their session keeps no more.
        steps: Graph checkpoints between checkpoints.
        values: Stored values that nothing refers to.
        bytes: Their stored size.
        writes: Pending writes whose graph checkpoint never came or is gone.
        lists: Lists that were written anew because what they continued is removed.
        snapshots: Snapshots of workspaces that no checkpoint has any more.
        disk_before: The size of the database in bytes before the collection.
        disk_after: The size after it; in a dry run the same as before.
        dry_run: True if nothing was done.
        problem: Why the free space of the database was not returned to the file system; empty if it was.
    """

    checkpoints: int = 0
    steps: int = 0
    values: int = 0
    bytes: int = 0
    writes: int = 0
    lists: int = 0
    snapshots: int = 0
    disk_before: int = 0
    disk_after: int = 0
    dry_run: bool = False
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-like data."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    Args:
        row: The table and the key of the row.
        what: The fault, as a sentence.
        todo: The remedy, as a sentence.
    """

    row: str
    what: str
    todo: str

    def __str__(self) -> str:
        return f"{self.row}: {self.what}. {self.todo}"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of a check of a database.

    Args:
        level: The depth of the check: 1 references, 2 hashes too, 3 the state of every head too.
        objects: The number of rows that were checked.
        seconds: The seconds that it took.
        findings: The things that are wrong, in the order in which they were found.
        more: The number of findings beyond these.
    """

    level: int
    objects: int
    seconds: float
    findings: Sequence[Finding] = field(default_factory=tuple)
    more: int = 0

    @property
    def is_sound(self) -> bool:
        """True if nothing is wrong."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-like data."""
        return {**vars(self), "is_sound": self.is_sound, "findings": [vars(one) for one in self.findings]}


@dataclass(frozen=True, kw_only=True)
class Rotated:
    """The result of encrypting the values of a database anew.

    Args:
        changed: The number of values that were stored anew.
        keys: The number of values that each key has now; the empty name stands for values in clear.
        problem: Why the files still have what was there before; empty if they do not.
    """

    changed: int
    keys: Mapping[str, int]
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-like data."""
        return vars(self) | {"keys": dict(self.keys)}


@dataclass(frozen=True, kw_only=True)
class Erased:
    """The result of an erasure.

    Args:
        sessions: The number of sessions.
        rows: The number of rows, by their tables.
        values: The number of stored values that nobody else needs.
        bytes: Their stored size.
        events: The number of events of their trails.
        snapshots: The number of snapshots of files, in the workspaces.
        left: The things that could not be reached from here, as sentences.
    """

    sessions: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    values: int = 0
    bytes: int = 0
    events: int = 0
    snapshots: int = 0
    left: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-like data."""
        return vars(self) | {"rows": dict(self.rows), "left": list(self.left)}
