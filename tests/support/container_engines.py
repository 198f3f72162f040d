"""Container engines of this machine, each with a storage of its own for the tests, and the smallest base image."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

HARDENED = (
    *("--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000"),
    *("--security-opt=seccomp=unconfined", "--stop-signal=KILL"),
)
"""Settings that an agent's container may have, and that it needs where the tests run as root in a container."""

BASE = "agentgit-test-base:1"


class Engine:
    """A container engine, called on its command line."""

    def __init__(self, words):
        self.words = tuple(words)

    def __call__(self, *words, stdin=None):
        done = subprocess.run([*self.words, *words], capture_output=True, input=stdin, check=False)  # noqa: S603
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode(errors="replace")

    def run(self, name, *settings, command=("sleep", "1000")):
        self("run", "--detach", f"--name={name}", *HARDENED, *settings, BASE, *command)

    def sh(self, name, script):
        return self("exec", name, "sh", "-c", script)

    def logs(self, name):
        words = [*self.words, "logs", name]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # noqa: S603
        return done.stdout.decode(errors="replace")

    def inspect(self, name):
        return json.loads(self("container", "inspect", name))[0]

    def names(self):
        return set(self("ps", "--all", "--format={{.Names}}").split())

    def images(self):
        return set(self("images", "--all", "--quiet", "--no-trunc").split())

    def tags(self):
        return self("images", "--format={{.Repository}}:{{.Tag}}").split()

    def clear(self):
        for name in self.names():
            self("rm", "--force", name)
        while images := {tag for tag in self.tags() if "agentgit/" in tag}:
            self("rmi", "--force", *images)


def busybox_tree():
    """Return the smallest file system with a shell as the bytes of a tar file."""
    binary = shutil.which("busybox")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tree:
        tree.add(binary, "bin/busybox")
        for name in ("sh", "sleep", "cat", "ls", "chmod", "stat", "mkdir", "ln", "rm", "readlink", "true", "id"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tree.addfile(link)
    return packed.getvalue()


def candidates(folder):
    """Yield the command lines of the installed engines; that of podman stores everything in `folder`."""
    if shutil.which("podman"):
        places = (f"--root={folder}/root", f"--runroot={folder}/run", f"--tmpdir={folder}/state")
        yield ("podman", *places, "--storage-driver=vfs", "--runtime=runc", "--cgroup-manager=cgroupfs")
    if shutil.which("docker"):
        yield ("docker",)


@contextmanager
def opened(tree: Callable[[], bytes] = busybox_tree) -> Iterator[Engine]:
    """Find an engine that can run containers, import a base image, and yield the engine.

    Without an engine the test is skipped, or fails if $AGENTGIT_REQUIRE_CONTAINERS is set.

    Args:
        tree: Returns the files of the base image as the bytes of a tar file.
    """
    missing = pytest.fail if os.environ.get("AGENTGIT_REQUIRE_CONTAINERS") else pytest.skip
    if not shutil.which("busybox"):
        missing("left out with real containers: install busybox-static, of which the base image is made")
    said = ["neither podman nor docker is on PATH"]
    # A short path, since podman accepts no storage path of more than 50 characters.
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        settings = Path(folder, "containers.conf")
        settings.write_text('[engine]\nlock_type = "file"\n')  # otherwise all storages share their locks
        patch.setenv("CONTAINERS_CONF", str(settings))
        for words in candidates(folder):
            engine = Engine(words)
            try:
                engine("import", "-", BASE, stdin=tree())
                engine("run", "--rm", *HARDENED, BASE, "true")
            except AssertionError as error:
                said.append(f"{words[0]}: {str(error).strip().splitlines()[0]}")
                continue
            yield engine
            engine.clear()
            engine("rmi", "--force", BASE)
            return
    missing(f"left out with real containers: {'; '.join(said[1:] or said)}. Install podman, runc and busybox-static")
