"""A turn: one run of the graph on a branch, with the interception and the recording of its calls."""
