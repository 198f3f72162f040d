"""Import rules: modules and tests import only what they may, and `import agentgit` is fast."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from agentgit import errors

ROOT = Path(__file__).parents[2]


def test_modules_import_only_from_the_packages_below_them():
    done = subprocess.run(  # noqa: S603  # our own command
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


LATE = {
    ("values", "render"): "a value loads its drawings when they are first shown",
}
"""The rooms that import a room by its name as text although it is not below them, with the reason."""


def test_imports_by_name_follow_the_contracts():
    """A module whose name is given to `import_module` as text is in a room below, too, with one exception."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["name"] == "rooms")
    floors = {room.strip(): floor for floor, rooms in enumerate(layers) for room in rooms.split("|")}
    found = set()
    for path in (ROOT / "agentgit").rglob("*.py"):
        room = path.relative_to(ROOT / "agentgit").parts[0].removesuffix(".py")
        for name in re.findall(r'import_module\(\s*"agentgit\.(\w+)', path.read_text(encoding="utf-8")):
            if room != "__init__" and name != room and floors[name] <= floors[room]:
                found.add((room, name))
    assert found == LATE.keys()


def test_importing_agentgit_imports_no_heavy_package():
    heavy = ("langgraph", "langchain_core", "sqlmodel", "sqlalchemy", "pydantic", "agentgit.render")
    code = f"import sys, agentgit; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603  # as above
    assert done.stdout.strip() == "[]"


PACKAGES = (
    "agentgit", "agentgit.auth", "agentgit.demo", "agentgit.effects", "agentgit.notebook", "agentgit.web",
)  # fmt: skip
"""The packages whose `__all__` is public."""

ENTRANCES = {"agentgit.cli.app.app", "agentgit.cli.main", *(f"agentgit.{name}" for name in ("cli", "demo", "errors"))}


def imported(path: Path) -> Iterator[str]:
    """Yield the names that a file imports from agentgit."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.split(".")[0] == "agentgit")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "agentgit":
            yield from (f"{node.module}.{one.name}" for one in node.names)


def test_tests_of_agents_faces_and_crashes_import_public_names():
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/reference").glob("*.md"))
    public = {"agentgit", *ENTRANCES, *re.findall(r"^::: (\S+)", pages, flags=re.MULTILINE)}
    public |= {f"agentgit.errors.{name}" for name in vars(errors)}
    public |= {f"{package}.{name}" for package in PACKAGES for name in importlib.import_module(package).__all__}
    files = [path for room in ("agents", "faces", "crash") for path in (ROOT / "tests" / room).glob("*.py")]
    internal = {path.name: names for path in files if (names := sorted(set(imported(path)) - public))}
    assert internal == {}
