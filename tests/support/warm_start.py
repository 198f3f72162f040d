"""The last import of the fork server: a turn and a rollback, so that no forked process imports or compiles anything.

What is there after that is excluded from garbage collection in the forked processes.
"""

import gc

from scripted import World, obedient, tool_node_graph

import agentgit


def run() -> None:
    """Run a turn and roll it back, in memory."""
    world = World()
    with agentgit.open(":memory:") as repo:
        agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
        agent.run("add a")
        agent.rollback("main#1")


run()
gc.collect()
gc.freeze()
gc.set_threshold(10_000)
