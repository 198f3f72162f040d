"""Engines that keep snapshots: git, directories, containers, and the engines of users."""
