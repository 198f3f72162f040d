"""The names by which functions are recorded."""

from notebook_shells import Notebook

from agentgit.effects.function_names import name_of


def cancel(args, result, log=None): ...


def test_source_is_hashed_only_for_functions_of_main(monkeypatch):
    """Functions of `__main__` are recorded with a hash of their source, those of other modules without one."""
    notebook = Notebook(monkeypatch)
    notebook.run("class Desk:\n    def __call__(self, args, result): ...\n\ndef undo(args, result): ...\n")
    assert name_of(notebook.main.undo).source != name_of(notebook.main.Desk()).source is not None
    exec("def bare(args, result): ...", vars(notebook.main))  # noqa: S102  # as in a shell that keeps no source
    assert str(name_of(notebook.main.bare)) == "__main__:bare"
    assert name_of(cancel).source is None
