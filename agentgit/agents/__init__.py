"""The agent: a LangGraph graph on one branch, with its turns, merges, explorations and imports."""
