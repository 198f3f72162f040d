"""The object store: blobs, trees and commits in pack files, as in a git repository, but no git runs.

So no hook, filter or configuration of a repository does. The caller must ensure that only one process writes or
collects at a time; any number may read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from agentgit.errors import Corrupt
from agentgit.workspace.packs import (
    IN_MEMORY,
    Data,
    LargeContents,
    Pack,
    PackWriter,
    StoredObject,
    damaged,
    iter_chunks,
    naming,
    pack_id,
    verified,
    write_file,
)

REFS = "refs/agentgit"

SMALL_PACK = 1 << 20
"""The size in bytes below which a collection merges pack files."""

REPOSITORY = {
    "HEAD": "ref: refs/heads/none\n",
    # A person's `git gc` may write packs here, but no differences, which this store does not read.
    "config": "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[gc]\n\tauto = 0\n\taggressiveDepth = 0\n"
    "\taggressiveWindow = 0\n[pack]\n\tdepth = 0\n\twindow = 0\n",
}


class Objects:
    def __init__(self, folder: str, *, is_repository: bool) -> None:
        self.folder, self._is_repository = folder, is_repository
        self.pack_folder = os.path.join(folder, "objects", "pack")
        self._packs: dict[str, Pack] = {}
        with naming(folder):
            os.makedirs(self.pack_folder, mode=0o700, exist_ok=True)
            if is_repository:
                os.makedirs(os.path.join(folder, REFS), mode=0o700, exist_ok=True)
                for name, text in REPOSITORY.items():
                    if not os.path.exists(os.path.join(folder, name)):
                        write_file(os.path.join(folder, name), text)
        self.refresh()

    def refresh(self) -> None:
        with naming(self.folder):
            found = set(os.listdir(self.pack_folder))
            names = {name for name in found if name.endswith(".idx") and f"{name[:-4]}.pack" in found}
            for name in self._packs.keys() - names:
                del self._packs[name]
            for name in sorted(names - self._packs.keys()):
                with suppress(FileNotFoundError, Corrupt):  # collected meanwhile, or what it has is missing
                    self._packs[name] = Pack(os.path.join(self.pack_folder, name))

    def __contains__(self, oid: bytes) -> bool:
        return any(pack.find(oid) is not None for pack in self._packs.values())

    @contextmanager
    def writing(self) -> Iterator[PackWriter]:
        """Write objects; they are stored when the block ends, all or none."""
        with naming(self.folder):
            self.refresh()
            writer = self._new_pack()
            try:
                yield writer
                writer.finish()
                self.refresh()
            except BaseException:
                writer.abandon()
                raise

    def read(self, oid: bytes) -> Data:
        """Return the contents of an object."""
        with naming(self.folder):
            found = self._find(oid)
            if found.size > IN_MEMORY:
                return LargeContents(found.size, partial(verified, oid, found.kind, found.size, found.chunks))
            data = b"".join(found.chunks())
        if pack_id(found.kind, data) != oid:
            raise damaged(oid)
        return data

    def raw_objects(self, oids: Collection[bytes]) -> Iterator[tuple[bytes, Iterator[bytes]]]:
        """Yield objects as the packs have them, each in chunks."""
        missing = set(oids)
        for pack in list(self._packs.values()):
            here = {oid for oid in missing if pack.find(oid) is not None}
            missing -= here
            if here:
                yield from pack.raw_objects(here)
        if missing:
            raise damaged(missing.pop())

    def read_bytes(self, oid: bytes) -> bytes:
        return b"".join(iter_chunks(self.read(oid)))

    def _find(self, oid: bytes) -> StoredObject:
        for _ in range(2):
            for pack in self._packs.values():
                if (offset := pack.find(oid)) is not None:
                    with suppress(FileNotFoundError):
                        return StoredObject(pack, offset)
            self.refresh()  # another process may have collected
        raise damaged(oid)

    def _new_pack(self) -> PackWriter:
        refs = os.path.join(self.folder, REFS) if self._is_repository else None
        return PackWriter(self.pack_folder, refs, self.__contains__)

    def collect(self, trees: Collection[bytes], needed: set[bytes]) -> int:
        """Remove all objects except the needed ones and the commits of some trees; return the number of bytes freed."""
        with naming(self.folder):
            before = self._disk_usage()
            for name in os.listdir(self.pack_folder):
                if name.startswith("tmp_"):
                    os.unlink(os.path.join(self.pack_folder, name))
            self.refresh()
            needed = needed | self._collect_refs({tree.hex() for tree in trees})
            wasteful: list[tuple[Pack, set[bytes]]] = []
            for name, pack in list(self._packs.items()):
                kept = needed.intersection(pack.oids)
                if not kept:  # first, because it needs no free space
                    self._packs.pop(name).remove()
                elif len(kept) < pack.count or os.stat(pack.path + ".pack").st_size < SMALL_PACK:
                    wasteful.append((pack, kept))
            if len(wasteful) > 1 or any(len(kept) < pack.count for pack, kept in wasteful):
                self._rewrite(wasteful, before)
            return max(0, before - self._disk_usage())

    def _rewrite(self, wasteful: list[tuple[Pack, set[bytes]]], before: int) -> None:
        """Copy what is needed into one pack. Without space for it, what could be freed has been freed."""
        old = {f"{os.path.basename(pack.path)}.idx": pack for pack, _ in wasteful}
        writer = self._new_pack()
        try:
            written: set[bytes] = set()
            for pack, kept in wasteful:
                for oid, parts in pack.raw_objects(kept - written):
                    writer.put_raw(oid, parts)
                written |= kept
            old.pop(writer.finish(), None)  # equal to one of them if a kill left the same objects in several
        except OSError:
            writer.abandon()
            if self._disk_usage() < before:
                return
            raise
        for name, pack in old.items():
            self._packs.pop(name, pack).remove()
        self.refresh()

    def _collect_refs(self, kept: set[str]) -> set[bytes]:
        """Remove the refs of other trees; return the ids of the commits that stay."""
        commits, folder = set(), os.path.join(self.folder, REFS)
        for name in os.listdir(folder) if self._is_repository else ():
            path = os.path.join(folder, name)
            if name not in kept:
                os.unlink(path)
                continue
            with open(path) as file, suppress(ValueError):
                commits.add(bytes.fromhex(file.read().strip()))
        return commits

    def _disk_usage(self) -> int:
        return (
            sum(os.lstat(os.path.join(self.pack_folder, name)).st_blocks for name in os.listdir(self.pack_folder)) * 512
        )
