"""Container snapshots: stores the files of a container as images, through the docker or podman command line."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agentgit.errors import InvalidInput, NotFound, Unavailable
from agentgit.workspace.locations import exclusive_lock
from agentgit.workspace.values import Restored

RUNNING = "agentgit.running"
"""The label of a container that a restore creates: whether it must be started."""

NEXT, BEFORE = ".agentgit-next", ".agentgit-before"
"""Suffixes of the names of the new and the old container during a replacement."""

PROCESS = ("Cmd", "Domainname", "Entrypoint", "OpenStdin", "StopSignal", "Tty", "User", "WorkingDir")
"""The settings of the process that a restored container must have too. `Env` is in the image; an engine adds to it."""

NO_SETTINGS = {"Annotations", "Binds", "ConsoleSize", "ContainerIDFile", "Isolation", "LogConfig", "Mounts"}
"""Fields of `HostConfig` that are no settings, or that the container's own `Mounts` covers."""

Inspection = Mapping[str, Any]


class ContainerEnvironment:
    """Snapshots of one container. All their data is stored in the engine's images.

    Args:
        container: The name of the container.
        options: The options that `docker run` got when the container was made, like `["--volume=data:/data"]`; a
            restore makes the new container with them.
        engine: The command, or its words if it needs options, like `("podman", "--root", "/srv/pods")`; None for
            docker, or podman if there is no docker.
        timeout: The maximum time for one command, in seconds.

    Raises:
        InvalidInput: `container` is not a valid name of a container.
    """

    takes_safety = True
    """True: `restore` takes the safety snapshot, while the container is stopped. A `Workspace` takes none."""

    def __init__(
        self, container: str, *, options: Sequence[str] = (), engine: str | Sequence[str] = (), timeout: float = 600
    ) -> None:
        if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*", container):
            raise InvalidInput(f"{container!r} is not the name of a container. Use the name that `docker ps` shows.")
        self.container, self._options, self._timeout = container, tuple(options), timeout
        default = "docker" if shutil.which("docker") or not shutil.which("podman") else "podman"
        self._engine = (engine,) if isinstance(engine, str) else tuple(engine) or (default,)
        # Names of images are lowercase, those of containers need not be.
        digest = hashlib.sha256(container.encode()).hexdigest()[:8]
        self._images = f"agentgit/{re.sub(r'[^a-z0-9]+', '-', container.lower()).strip('-')}-{digest}"

    def checkpoint(self) -> str:
        """Take a snapshot of the container, running or stopped, and return its id, which is the name of an image."""
        with self._locked():
            return self._commit()

    def restore(self, id: str) -> Restored:
        """Replace the container with one created from a snapshot, with the same name and settings.

        A safety snapshot of the current container is taken first. If the new container cannot be started, the old one
        is put back.

        Raises:
            NotFound: There is no such snapshot.
            InvalidInput: The new container would have other settings, which the message names. Nothing was changed.
            Unavailable: The engine does not respond, or reports an error, which the message quotes.
        """
        with self._locked():
            self.check(id)
            old = self._inspect("container", self.container)
            is_running = old is None or old["State"]["Running"]
            words = (f"--name={self.container}{NEXT}", f"--label={RUNNING}={str(is_running).lower()}")
            self._run("create", *words, *self._options, id)
            new = self._require_container(self.container + NEXT)
            safety = self._replace(old, new)
            if is_running:
                self._run("start", self.container)
            self._remove(self.container + BEFORE)
        mounts = {mount["Destination"] for mount in new.get("Mounts") or ()}
        mounts.update(new["HostConfig"].get("Tmpfs") or ())
        left = tuple((path, "a volume or a mount, which is not part of an image") for path in sorted(mounts))
        return Restored(id, safety, everything=True, left=left)

    def check(self, id: str) -> None:
        """Check that a snapshot can be restored, as far as that is known before."""
        self._require_snapshot(id)
        container = self._inspect("container", self.container)
        if container is not None and container["HostConfig"].get("AutoRemove"):
            raise InvalidInput(f"{self.container} is removed when it stops (AutoRemove), and cannot be replaced.")

    def delete(self, id: str) -> None:
        """Remove the image of a snapshot, unless a container uses it."""
        self._require_snapshot(id)
        self._run("rmi", id)

    def _replace(self, old: Inspection | None, new: Inspection) -> str | None:
        """Rename the new container to the name of the old one; return the id of the safety snapshot of the old one."""
        safety = None
        if old is not None:
            before, after = _settings(old), _settings(new)
            if names := sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)):
                raise InvalidInput(
                    f"Nothing was restored: the new container would differ from {self.container} in {', '.join(names)}."
                    f" Pass the options that `{self._engine[0]} run` got as options=."
                )
            self._run("stop", self.container)
            safety = self._commit()
            self._run("rename", self.container, self.container + BEFORE)
        self._run("rename", self.container + NEXT, self.container)
        return safety

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the container; if a replacement failed or its process was killed, put the old container back."""
        digest = hashlib.sha256(repr((self._engine, self.container)).encode()).hexdigest()[:16]
        lock = os.path.join(tempfile.gettempdir(), f"agentgit-{os.getuid()}-{digest}.lock")
        with exclusive_lock(lock, timeout=self._timeout, description=f"the container {self.container}"):
            self._recover()
            try:
                yield
            except Exception:
                self._recover()
                raise

    def _recover(self) -> None:
        names = self._run("ps", "--all", "--format={{.Names}}").split()
        new = self._inspect("container", self.container + NEXT) if self.container + NEXT in names else None
        if self.container + BEFORE in names:
            new = new or self._require_container(self.container)
            self._remove(self.container)
            self._run("rename", self.container + BEFORE, self.container)
        is_to_run = new is not None and (new["Config"]["Labels"] or {}).get(RUNNING) == "true"
        if is_to_run and self._inspect("container", self.container):
            self._run("start", self.container)
        self._remove(self.container + NEXT)

    def _remove(self, name: str) -> None:
        if self._inspect("container", name):
            self._run("rm", "--force", name)

    def _commit(self) -> str:
        """Create an image of the container, which is paused meanwhile, and return its name."""
        self._require_container(self.container)
        id = f"{self._images}:{time.time_ns():016x}"
        self._run("commit", "--pause=true", self.container, id)
        return id

    def _require_snapshot(self, id: str) -> None:
        if not id.startswith(f"{self._images}:") or self._inspect("image", id) is None:
            raise NotFound(f"The container {self.container} has no snapshot {id}. They are the images {self._images}.")

    def _require_container(self, name: str) -> Inspection:
        if (container := self._inspect("container", name)) is None:
            raise NotFound(f"{self._engine[0]} has no container {name}. Create it first, with `{self._engine[0]} run`.")
        return container

    def _inspect(self, kind: str, name: str) -> Inspection | None:
        try:
            found: Sequence[Inspection] = json.loads(self._run(kind, "inspect", name))
        except ValueError as error:
            raise self._failed(kind, "the answer of the engine is not JSON") from error
        except Unavailable as error:
            if any(words in str(error).lower() for words in ("no such", "not known")):
                return None
            raise
        return found[0]

    def _run(self, *words: str) -> str:
        try:
            completed = subprocess.run(  # noqa: S603 - no shell; the words are ours or checked
                [*self._engine, *words], capture_output=True, text=True, errors="replace", timeout=self._timeout
            )
        except OSError as error:
            missing = "it is not on PATH. Install it, or pass its path as engine="
            reason = missing if isinstance(error, FileNotFoundError) else f"it cannot be run: {error.strerror}"
            raise self._failed(words[0], f"{reason}.") from error
        except subprocess.TimeoutExpired as error:
            raise self._failed(words[0], f"it took longer than {self._timeout:g} s. Pass a longer timeout=.") from error
        if completed.returncode:
            raise self._failed(words[0], (completed.stderr.strip().splitlines() or ["it said nothing"])[-1])
        return completed.stdout

    def _failed(self, verb: str, reason: str) -> Unavailable:
        return Unavailable(f"{self._engine[0]} {verb} failed for the container {self.container}: {reason}")


def _settings(container: Inspection) -> dict[str, Any]:
    """Return the settings that a restored container must have too; lists are sorted, and empty values left out."""
    config, mounts = container["Config"], container.get("Mounts") or ()
    fields = {name: value for name, value in container["HostConfig"].items() if name not in NO_SETTINGS}
    fields |= {name: config.get(name) for name in PROCESS}
    if not container["Id"].startswith(config.get("Hostname") or ""):  # otherwise the engine chose it
        fields["Hostname"] = config["Hostname"]
    fields["Mounts"] = [
        (mount["Type"], mount.get("Name") or mount.get("Source"), mount["Destination"], mount["RW"]) for mount in mounts
    ]
    return {
        name: sorted(map(repr, value)) if isinstance(value, list) else value for name, value in fields.items() if value
    }
