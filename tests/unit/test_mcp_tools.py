"""The tools of the MCP server cover every public method."""

import inspect

from agentgit import Repository, Session
from agentgit.mcp.server import READ_TOOLS, WRITE_TOOLS, tool_schemas
from agentgit.mcp.write_tools import WriteTools


def test_each_method_is_a_tool_that_reads_or_writes():
    public = {name for name in dir(WriteTools) if not name.startswith("_")} - {"find_session", "find_changed_session"}
    known = {name: form.tool.annotations for name, form in tool_schemas(bound=False, read_only=False).items()}
    assert public == {one.__name__ for one in (*READ_TOOLS, *WRITE_TOOLS)} == set(known)
    assert {name for name, said in known.items() if said.readOnlyHint} == {one.__name__ for one in READ_TOOLS}


CHECKPOINT_TOOLS = {
    "create_checkpoint": Session.checkpoint,
    "list_checkpoints": Session.log,
    "get_checkpoint_info": Session.get_checkpoint,
    "rollback_to_checkpoint": Session.rollback,
    "delete_checkpoint": Session.delete_checkpoint,
    "cleanup_auto_checkpoints": Session.cleanup_auto_checkpoints,
}
"""The tools whose names people rely on, with the methods that they call."""


def test_tools_have_the_names_and_argument_order_of_the_methods_that_they_call():
    """Each other tool is named after a method, and the arguments that a tool has in common with its method have the
    same order.
    """
    for name, form in tool_schemas(bound=False, read_only=False).items():
        method = CHECKPOINT_TOOLS.get(name) or getattr(Session, name, None) or getattr(Repository, name)
        expected = ["checkpoint" if one in ("ref", "to") else one for one in inspect.signature(method).parameters]
        common = [one for one in form.model.model_fields if one in expected]
        assert common == [one for one in expected if one in common], name
        assert all(field.description for field in form.model.model_fields.values()), name
