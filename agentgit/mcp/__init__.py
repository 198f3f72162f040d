"""An MCP server with the checkpoint tools of sessions, for clients of the Model Context Protocol.

`read_tools` and `write_tools` define the tools; `server` describes them to clients and speaks the protocol. The server
needs the extra `mcp`, and imports LangGraph only if modules are trusted.
"""
