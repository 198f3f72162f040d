"""The client address of a request behind proxies."""

from hypothesis import assume, example, given
from hypothesis import strategies as st

from agentgit.web.proxies import Proxies, read_ip

PROXY = "10.0.0.7"


IPS = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)


NOISE = st.one_of(IPS, st.text(max_size=40).filter(lambda text: "," not in text))


@given(written=st.lists(NOISE, max_size=5), client=IPS, hops=st.lists(st.integers(1, 254), max_size=3))
@example(["127.0.0.1", "10.0.0.1"], "192.0.2.1", [1])
def test_the_client_address_is_the_one_that_the_proxies_saw(written, client, hops):
    """For any X-Forwarded-For and any number of trusted proxies, the client address is the real one."""
    proxies, inner = Proxies(["10.0.0.0/24"]), [f"10.0.0.{n}" for n in hops]
    assume(not proxies.is_trusted(client))
    seen = ",".join([*written, client, *inner])  # each proxy appends the address that it saw
    assert read_ip(proxies.client(PROXY, seen)) == read_ip(client)
    assert proxies.client(client, seen) == client
