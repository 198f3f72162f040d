"""One name in an open directory: put something there or take it away, and lose nothing that somebody writes meanwhile.

Whoever changes a path looks at it first. Between that look and the change somebody else may write. So the new thing is
exchanged with the old one, and what comes out is looked at again: if it is not what was seen, it goes back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from agentgit.workspace.disk.atomic_file import exchange, remove_file, rename_to_free, taken_name, written_name
from agentgit.workspace.disk.move_aside import Aside

Look = TypeVar("Look")

UNREADABLE = object()


@dataclass(frozen=True)
class DirectoryEntry(Generic[Look]):
    """One name in an open directory.

    Args:
        parent: The open directory.
        name: The name in it.
        path: Its path in the workspace, which errors name.
        look: The function that examines a name of the directory.
        nothing: The result of `look` where nothing stands.
        aside: The place for what can neither stay nor go back.
    """

    parent: int
    name: bytes
    path: bytes
    look: Callable[[int, bytes], Look]
    nothing: Look
    aside: Aside

    def put(self, make: Callable[[bytes], None], new: Look, seen: Look) -> bool:
        """Put a file or a link here, in place of what was seen here, in one step.

        Args:
            make: The function that makes the new thing under a given name in this directory.
            new: The result of `look` for the new thing.
            seen: The result of `look` when this name was examined.

        Returns:
            False if something else stands here by now; that stays.

        Raises:
            OSError: The system refused; what stood here stays.
        """
        written, taken = written_name(self.name), taken_name(self.name)
        remove_file(self.parent, written)
        try:
            make(written)
            self._hide(written)
        except BaseException:
            remove_file(self.parent, written)
            raise
        try:
            return self._swap(taken, new, seen)
        except OSError:
            if self._look(taken) == new:
                remove_file(self.parent, taken)
            raise

    def take_away(self, seen: Look) -> bool:
        """Remove the file or the link that was seen here; return False if something else stands here: that stays."""
        try:
            self._hide(self.name)
        except FileNotFoundError:
            return False
        if self._look(taken_name(self.name)) == seen:
            remove_file(self.parent, taken_name(self.name))
            return True
        self._give_back()
        return False

    def move_aside(self) -> bytes:
        """Move what stands here to the storage; return where it is now.

        Raises:
            Unavailable: It cannot be moved, and is still here.
        """
        return self.aside.take(self.parent, self.name, self.path)

    def recover(self, *known: Look) -> bytes | None:
        """Clear away what a process left that was killed while it changed this place.

        Args:
            known: The result of `look` for what snapshots hold, which may go.

        Returns:
            Where in the storage something else is now that somebody wrote; None if there is no such thing, or it stands
            here again.

        Raises:
            Unavailable: It cannot be moved.
        """
        remove_file(self.parent, written_name(self.name))
        left = self._look(taken_name(self.name))
        if left == self.nothing:
            return None
        if left in known:
            remove_file(self.parent, taken_name(self.name))
            return None
        return self._give_back()

    def _swap(self, taken: bytes, new: Look, seen: Look) -> bool:
        """Exchange the new thing with what was seen; if something else comes out, give it its place again."""
        if seen == self.nothing:
            if rename_to_free(self.parent, taken, self.name):
                return True
        elif (swapped := self._exchange(taken)) is None:
            if self._look(self.name) == seen:
                self._rename(taken, self.name)
                return True
        elif swapped:
            if self._look(taken) == seen:
                remove_file(self.parent, taken)
                return True
            self._undo(taken, new)
            return False
        remove_file(self.parent, taken)
        return False

    def _undo(self, taken: bytes, new: Look) -> None:
        """Exchange until what comes out is what was put in: the newest that somebody else wrote stands here then."""
        put: object = new
        coming = self._look(taken)
        while self._exchange(taken):
            out = self._look(taken)
            if out == put:
                break
            put, coming = coming, out
        else:  # somebody has deleted what stood here: this was the last thing before
            self._give_back()
            return
        if out == new:
            remove_file(self.parent, taken)
        else:
            self.aside.take(self.parent, taken, self.path)

    def _exchange(self, taken: bytes) -> bool | None:
        """Exchange with what stands here; return False if nothing does, None if the system cannot."""
        try:
            return exchange(self.parent, taken, self.name) or None
        except FileNotFoundError:
            return False

    def _give_back(self) -> bytes | None:
        """Let what was taken away stand here again; if the name is not free by now, move it to the storage."""
        taken = taken_name(self.name)
        if rename_to_free(self.parent, taken, self.name):
            return None
        return self.aside.take(self.parent, taken, self.path)

    def _look(self, name: bytes) -> object:
        """Return what stands at a name; what cannot be read is never what was seen."""
        try:
            return self.look(self.parent, name)
        except OSError:
            return UNREADABLE

    def _hide(self, name: bytes) -> None:
        """Rename an item to the name for what is taken away; what a failure has left under that name is kept."""
        if not rename_to_free(self.parent, name, taken_name(self.name)):
            self._give_back()
            self._rename(name, taken_name(self.name))

    def _rename(self, name: bytes, new: bytes) -> None:
        os.rename(name, new, src_dir_fd=self.parent, dst_dir_fd=self.parent)
