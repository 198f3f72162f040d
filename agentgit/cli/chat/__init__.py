"""`agentgit chat`: a conversation with a graph, line by line, and its slash commands."""
