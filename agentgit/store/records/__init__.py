"""Stores of sessions, branches, checkpoints, tool invocations, world log, operations, tags, users, keys, members."""
