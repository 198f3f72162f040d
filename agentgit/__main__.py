"""`python -m agentgit` runs the command `agentgit`."""

from agentgit.cli import main

main()
