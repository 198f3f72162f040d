"""Sessions, branches, checkpoints, tool invocations, the world log, operations, tags, users, keys, members."""
