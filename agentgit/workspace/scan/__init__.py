"""What stands in a workspace, what is left out, and what changed."""
