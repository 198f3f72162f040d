"""The encryption keys of a database: each has a name, and the current one encrypts new values."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Mapping

from agentgit.errors import InvalidInput

KEY_BYTES = 32
"""The length of an AES-256 key in bytes."""

_KEY_NAME = re.compile(r"[A-Za-z0-9._-]{1,32}", re.ASCII)


class Keyring:
    """Encryption keys by name. The keys themselves are never shown.

    Args:
        keys: The keys by name. A key is 32 bytes, or these in base64; a name has 1 to 32 letters, digits, `.`, `_` and
            `-`.
        current: The name of the key that encrypts new values; None means the first key.

    Raises:
        InvalidInput: A name or a key is not valid, or there is no key called `current`.

    Example:
        >>> ring = Keyring({"2026-11": Keyring.new_key(), "2026-05": bytes(32)})
        >>> ring
        Keyring(['2026-05', '2026-11'], current='2026-11')
    """

    def __init__(self, keys: Mapping[str, bytes | str], current: str | None = None) -> None:
        if not isinstance(keys, Mapping) or not keys:
            raise InvalidInput(
                'Keyring takes at least one key by its name, like Keyring({"2026-11": Keyring.new_key()}).'
            )
        self._keys = {_check_name(name): _decode_key(name, key) for name, key in keys.items()}
        self.current = next(iter(self._keys)) if current is None else current
        if self.current not in self._keys:
            raise InvalidInput(f"The current key {current!r} is not among {', '.join(sorted(self._keys))}.")

    @staticmethod
    def new_key() -> str:
        """Generate a key, in base64. Store it apart from the database's backups; without it no value can be read."""
        return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()

    @classmethod
    def from_text(cls, text: str) -> Keyring:
        """Parse keys written as `NAME:BASE64` and separated by commas, the current one first.

        Raises:
            InvalidInput: The text has another form. The message does not contain it, because it contains keys.

        Example:
            >>> Keyring.from_text("b:" + Keyring.new_key() + ", a:" + Keyring.new_key())
            Keyring(['a', 'b'], current='b')
        """
        parts = [part.strip().partition(":") for part in text.split(",") if part.strip()]
        if len({name for name, _, _ in parts}) != len(parts):
            raise InvalidInput("Two keys have the same name. Give each a name of its own.")
        return cls({name: key for name, _, key in parts})

    def __getitem__(self, name: str) -> bytes:
        return self._keys[name]

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __repr__(self) -> str:
        return f"Keyring({sorted(self._keys)}, current={self.current!r})"


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not _KEY_NAME.fullmatch(name):
        raise InvalidInput("The name of a key must have 1 to 32 letters, digits, `.`, `_` and `-`, like 2026-11.")
    return name


def _decode_key(name: str, key: bytes | str) -> bytes:
    try:
        decoded = base64.b64decode(key, validate=True) if isinstance(key, str) else bytes(memoryview(key))
    except (binascii.Error, ValueError, TypeError):
        decoded = b""
    if len(decoded) != KEY_BYTES:
        raise InvalidInput(
            f"The key {name} must be {KEY_BYTES} bytes, plain or in base64. Keyring.new_key() generates one."
        )
    return decoded
