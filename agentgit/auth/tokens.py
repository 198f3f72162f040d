"""JSON Web Tokens: what somebody else says about who a user is, if their signature holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agentgit.errors import InvalidInput, Unavailable

SHARED = ("HS256", "HS384", "HS512")
"""Algorithms with one key for who signs and who verifies."""

PUBLIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms with a public key."""

LONGEST = 8192
"""Characters of a token."""

SHORTEST_KEY = 32
"""Bytes of a shared key."""


@dataclass(frozen=True)
class Claims:
    """The claims of a verified token.

    Args:
        user_name: The name of the user.
        issued_at: The time of issue; a token without one counts as older than all others.
        expires_at: The time when the token expires.
        user_id: The id of the user, if the rules name a claim for it.
    """

    user_name: str
    issued_at: datetime
    expires_at: datetime
    user_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class JWT:
    """Rules for verifying tokens; passed to `agentgit.open(jwt=...)`. Pass a key or a set of keys.

    Args:
        algorithms: The accepted algorithms, like `["RS256"]`; never shared-key ones (HS…) together with public-key
            ones.
        key: The public key as PEM, or the shared secret.
        jwks: The public keys as JSON Web Key Set, a mapping or its text.
        issuer: The required value of `iss`; None accepts any that the key signs for.
        audience: The required value of `aud`; None accepts only tokens without one.
        user_claim: The claim that has the user's name. A token issued before the last user of a name was erased belongs
            to nobody.
        id_claim: The claim that has the user's id, as `repo.users.find(name).id` is; a token without it, or with the id
            of another user, is then rejected. None goes by the name alone.
        leeway: The seconds by which the clocks may differ.
        create_users: True to create users who do not exist.
        enabled: False rejects all tokens; so does `$AGENTGIT_JWT=off`.

    Raises:
        InvalidInput: These rules can verify nothing, or more than is meant.

    Example:
        >>> JWT(algorithms=["none"], key="x")
        Traceback (most recent call last):
        agentgit.errors.InvalidInput: algorithms=['none'] cannot be verified; give some of HS256, ..., EdDSA.
    """

    algorithms: Sequence[str]
    key: str | bytes | None = field(default=None, repr=False)
    jwks: Mapping[str, Any] | str | None = field(default=None, repr=False)
    issuer: str | None = None
    audience: str | None = None
    user_claim: str = "sub"
    id_claim: str | None = None
    leeway: float = 10
    create_users: bool = False
    enabled: bool = True

    def __post_init__(self) -> None:
        given = [self.algorithms] if isinstance(self.algorithms, str) else list(self.algorithms)
        if not given or not set(given) <= {*SHARED, *PUBLIC}:
            raise InvalidInput(
                f"algorithms={given!r} cannot be verified; give some of {', '.join((*SHARED, *PUBLIC))}."
            )
        is_shared = set(given) <= set(SHARED)
        if not is_shared and not set(given) <= set(PUBLIC):
            raise InvalidInput("With HS… beside the others, who has the public key could sign. Give one kind only.")
        if (self.key is None) == (self.jwks is None) or (is_shared and self.key is None):
            raise InvalidInput("Give the key=..., or of public-key algorithms jwks=..., and not both.")
        if is_shared:
            self._require_secret()
        if self.id_claim is not None and self.create_users:
            raise InvalidInput("A token cannot name the id of a user whom it makes: give id_claim or create_users.")
        object.__setattr__(self, "algorithms", tuple(given))

    def _require_secret(self) -> None:
        key = self.key.encode() if isinstance(self.key, str) else self.key or b""
        if b"-----BEGIN" in key or len(key) < SHORTEST_KEY:
            raise InvalidInput(f"A shared key has {SHORTEST_KEY} bytes or more that are secret, and is no PEM.")


def claims_of(token: str, jwt: JWT) -> Claims | None:
    """Verify a token; None if it does not hold, whatever the cause.

    Raises:
        Unavailable: PyJWT is not installed.
    """
    try:
        import jwt as pyjwt
    except ModuleNotFoundError as error:
        raise Unavailable('Tokens need PyJWT. Run: pip install "agentgit[auth]"') from error
    if not jwt.enabled or len(token) > LONGEST:
        return None
    try:
        key = jwt.key if jwt.key is not None else _key_of(token, jwt)
        said = pyjwt.decode(
            token,
            key,
            algorithms=list(jwt.algorithms),
            issuer=jwt.issuer,
            audience=jwt.audience,
            leeway=jwt.leeway,
            options={"require": ["exp", jwt.user_claim]},
        )
        name, user_id = said[jwt.user_claim], None
        if jwt.id_claim is not None:
            user_id = int(said[jwt.id_claim])
        ends = datetime.fromtimestamp(said["exp"] + jwt.leeway, UTC)
        began = datetime.fromtimestamp(said.get("iat", 0), UTC)
    except (pyjwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError, OSError, StopIteration):
        return None
    return Claims(name, began, ends, user_id) if isinstance(name, str) and name else None


def _key_of(token: str, jwt: JWT) -> Any:
    """Find the public key that a token names, or the only one."""
    import jwt as pyjwt

    given = json.loads(jwt.jwks) if isinstance(jwt.jwks, str) else dict(jwt.jwks or {})
    keys = [key for key in pyjwt.PyJWKSet.from_dict(given).keys if key.key_type != "oct"]
    kid = pyjwt.get_unverified_header(token).get("kid")
    if kid is None and len(keys) == 1:
        return keys[0]
    return next(key for key in keys if key.key_id == kid and kid is not None)
