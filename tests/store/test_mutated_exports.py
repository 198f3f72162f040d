"""Exports with one wrong field and new hashes: an import refuses nearly all, and the others do no harm."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from exports import forged, of, rows
from scripted import World, obedient, tool_node_graph
from test_damaged_exports import ODD, a_session, exports, places, with_memory

import agentgit
from agentgit import AgentGitError, Corrupt, InvalidInput
from agentgit.store.objects.blobs import leaf
from agentgit.store.records.json_shapes import decode_bytes

__all__ = ["exports"]  # the fixture


def neighbours(records: list[dict[str, Any]], record: dict[str, Any], way: tuple[Any, ...]) -> list[Any]:
    """Return the values that other records of the same kind have at a path."""
    found = []
    for other in of(records, record.get("record", "")):
        value: Any = other
        for name in way:
            inside = isinstance(value, dict) and name in value
            value = value[name] if inside or (isinstance(value, list) and len(value) > name) else None
        if value is not None and value not in found:
            found.append(value)
    return found


def mutants(export: bytes, count: int) -> Iterator[Any]:
    """Yield changes of one field each: by an odd value, by that of another record, or left out."""
    chosen = random.Random(7)  # noqa: S311  # no secret
    records = [json.loads(line) for line in export.splitlines()[:-1]]
    by_kind: dict[str, list[int]] = {}
    for n, record in enumerate(records):
        by_kind.setdefault(record.get("record", "header"), []).append(n)
    for _ in range(count):
        n = chosen.choice(by_kind[chosen.choice(sorted(by_kind))])
        way = chosen.choice(list(places(records[n])))
        others = neighbours(records, records[n], way)
        odd = [chosen.choice(ODD) for _ in range(3)]
        yield n, way, chosen.choice([*odd, ..., ..., chosen.choice(others or ODD)])


def changed(records: list[dict[str, Any]], n: int, way: tuple[Any, ...], value: Any) -> bool:
    """Change a field, and the hash of its value; return whether it was another one."""
    at: Any = records[n]
    before = copy.deepcopy(at)
    for name in way[:-1]:
        at = at[name]
    if value is ...:
        del at[way[-1]]
    else:
        at[way[-1]] = value
    is_other = bool(records[n] != before)
    if is_other and records[n].get("record") == "blob" and way[0] == "data":
        try:
            old = records[n]["hash"]
            new = leaf(records[n]["type"], decode_bytes(records[n]["data"])).hash.hex()
        except (ValueError, TypeError, LookupError, AttributeError):
            return is_other
        lists = (one for one in of(records, "list") if isinstance(one["data"], dict) and "items" in one["data"])
        for record in lists:  # but for one that was just made one
            record["data"]["items"] = [new if key == old else key for key in record["data"]["items"]]
        records[n]["hash"] = new
    return is_other


def live_on(repo: Any, session: Any) -> None:
    """Take a turn and a rollback in a session; only typed errors may be raised."""
    assert repo.maintenance.fsck(3).is_sound
    world = World()
    for branch in repo.session(session).branches()[:2]:
        graph = tool_node_graph(obedient(), world.tools())
        try:
            agent = repo.wrap(graph, session.session_name, branch=branch.name, effects=world.effects())
            agent.run("add lamp")
            assert agent.history()
            agent.rollback(agent.checkpoints()[0], force=True).run("look")
        except AgentGitError:
            continue
    assert repo.maintenance.fsck(3).is_sound


def tried(export: bytes, count: int) -> Counter[str]:
    """Import mutants, and count what became of them."""
    counts: Counter[str] = Counter()
    with agentgit.open(":memory:") as repo:
        before = rows(repo)
        for n, way, value in mutants(export, count):
            is_other = []

            def change(records, n=n, way=way, value=value, is_other=is_other):
                is_other.append(changed(records, n, way, value))

            file = forged(export, change)
            if not is_other[0]:
                continue
            try:
                session = repo.import_(file).session
            except (Corrupt, InvalidInput):
                counts["refused"] += 1
                assert rows(repo) == before, (n, way, value)
                continue
            counts["harmless"] += 1
            live_on(repo, session)
            repo.session(session).delete(force=True)
            before = rows(repo)
    return counts


@pytest.mark.parametrize("source", [a_session, with_memory], ids=lambda source: source.__name__)
@pytest.mark.parametrize("count", [110, pytest.param(700, marks=pytest.mark.long)])
def test_a_mutant_is_refused_or_does_no_harm(exports, source, count):
    counts = tried(exports(source), count)
    assert counts.total() > 0.8 * count
    assert counts["refused"] >= 0.9 * counts.total(), counts
