"""The checkpoint tools of a session as an MCP server, for clients that speak the Model Context Protocol.

`looks` and `moves` are the tools, `forms` is how a client sees them, `server` speaks the protocol. It needs the extra
`mcp`; LangGraph is imported only if modules are trusted.
"""
