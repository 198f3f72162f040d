"""Container snapshots: stores the files of a container as images, through the docker or podman command line."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from agentgit.errors import Conflict, InvalidInput, NotFound, Unavailable
from agentgit.workspace.engines.container_settings import (
    ContainerRestored,
    ContainerSnapshot,
    Inspection,
    differences,
    mounts,
    options,
)
from agentgit.workspace.locations import exclusive_lock

ENGINES = ("docker", "podman")
"""The commands to look for, in this order."""

OWNER, RECORD = "agentgit.container", "agentgit.snapshot"
"""Labels of a snapshot's image: the name of the container, and the record of the snapshot."""

RUNNING = "agentgit.running"
"""A label of a container that a restore created: `true` if the container must be started, else `false`."""

NEXT, BEFORE = ".agentgit-next", ".agentgit-before"
"""Suffixes of the container's name during a replacement: those of the new container and the old one."""

NEVER_RAN = ("created", "configured")
"""States of a container that was created and not yet started."""

IN_USE = re.compile(r"in use|being used|is using|conflict", re.IGNORECASE)


class ContainerEnvironment:
    """Snapshots of one container. All their data is stored in the engine's images.

    Args:
        container: The name of the container.
        engine: A command, or a sequence of words if the command needs options, like `("podman", "--root",
            "/srv/pods")`; None for docker or podman, whichever responds and has the container.
        timeout: The maximum time for one command, in seconds.

    Raises:
        InvalidInput: `container` is not a valid name of a container.
        Unavailable: There is no engine, or it does not respond.

    Example:
        >>> sandbox = ContainerEnvironment("sandbox")  # doctest: +SKIP
        >>> before = sandbox.checkpoint()  # doctest: +SKIP
        >>> print(sandbox.restore(before))  # doctest: +SKIP
    """

    takes_safety = True
    """True: `restore` takes the safety snapshot, while the container is stopped or paused. A `Workspace` takes none."""

    def __init__(self, container: str, *, engine: str | Sequence[str] | None = None, timeout: float = 600) -> None:
        if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*", container):
            raise InvalidInput(f"{container!r} is not the name of a container. Use the name that `docker ps` shows.")
        self.container = container
        self._timeout = timeout
        self._engine_command = _as_command(engine) if engine else self._find_engine()

    def checkpoint(self, message: str = "") -> str:
        """Take a snapshot of the container, running or stopped, and return its id.

        Args:
            message: A description of the snapshot.

        Raises:
            NotFound: There is no such container.
            Unavailable: The engine does not respond, or reports an error, which the message quotes.
        """
        with self._locked():
            return self._commit(self._require_container(self.container), "manual", message)

    def restore(self, id: str) -> ContainerRestored:
        """Replace the container with one created from a snapshot, with the same name and settings.

        A safety snapshot of the current container is taken first. If the new container cannot be created or started,
        the old one is put back.

        Args:
            id: The id of the snapshot.

        Raises:
            NotFound: There is no such snapshot.
            Unavailable: The engine does not respond, or reports an error, which the message quotes.
        """
        with self._locked():
            target = self._require_snapshot(id)
            old_container = self._inspect(self.container)
            settings = options(old_container) if old_container else list(target.settings)
            is_running = old_container["State"]["Running"] if old_container else target.running
            label = f"--label={RUNNING}={str(is_running).lower()}"
            self._run("create", f"--name={self.container}{NEXT}", label, *settings, target.image)
            new_container = self._require_container(self.container + NEXT)
            safety = self._replace(old_container, is_running, f"before the restore of {id}")
        not_mounted = tuple(path for path in target.not_included if path not in mounts(new_container))
        return ContainerRestored(
            id,
            safety,
            mounts(old_container or new_container),
            differences(old_container, new_container) if old_container else (),
            not_mounted,
        )

    def list(self) -> tuple[ContainerSnapshot, ...]:
        """Return the snapshots, newest first.

        Raises:
            Unavailable: The engine does not respond.
        """
        image_ids = self._run("images", "--quiet", "--no-trunc", f"--filter=label={OWNER}={self.container}").split()
        if not image_ids:
            return ()
        images = self._parse_inspections(self._run("image", "inspect", *dict.fromkeys(image_ids)))
        snapshots = (self._parse_snapshot(image, tag) for image in images for tag in image["RepoTags"] or ())
        return tuple(sorted((one for one in snapshots if one), key=lambda one: one.id, reverse=True))

    def get(self, id: str) -> ContainerSnapshot | None:
        """Return one snapshot; None if none has this id.

        Args:
            id: The id of the snapshot.
        """
        return next((snapshot for snapshot in self.list() if snapshot.id == id), None)

    def delete(self, id: str) -> None:
        """Remove one snapshot and its image.

        Args:
            id: The id of the snapshot.

        Raises:
            NotFound: There is no such snapshot.
            Conflict: A container uses its image.
        """
        snapshot = self._require_snapshot(id)
        try:
            self._run("rmi", snapshot.image)
        except Unavailable as error:
            if not IN_USE.search(str(error)):
                raise
            raise Conflict(f"A container uses the snapshot {id}. Restore another snapshot first.") from error

    def gc(self, keep: int = 100) -> tuple[str, ...]:
        """Remove all but the newest snapshots, and return the ids of the removed ones.

        A snapshot that a container uses is kept.

        Args:
            keep: The number of newest snapshots to keep.
        """
        removed = []
        for snapshot in self.list()[max(keep, 0) :]:
            try:
                self.delete(snapshot.id)
            except Conflict:
                continue
            removed.append(snapshot.id)
        return tuple(removed)

    # -- replacing the container

    def _replace(self, old_container: Inspection | None, is_running: bool, message: str) -> str | None:
        """Replace the old container with the new one. If that fails, put the old one back."""
        safety = None
        try:
            if old_container:
                safety = self._set_aside(old_container, message)
            self._run("rename", self.container + NEXT, self.container)
            if is_running:
                self._run("start", self.container)
        except Unavailable:
            self._revert(old_container, safety)
            raise
        self._remove_container(BEFORE)
        return safety

    def _set_aside(self, old_container: Inspection, message: str) -> str:
        """Stop the old container, take the safety snapshot and free its name; return the id of the snapshot."""
        if old_container["HostConfig"].get("AutoRemove"):  # the engine removes it as soon as it stops
            safety = self._commit(old_container, "safety", message)
            self._run("rm", "--force", self.container)
            return safety
        self._run("stop", self.container)
        safety = self._commit(old_container, "safety", message)
        self._run("rename", self.container, self.container + BEFORE)
        return safety

    def _revert(self, old_container: Inspection | None, safety: str | None) -> None:
        """Put the old container back. If it was removed when it stopped, create it from the safety snapshot."""
        self._remove_container(NEXT)
        if old_container and safety:
            self._remove_container()
            if self._inspect(self.container + BEFORE):
                self._run("rename", self.container + BEFORE, self.container)
            else:
                self._run("create", f"--name={self.container}", *options(old_container), self._image_tag(safety))
        if old_container and old_container["State"]["Running"]:
            self._run("start", self.container)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the container, and complete or revert a replacement whose process was killed."""
        digest = hashlib.sha256(repr((self._engine_command, self.container)).encode()).hexdigest()[:16]
        lock = os.path.join(tempfile.gettempdir(), f"agentgit-{os.getuid()}-{digest}.lock")
        with exclusive_lock(lock, timeout=self._timeout, description=f"the container {self.container}"):
            self._recover()
            yield

    def _recover(self) -> None:
        """Complete an interrupted replacement if the new container already had its name; otherwise revert it."""
        names = self._run("ps", "--all", "--format={{.Names}}").split()
        leftovers = [self.container + suffix for suffix in (BEFORE, NEXT) if self.container + suffix in names]
        container = (
            self._inspect(leftovers[-1])
            if leftovers and leftovers[-1].endswith(NEXT)
            else self._inspect(self.container)
        )
        if self.container not in names and leftovers:
            self._run("rename", leftovers.pop(0), self.container)
        is_interrupted = leftovers or (container and container["State"]["Status"] in NEVER_RAN)
        if container and is_interrupted and (container["Config"]["Labels"] or {}).get(RUNNING) == "true":
            self._run("start", self.container)
        for name in leftovers:
            self._run("rm", "--force", name)

    def _remove_container(self, suffix: str = "") -> None:
        if self._inspect(self.container + suffix):
            self._run("rm", "--force", self.container + suffix)

    # -- images

    def _commit(self, container: Inspection, kind: str, message: str) -> str:
        """Create an image of the container, which is paused meanwhile, and return the id of the snapshot."""
        id = f"{time.time_ns():016x}{secrets.token_hex(2)}"
        record = {
            "id": id,
            "kind": kind,
            "message": message,
            "running": container["State"]["Running"],
            "settings": options(container),
            "not_included": mounts(container),
        }
        encoded = base64.urlsafe_b64encode(json.dumps(record).encode()).decode().rstrip("=")
        labels = (f"--change=LABEL {OWNER}={self.container}", f"--change=LABEL {RECORD}={encoded}")
        self._run("commit", "--pause=true", *labels, self.container, self._image_tag(id))
        return id

    def _image_tag(self, id: str) -> str:
        return f"agentgit/{_repository_name(self.container)}:{id}"

    def _parse_snapshot(self, image: Inspection, tag: str) -> ContainerSnapshot | None:
        """Return the snapshot for a tag of an image; None if the tag is not ours.

        Images that users build from our containers inherit our labels, so the labels alone do not identify a snapshot.
        """
        encoded = image["Config"]["Labels"][RECORD]
        record = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
        if not tag.endswith(self._image_tag(record["id"])):
            return None
        return ContainerSnapshot(
            id=record["id"],
            message=record["message"],
            created_at=datetime.fromtimestamp(int(record["id"][:16], 16) / 1e9, UTC),
            kind=record["kind"],
            image=tag,
            size=image["Size"],
            running=record["running"],
            settings=tuple(record["settings"]),
            not_included=tuple(record["not_included"]),
        )

    def _require_snapshot(self, id: str) -> ContainerSnapshot:
        if (snapshot := self.get(id)) is None:
            raise NotFound(f"The container {self.container} has no snapshot {id}. List its snapshots with list().")
        return snapshot

    # -- the engine

    def _require_container(self, name: str) -> Inspection:
        inspection = self._inspect(name)
        if inspection is None:
            raise NotFound(
                f"{self._engine_command[0]} has no container {name}. Create it first, with `{self._engine_command[0]} "
                "run`."
            )
        return inspection

    def _inspect(self, name: str) -> Inspection | None:
        completed = self._execute(self._engine_command, "container", "inspect", name)
        if completed.returncode == 0:
            return self._parse_inspections(completed.stdout)[0]
        if "no such" in completed.stderr.lower():
            return None
        raise self._command_error("inspect", completed.stderr)

    def _parse_inspections(self, output: str) -> Sequence[Inspection]:
        """Parse the answer of an `inspect` that succeeded: at least one JSON object."""
        try:
            inspections = json.loads(output)
        except ValueError:
            inspections = None
        if (
            not isinstance(inspections, list)
            or not inspections
            or not all(isinstance(inspection, dict) for inspection in inspections)
        ):
            raise self._command_error("inspect", "the answer of the engine is not a list of JSON objects")
        return inspections

    def _find_engine(self) -> tuple[str, ...]:
        results = {name: self._execute((name,), "ps", "--quiet") for name in ENGINES if shutil.which(name)}
        if not results:
            raise Unavailable("Neither docker nor podman is on PATH. Install one of them, or pass its path as engine=.")
        responding = [name for name, done in results.items() if done.returncode == 0]
        if not responding:
            errors = "; ".join(f"{name}: {_last_line(done.stderr)}" for name, done in results.items())
            raise Unavailable(f"No container engine responds. {errors}. Start one, or pass another one as engine=.")
        inspect_arguments = ("container", "inspect", self.container)
        return next(
            ((name,) for name in responding if not self._execute((name,), *inspect_arguments).returncode),
            (responding[0],),
        )

    def _run(self, *words: str) -> str:
        completed = self._execute(self._engine_command, *words)
        if completed.returncode:
            raise self._command_error(words[0], completed.stderr)
        return completed.stdout

    def _execute(self, engine: Sequence[str], *words: str) -> subprocess.CompletedProcess[str]:
        command = [*engine, *words]
        try:
            return subprocess.run(  # noqa: S603 - no shell; the words are ours or checked
                command, capture_output=True, text=True, errors="replace", timeout=self._timeout, check=False
            )
        except FileNotFoundError as error:
            raise Unavailable(
                f"The container engine {engine[0]} is not on PATH. Install it, or pass its path."
            ) from error
        except OSError as error:
            raise Unavailable(f"The container engine {engine[0]} cannot be run: {error.strerror}.") from error
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"{engine[0]} {words[0]} took longer than {self._timeout:g} s. Pass a longer timeout=."
            ) from error

    def _command_error(self, verb: str, stderr: str) -> Unavailable:
        return Unavailable(
            f"{self._engine_command[0]} {verb} failed for the container {self.container}: {_last_line(stderr)}"
        )


def _as_command(engine: str | Sequence[str]) -> tuple[str, ...]:
    return (engine,) if isinstance(engine, str) else tuple(engine)


def _last_line(output: str) -> str:
    return (output.strip().splitlines() or ["it said nothing"])[-1]


def _repository_name(container: str) -> str:
    """Return a valid name of an image: lowercase, and different for each container."""
    if re.fullmatch(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*", container):
        return container
    slug = re.sub(r"[^a-z0-9]+", "-", container.lower()).strip("-")
    return f"{slug}-{hashlib.sha256(container.encode()).hexdigest()[:8]}"
