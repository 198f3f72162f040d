"""The Markdown of messages on pages: it loads nothing, links only to other sites, and does not swell."""

import pytest

from agentgit.web.pages.rendering import is_link, markdown
from agentgit.web.pages.turns import images_of


@pytest.mark.parametrize(
    "text",
    [
        "[a]: https://" + "x" * 9_000 + "\n" + "[a]" * 3_000,
        "|" + "a|" * 2_000 + "\n|" + "-|" * 2_000 + "\n" + "|b\n" * 2_000,
        ">" * 5_000 + "a",
        "![a](https://a.example/b.png)" * 500,
    ],
    ids=["references", "table", "quotes", "images"],
)
def test_a_message_cannot_swell_a_page(text):
    """The HTML of a message is at most some twenty times as long as the message."""
    assert len(markdown(text)) <= 30 * len(text)


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "JavaScript:alert(1)", "/users", "data:text/html,x", "//a.b"]
)
def test_a_message_links_only_to_web_and_mail_addresses(address):
    """No other address becomes a link, in Markdown or as the address of an image."""
    assert "href" not in markdown(f"[x]({address}) ![y]({address})")
    assert not is_link(address)


def test_an_address_with_data_is_no_link_however_it_is_written():
    """An image in the message itself is served by this server, also if its scheme is in capitals."""
    [image] = images_of({"content": [{"type": "image_url", "image_url": {"url": "DATA:image/png;base64,aGk="}}]})
    assert image.url is None
