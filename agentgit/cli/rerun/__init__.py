"""`agentgit rerun`: recorded sessions run again in a graph, as a check for CI."""
