"""One run of the graph on a branch: its calls, their interception, what is recorded of them."""
