"""The LangGraph checkpointer: saver, codec, delta reducer, operations on whole threads."""
