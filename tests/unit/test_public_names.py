"""What `import agentgit` promises."""

import agentgit
from agentgit import errors


def test_all_is_sorted_and_complete():
    """D6: every public name is listed once, in order, and exists."""
    assert agentgit.__all__ == sorted(agentgit.__all__)
    for name in agentgit.__all__:
        assert getattr(agentgit, name) is not None


def test_every_error_is_public_and_has_a_unique_exit_code():
    """Every error class is public and documented, and has a unique exit code."""
    found = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.AgentGitError)]
    assert {e.__name__ for e in found} <= set(agentgit.__all__)
    assert len({e.exit_code for e in found}) == len(found)
    for error in found:
        assert f"{error.__name__} " in (errors.__doc__ or "")
