"""An image of this machine's Python and programs, for tests of containers where no registry can be reached."""

from __future__ import annotations

import importlib.metadata
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
LEFT_OUT = {"__pycache__", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tkinter", "turtledemo"}
"""Parts of the standard library that nothing here needs."""


def tree(requirements: Iterable[str], programs: Iterable[str]) -> bytes:
    """Return a file system with busybox, Python, distributions and programs of this machine as the bytes of a tar file.

    What the requirements need comes along, and the shared libraries of the programs.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as image:
        _add_busybox(image)
        interpreter = Path(sys.executable).resolve()
        binaries = {interpreter: f"usr/local/bin/{VERSION}"}
        binaries |= {Path(program): f"usr/bin/{Path(program).name}" for program in programs}
        library = Path(sysconfig.get_path("stdlib"))
        files = {path: f"usr/local/lib/{VERSION}/{path.relative_to(library)}" for path in _files(library)}
        for distribution in _needed(requirements):
            files |= dict(_installed(distribution))
        for path, place in (binaries | files).items():
            image.add(path.resolve(), place)
        _add_link(image, "usr/local/bin/python3", VERSION)
        packaged = {path.resolve() for path in files}
        for path in _libraries([*binaries, *(path for path in files if path.suffix == ".so")]):
            if path.resolve() not in packaged:
                image.add(path.resolve(), _place(path))
    return packed.getvalue()


def _add_busybox(image: tarfile.TarFile) -> None:
    busybox = shutil.which("busybox")
    image.add(busybox, "bin/busybox")
    for name in subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split():  # noqa: S603
        if name != "busybox":
            _add_link(image, f"bin/{name}", "busybox")
    folder = tarfile.TarInfo("tmp")
    folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
    image.addfile(folder)


def _add_link(image: tarfile.TarFile, place: str, target: str) -> None:
    link = tarfile.TarInfo(place)
    link.type, link.linkname = tarfile.SYMTYPE, target
    image.addfile(link)


def _files(folder: Path) -> Iterator[Path]:
    for at, names, files in os.walk(folder):
        names[:] = [name for name in names if name not in LEFT_OUT and not name.startswith("config-")]
        yield from (Path(at, file) for file in files)


def _needed(requirements: Iterable[str]) -> list[importlib.metadata.Distribution]:
    """Return the distributions that are needed for some requirements, without those that are not installed."""
    waiting, extras = [Requirement(text) for text in requirements], dict[str, set[str]]()
    found = dict[str, importlib.metadata.Distribution]()
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in extras and requirement.extras <= extras[name]:
            continue
        extras.setdefault(name, set()).update(requirement.extras)
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for text in found[name].requires or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": one}) for one in ("", *extras[name])):
                waiting.append(needed)
    return list(found.values())


def _installed(distribution: importlib.metadata.Distribution) -> Iterator[tuple[Path, str]]:
    """Yield the files of a distribution in site-packages, and their places in the image."""
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        if ".." not in file.parts and file.suffix != ".pyc" and path.is_file():
            yield path, f"usr/local/lib/{VERSION}/site-packages/{file}"


def _place(library: Path) -> str:
    """Return where the loader of the image finds a shared library."""
    is_usual = library.parts[1] in ("lib", "lib64") or library.parts[1:3] == ("usr", "lib")
    return str(library).lstrip("/") if is_usual else f"usr/lib/{library.name}"


def _libraries(binaries: Iterable[Path]) -> set[Path]:
    """Return the shared libraries that binaries need."""
    told = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout  # noqa: S603, S607
    return {Path(path) for path in re.findall(r"(?:=> |^\s*)(/\S+) \(0x", told, flags=re.MULTILINE)}
