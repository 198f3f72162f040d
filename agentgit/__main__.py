"""`python -m agentgit` is the command `agentgit`."""

from agentgit.cli import main

main()
