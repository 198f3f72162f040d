"""The graph for hosts and clients of LangGraph: a compiled graph whose threads are sessions."""
