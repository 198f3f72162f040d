"""The only door to LangGraph: the saver, the recorder, the agent, the checkpoint tools."""
