"""Reruns: the recorded inputs of a branch, run again in a graph whose tool calls the record answers."""
