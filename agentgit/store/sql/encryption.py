"""Encryption at rest: the stored form of `Payload` and `SealedText` columns in a database with keys.

A sealed value consists of `MAGIC`, the byte 1, the length of the key's name, the name, a random nonce of 12 bytes, and
the AES-256-GCM ciphertext with its tag. The table, the column and the primary key of the row are
authenticated with it (`Bound`), so a value decrypts only where it was sealed. A value of `blob` is not bound to its
row: the hash in its key says what it must be. A plain value is stored as it is, but one that begins with `MAGIC` gets
the prefix `MAGIC`, 0.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Dialect

from agentgit.auth.keyring import Keyring
from agentgit.errors import Corrupt, KeyMissing, Unavailable
from agentgit.next_steps import Next

MAGIC = b"\xffagit"
PLAIN, SEALED = 0, 1
NONCE_BYTES = 12
HEADER_BYTES = len(MAGIC) + 2

TEXT_MARK = "\\!agit:"
"""The prefix of the base64 of a sealed text. No plain text is stored with a backslash before `!`; see `SafeText`."""

ENVIRONMENT = "AGENTGIT_ENCRYPTION_KEYS"
_SEAL = "agentgit_seal"


class PlainBytes(bytes):
    """Bytes that are in clear in an encrypted database: lists of hashes, which the database itself follows."""


class Bound(NamedTuple):
    """A value with the primary key of its row, which an encrypted value is bound to."""

    value: Any
    row_key: str


class Seal:
    """Encrypts and decrypts the values of one open database."""

    def __init__(self, keyring: Keyring) -> None:
        self.keyring = keyring
        self.is_fully_encrypted = False
        """True if every value is encrypted. An unencrypted value was then written by somebody without the key."""
        self.compiled: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        """The statements compiled for this database; see `agentgit.store.sql.compiled_statement`."""
        self._ciphers: dict[str, Any] = {}
        _ = self._library

    @cached_property
    def _library(self) -> Any:
        try:
            return import_module("cryptography.hazmat.primitives.ciphers.aead")
        except ModuleNotFoundError as error:
            raise Unavailable(
                "Encryption needs an extra package.", Next("install", package="agentgit[encryption]")
            ) from error

    def seal(self, place: str, value: bytes | memoryview, row_key: str = "", *, key_name: str | None = None) -> bytes:
        name, nonce = key_name or self.keyring.current, os.urandom(NONCE_BYTES)
        ciphertext: bytes = self._cipher(name).encrypt(nonce, value, self._associated_data(place, row_key))
        return b"%b%c%c%b" % (MAGIC, SEALED, len(name), name.encode()) + nonce + ciphertext

    def open(self, place: str, data: bytes, row_key: str = "") -> bytes:
        name = parse_key_name(data) or ""
        if name not in self.keyring:
            raise missing_key(name)
        start = HEADER_BYTES + len(name)
        nonce, ciphertext = data[start : start + NONCE_BYTES], data[start + NONCE_BYTES :]
        try:
            plaintext: bytes = self._cipher(name).decrypt(nonce, ciphertext, self._associated_data(place, row_key))
        except (import_module("cryptography.exceptions").InvalidTag, ValueError) as error:
            raise Corrupt(
                f"A value in {place} does not decrypt with the key {name}: it was changed or moved, or this is "
                "another key of that name.",
                Next("fsck"),
                row=place,
            ) from error
        return plaintext

    def _cipher(self, name: str) -> Any:
        if name not in self._ciphers:
            self._ciphers[name] = self._library.AESGCM(self.keyring[name])
        return self._ciphers[name]

    def _associated_data(self, place: str, row_key: str) -> bytes:
        return f"agentgit\0{place}\0{row_key}".encode()


def missing_key(name: str) -> KeyMissing:
    return KeyMissing(
        f"This database is encrypted with the key {name}, which is missing.",
        Next("give_keys"),
        key_id=name,
    )


def parse_key_name(data: bytes) -> str | None:
    """Return the name of a sealed value's key; None if the value is plain. The first 40 bytes are enough."""
    if (
        len(data) < HEADER_BYTES
        or data[: len(MAGIC)] != MAGIC
        or data[len(MAGIC) : HEADER_BYTES - 1] != bytes([SEALED])
    ):
        return None
    return data[HEADER_BYTES : HEADER_BYTES + data[HEADER_BYTES - 1]].decode("ascii", "replace")


def encode_value(seal: Seal | None, place: str, value: bytes | memoryview, row_key: str = "") -> bytes | memoryview:
    if seal is not None and not isinstance(value, PlainBytes):
        return seal.seal(place, value, row_key)
    return MAGIC + bytes([PLAIN]) + value if value[: len(MAGIC)] == MAGIC else value


def decode_value(seal: Seal | None, place: str, data: bytes, row_key: str = "") -> bytes:
    if is_refused(seal, data):
        raise unencrypted_value(place)
    if data[: len(MAGIC)] != MAGIC:
        return data
    name = parse_key_name(data)
    if name is None:
        return data[HEADER_BYTES - 1 :] if data[len(MAGIC) : HEADER_BYTES - 1] == bytes([PLAIN]) else data
    if seal is None:
        raise missing_key(name)
    return seal.open(place, data, row_key)


def is_refused(seal: Seal | None, data: bytes) -> bool:
    """Return whether a value is unencrypted in a database in which every value must be encrypted."""
    return seal is not None and seal.is_fully_encrypted and parse_key_name(data) is None


def unencrypted_value(place: str) -> Corrupt:
    return Corrupt(
        f"A value in {place} is not encrypted, although this database is: somebody without the key wrote it.",
        Next("fsck"),
        row=place,
    )


def encode_text(seal: Seal | None, place: str, text: str, row_key: str) -> str:
    """Return the stored form of a text that `SafeText` has escaped."""
    return text if seal is None else TEXT_MARK + b64encode(seal.seal(place, text.encode(), row_key)).decode()


def decode_text(seal: Seal | None, place: str, text: str, row_key: str) -> str:
    """Return the escaped text of a stored form. Raises the same errors as `decode_value`."""
    if not text.startswith(TEXT_MARK):
        if seal is not None and seal.is_fully_encrypted:
            raise unencrypted_value(place)
        return text
    return decode_value(seal, place, sealed_text_bytes(text), row_key).decode()


def sealed_text_bytes(text: str) -> bytes:
    """Return the bytes of a stored text: decoded if it is sealed (empty if damaged), as they are if it is plain."""
    if not text.startswith(TEXT_MARK):
        return text.encode()
    try:
        return b64decode(text[len(TEXT_MARK) :], validate=True)
    except ValueError:
        return b""


def seal_of_dialect(dialect: Dialect) -> Seal | None:
    """Return the seal of a dialect's database; None if the database has no keys."""
    seal: Seal | None = getattr(dialect, _SEAL, None)
    return seal


def set_seal(dialect: Dialect, seal: Seal | None) -> None:
    """Set the seal of a dialect's database. Call this before anything is read or written."""
    if seal is not None:
        setattr(dialect, _SEAL, seal)


def load_keyring(keyring: Keyring | None) -> Keyring | None:
    """Return the given keys, else those from the environment variable, else None."""
    text = os.environ.get(ENVIRONMENT)
    return keyring if keyring is not None or not text else Keyring.from_text(text)
