"""The images of messages: which blocks are images, and the data of those that a message contains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The media types of images that pages show. SVG is not among them, because it can contain scripts."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image of a message."""

    index: int
    url: str | None = None


def images_of(message: Mapping[str, Any]) -> list[Image]:
    """Return the images of a message.

    Example:
        >>> images_of({"content": [{"type": "text", "text": "see"}, {"type": "image", "url": "https://a.example/b.png"}]})
        [Image(index=1, url='https://a.example/b.png')]
    """
    return list(_images(message.get("content")))


def _images(content: Any) -> Iterator[Image]:
    for index, block in enumerate(content if isinstance(content, list) else ()):
        source = image_source(block)
        if source is None:
            continue
        if isinstance(source, str):
            yield Image(index=index, url=source)
        elif source[0] in IMAGE_TYPES:
            yield Image(index=index)


def image_source(block: Any) -> str | tuple[str, str] | None:
    """Return the address of an image block, or its media type and base64 text; None for any other block.

    It reads the blocks of LangChain, of OpenAI (`image_url`) and of Anthropic (`source`).

    Example:
        >>> image_source({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}})
        ('image/png', 'aGk=')
    """
    if not isinstance(block, Mapping) or block.get("type") not in ("image", "image_url"):
        return None
    linked = block.get("image_url")
    url = linked.get("url") if isinstance(linked, Mapping) else linked or block.get("url")
    nested = block.get("source")
    source = nested if isinstance(nested, Mapping) else block
    data = source.get("base64") or source.get("data")
    media_type = source.get("mime_type") or source.get("media_type")
    if isinstance(url, str) and url[:5].lower() == "data:":
        header, _, data = url[5:].partition(",")
        media_type = header.partition(";")[0]
    elif isinstance(url, str):
        return url
    return (media_type, data) if isinstance(data, str) and isinstance(media_type, str) else None
