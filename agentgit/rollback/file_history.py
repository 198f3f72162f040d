"""The history of the files of a session: whose changes a rollback leaves as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

from agentgit.effects.files import PERSON, RESTORE, TURN, UNKNOWN
from agentgit.errors import Corrupt
from agentgit.workspace.left_out import parent_folders
from agentgit.workspace.restore import KeptPaths, leaves
from agentgit.workspace.trees import Changes, TreeEntry, Trees, is_leaf

OTHERS = "others"
"""The turns and rollbacks of other branches, where these count as somebody else's."""

STOPPED = "stopped"
"""A rollback that stopped, which changes only what turns changed, or somebody else since then."""

LEFT_WHY = "somebody else changed it while no turn ran"
CONFLICT_WHY = "a turn changed it, and so did somebody else"
UNSURE_CONFLICT_WHY = "a turn changed it, and perhaps so did somebody else"
BLOCKED_WHY = "a file that somebody else made stands above or below it"
UNHELD_WHY = "something that no snapshot holds is in its place"
KEPT_IN = "snapshot {} has the other's version"
DELETED_WHY = "somebody else had deleted it"
UNSURE_DELETED_WHY = "somebody else, or what stopped half way, had deleted it"
REPLACED_WHY = f"a turn replaced somebody else's version; {KEPT_IN}"


class FileState(NamedTuple):
    """A snapshot of a directory, and who changed its files since the state before.

    What differs from a snapshot that was `restored`, others have changed meanwhile; the restore has `left` some paths.
    """

    snapshot: str
    changed_by: str
    restored: str = ""
    left: frozenset[bytes] = frozenset()


class PathPast(NamedTuple):
    """The past of a path: whether a turn changed it, and the last version of somebody else with its snapshot.

    `is_unsure` is true if that version may also be of a turn that was killed or of a rollback that stopped.
    """

    is_own: bool = False
    theirs: tuple[TreeEntry | None, str] | None = None
    is_unsure: bool = False


class FileHistory:
    """The states of a directory since the snapshot that is restored, oldest first.

    What only somebody else changed stays. A file that both changed is a conflict, and stays unless `overwrites`; one
    that somebody else deleted is restored, because that replaces nothing. What changes after an operation has begun,
    nobody has confirmed to overwrite.
    """

    def __init__(
        self, states: Sequence[FileState], changed_since: str, *, overwrites: bool = False, has_begun: bool = False
    ) -> None:
        self._states, self._changed_since, self._overwrites = states, changed_since, overwrites
        self._has_begun = has_begun
        self.overwritten: dict[bytes, str] = {}
        """The files that are replaced although others changed them, with the snapshot that has their version."""
        self.deleted: dict[bytes, str] = {}
        """The files that others deleted and a restore brings back, with who deleted them."""

    def until(self, snapshot: str) -> FileHistory:
        """Return the history as it was when the directory last had a snapshot."""
        ends = [number for number, state in enumerate(self._states, 1) if state.snapshot == snapshot]
        return FileHistory(self._states[: ends[-1] if ends else None], PERSON, overwrites=self._overwrites)

    def choose(
        self,
        changes: Changes,
        displacing: Set[bytes],
        trees: Trees,
        tree_of: Callable[[str], bytes | None],
        now: bytes,
    ) -> KeptPaths:
        """Return the paths that a restore leaves as they are; `now` is the tree of the directory."""
        pasts, last = self._pasts(trees, tree_of, now)
        own = {path for path, past in pasts.items() if past.is_own}
        theirs = {path: past.theirs for path, past in pasts.items() if past.theirs is not None}
        left, both = changes.keys() & theirs.keys() - own, own & theirs.keys()
        replaced = {
            path: theirs[path][1] for path in both if is_leaf(theirs[path][0]) and theirs[path][0] != last[path]
        }
        conflicts = {path for path in both & changes.keys() if changes[path].before is not None or path in replaced}
        late = {path for path in conflicts if self._has_begun and not theirs[path][1]}
        unheld = displacing - left
        kept = left | (late if self._overwrites else conflicts | unheld)
        blocked = _blocked_by(left, changes)
        kept = kept | blocked | _blocked_by(kept, changes)
        files = set(leaves(changes))
        self.overwritten = {path: replaced.get(path, "") for path in (conflicts - kept) & files}
        gone = {path for path in (both - kept - unheld) & files if changes[path].before is None}
        unsure = {path for path, past in pasts.items() if past.is_unsure}
        self.deleted = {path: UNSURE_DELETED_WHY if path in unsure else DELETED_WHY for path in gone}
        reasons = dict.fromkeys(left & files, LEFT_WHY)
        reasons |= {path: REPLACED_WHY.format(replaced[path]) for path in replaced.keys() - changes.keys()}
        conflict_reasons = {
            path: UNSURE_CONFLICT_WHY if path in unsure else CONFLICT_WHY for path in (kept - left) & files
        }
        for paths, why in ((blocked, BLOCKED_WHY), (unheld & kept, UNHELD_WHY)):
            conflict_reasons |= dict.fromkeys(paths & files, why)
        for path in conflict_reasons.keys() & replaced.keys():
            conflict_reasons[path] += f"; {KEPT_IN.format(replaced[path])}"
        return KeptPaths(kept, reasons, conflict_reasons)

    def _pasts(
        self, trees: Trees, tree_of: Callable[[str], bytes | None], now: bytes
    ) -> tuple[dict[bytes, PathPast], dict[bytes, TreeEntry | None]]:
        """Return who changed each path, and what it is now.

        A rollback that brings an earlier version back brings back its past, and so does a person with one that no turn
        made. Whoever else writes it again does not: a version of a turn becomes the person's.
        """
        pasts, last = dict[bytes, PathPast](), dict[bytes, TreeEntry | None]()
        known: dict[bytes, dict[TreeEntry | None, PathPast]] = {}
        for changes, state, others in self._intervals(trees, tree_of, now):
            for path, change in changes.items():
                changed_by = PERSON if path in others else state.changed_by
                is_restored = path in others and path not in state.left and others[path].before != change.before
                versions = known.setdefault(path, {change.before: PathPast()})
                past = versions.get(change.after)
                if past is None or changed_by in (TURN, UNKNOWN, STOPPED) or (changed_by == PERSON and past.is_own):
                    is_own, theirs, is_unsure = pasts.get(path, PathPast())
                    if changed_by in (PERSON, OTHERS, UNKNOWN, STOPPED):
                        theirs, is_unsure = (change.after, state.snapshot), changed_by in (UNKNOWN, STOPPED)
                    is_own = is_own or is_restored or changed_by in (TURN, RESTORE, UNKNOWN)
                    versions[change.after] = PathPast(is_own or (past is not None and past.is_own), theirs, is_unsure)
                pasts[path], last[path] = versions[change.after], change.after
        return pasts, last

    def _intervals(
        self, trees: Trees, tree_of: Callable[[str], bytes | None], now: bytes
    ) -> Iterator[tuple[Changes, FileState, Changes]]:
        """Yield what changed from one state to the next, the later one, and what others changed during its restore."""

        def differences(before: bytes | None, after: bytes | None) -> Changes | None:
            with suppress(Corrupt):
                return trees.differences(before, after) if before and after else None
            return None

        earlier, missed = None, set[str]()
        for state in [*self._states, FileState("", self._changed_since)]:
            tree = tree_of(state.snapshot) if state.snapshot else now
            missed.add(state.changed_by)
            changes = differences(earlier or tree, tree)
            if changes is None:  # the snapshot is gone or damaged; its changes count with those of the next state
                continue
            if earlier is not None:
                others = differences(tree_of(state.restored), tree) if state.restored else {}
                if len(missed) > 1 or others is None:
                    state, others = FileState(state.snapshot, UNKNOWN), {}
                yield changes, state, others
            earlier = tree
            missed.clear()


def _blocked_by(kept: set[bytes], changes: Changes) -> set[bytes]:
    """Return the paths that cannot be written because a path that is kept is above or below them."""
    kept_files = {path for path in kept if is_leaf(changes[path].before)}
    parents = {parent for path in kept_files for parent in parent_folders(path)}
    return {
        path
        for path, change in changes.items()
        if path not in kept
        and ((is_leaf(change.after) and path in parents) or any(one in kept_files for one in parent_folders(path)))
    }
