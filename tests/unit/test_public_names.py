"""The public names, errors and async twins of agentgit."""

import inspect

import pytest
from langgraph.pregel import Pregel

import agentgit
from agentgit import Repository, RollbackAgent, Session, errors
from agentgit.handles.log import Log
from agentgit.handles.retention import SessionRetention
from agentgit.handles.sharing import Sharing
from agentgit.repository.events import Events
from agentgit.repository.maintenance import Maintenance
from agentgit.repository.users import Keys, Users


def test_all_is_sorted_and_complete():
    assert agentgit.__all__ == sorted(agentgit.__all__)
    for name in agentgit.__all__:
        assert getattr(agentgit, name) is not None


def test_every_error_is_public_and_has_a_unique_exit_code():
    found = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.AgentGitError)]
    assert {e.__name__ for e in found} <= set(agentgit.__all__)
    assert len({e.exit_code for e in found}) == len(found)


OWNERS = (
    Repository, Session, RollbackAgent, Events, Keys, Maintenance, Users, Log, Sharing, SessionRetention
)  # fmt: skip
"""The classes whose methods read and write the database."""

NO_TWIN = {
    # These make tools, and do no IO.
    RollbackAgent: {"checkpoint_tools"},
    # `trust`, `graph` and `saver` do not use the database; a repository is closed at the end, when no event loop runs.
    Repository: {"trust", "graph", "saver", "close"},
    Events: {"on"},  # registers a callback
    Log: {"by_name", "since", "between"},  # these narrow the log, which is read later
}
"""The public methods without an async twin."""


@pytest.mark.parametrize("owner", OWNERS)
def test_every_public_method_has_an_async_twin_with_the_same_parameters(owner):
    methods = {
        name: method
        for name, method in inspect.getmembers(owner, callable)
        if not name.startswith("_") and not hasattr(Pregel, name)
    }
    twins = {name for name in methods if name[0] == "a" and name[1:] in {*methods, *dir(Pregel)}}
    for name in methods.keys() - twins - NO_TWIN.get(owner, set()):
        twin = methods[f"a{name}"]
        assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin)
        assert [*inspect.signature(twin).parameters.values()] == [*inspect.signature(methods[name]).parameters.values()]
