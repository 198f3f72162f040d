"""The limits of the caches in memory."""

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from process_memory import limit_caches, traced_memory, used_bytes

from agentgit.saver.codec import Codec
from agentgit.store.objects import lru


def test_a_cache_takes_no_more_memory_than_its_limit(monkeypatch):
    """The cache of messages estimates what its entries take, so that its limit in bytes holds."""
    limit_caches(monkeypatch, 256)  # 256 KiB
    codec = Codec(JsonPlusSerializer())
    codec.encode([HumanMessage("warm", id="0")])
    with traced_memory():
        before = used_bytes()
        for number in range(2_000):
            codec.encode([HumanMessage(f"message {number}", id=f"id-{number}", additional_kwargs={"n": [number]})])
        assert used_bytes() - before < 2 * 256 * 1024


def test_a_cache_holds_the_most_recently_used_values_up_to_its_limit():
    """A cache never holds more than its limit, and keeps a value that is used again and again."""
    cache = lru.LRUCache(100)
    for number in range(1, 1_000):
        cache.add([(number, number)])
        assert cache.get(1) == 1
    assert 50 <= len(cache.find(range(1, 1_000))) <= 100
