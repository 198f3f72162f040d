"""Notebooks without a browser: an IPython shell with our magics, and a `__main__` that runs cells one by one."""

import linecache
import sys
from types import ModuleType

import points
import pytest

import agentgit


@pytest.fixture(scope="module")
def ipython():
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    main = sys.modules["__main__"]
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    sys.modules["__main__"] = main  # the shell replaces it; tests that start processes need the original
    shell.run_line_magic("load_ext", "agentgit")
    yield shell
    agentgit.unload_ipython_extension(shell)
    assert "agentgit" not in shell.magics_manager.magics["line"]


def restart(shell, **names):
    shell.user_ns.clear()
    shell.user_ns.update(names)
    shell.run_line_magic("reload_ext", "agentgit")


def magic(shell, line):
    return shell.run_line_magic("agentgit", line)


@pytest.fixture
def shown(monkeypatch):
    """Collect the values that a magic shows besides its return value."""
    values = []
    monkeypatch.setattr(*points.SHOW_BESIDE_MAGIC.place, values.append)
    return values


class Notebook:
    """A notebook: a `__main__` without a file, whose cells are compiled one by one."""

    def __init__(self, monkeypatch, **names) -> None:
        self.main = ModuleType("__main__")
        vars(self.main).update(names)
        monkeypatch.setitem(sys.modules, "__main__", self.main)

    def run(self, cell: str) -> None:
        name = f"<cell {id(self)} {len(linecache.cache)}>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        exec(compile(cell, name, "exec"), vars(self.main))  # noqa: S102  # as a notebook does
