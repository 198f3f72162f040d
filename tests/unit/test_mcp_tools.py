"""The tools of the MCP server cover every public method (W3)."""

from agentgit.mcp.server import READ_TOOLS, WRITE_TOOLS, tool_schemas
from agentgit.mcp.write_tools import WriteTools


def test_each_method_is_a_tool_that_reads_or_writes():
    """W3: each public method is a tool, and is either a tool that reads or a tool that writes."""
    public = {name for name in dir(WriteTools) if not name.startswith("_")} - {"find_session"}
    known = {name: form.tool.annotations for name, form in tool_schemas(bound=False, read_only=False).items()}
    assert public == {one.__name__ for one in (*READ_TOOLS, *WRITE_TOOLS)} == set(known)
    assert {name for name, said in known.items() if said.readOnlyHint} == {one.__name__ for one in READ_TOOLS}
