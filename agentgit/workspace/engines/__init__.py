"""Engines that store snapshots: git, directories, containers, and custom environments."""
