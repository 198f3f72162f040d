"""The limit of the cache of messages in memory."""

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from process_memory import limit_caches, traced_memory, used_bytes

from agentgit.saver.codec import Codec


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
