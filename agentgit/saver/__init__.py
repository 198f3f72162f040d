"""The LangGraph checkpointer: saver, codec, message cache, delta reducer, operations on whole threads."""
