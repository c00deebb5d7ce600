"""The public keys of the team's own sign-in (Keycloak, Auth0, Firebase Auth), read from its JWKS document.

Known keys are kept while the server cannot be reached. A key id that is not known makes the document be read again, but not
more often than every few seconds: invented key ids cause no more requests than that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from bongsu.errors import KeyServerUnreachable
from bongsu.runtime import telemetry
from bongsu.runtime.loop import Loop

_log = telemetry.log("bongsu.jwks")

# A key that the sign-in has withdrawn is refused after this long.
REFRESH_SECONDS = 300
# Between two requests, whatever is asked for. A key that was created just now is known after this long.
PAUSE_SECONDS = 10
# A document is a few kilobytes.
TIMEOUT_SECONDS = 5
# NIST SP 800-57: shorter RSA keys can be broken.
RSA_BITS = 2048
# By how much the clock of the sign-in may be ahead of ours, or behind.
LEEWAY_SECONDS = 10


@dataclass(frozen=True)
class VerificationKey:
    """A public key, and the one algorithm that tokens signed with it may use: the token does not choose."""

    key: RSAPublicKey | EllipticCurvePublicKey
    algorithm: str


class SignInKeys(Loop):
    """The keys by id. Works before `start` too: the first token makes the document be read."""

    def __init__(self, url: str, issuer: str, audiences: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("jwks", poll_seconds=PAUSE_SECONDS)
        self._url = url
        self._issuer = issuer
        self._audiences = tuple(audiences)
        self._clock = clock
        self._keys: Mapping[str, VerificationKey] = {}
        self._read_at = self._tried_at = -float("inf")
        self._reading = asyncio.Lock()

    async def tick(self) -> int:
        """Read the document at the start and every few minutes; after a failure, more often."""
        if self._clock() - self._read_at >= REFRESH_SECONDS:
            await self._read_once()
        return 0

    async def verify(self, token: str, header: Mapping[str, Any]) -> dict[str, Any]:
        """The claims. Raises jwt.PyJWTError, or KeyServerUnreachable if the key may be one that could not be read."""
        found = await self._find(header.get("kid"))
        return jwt.decode(
            token,
            found.key,
            algorithms=[found.algorithm],
            issuer=self._issuer,
            audience=self._audiences,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "sub", "iss", "aud"]},
        )

    async def _find(self, key_id: object) -> VerificationKey:
        if not isinstance(key_id, str):
            raise jwt.InvalidKeyError("the token names no key")
        if key_id not in self._keys:
            await self._read_once()
        if found := self._keys.get(key_id):
            return found
        if self._read_at < self._tried_at:
            raise KeyServerUnreachable("The keys of the sign-in cannot be read")
        raise jwt.InvalidKeyError("the key is not one of the sign-in's")

    async def _read_once(self) -> None:
        """Read the document, unless it was tried a moment ago. Who comes while it is read waits for that."""
        async with self._reading:
            if self._clock() - self._tried_at < PAUSE_SECONDS:
                return
            was_reachable = self._read_at >= self._tried_at
            self._tried_at = self._clock()
            try:
                async with asyncio.timeout(2 * TIMEOUT_SECONDS):
                    document = await asyncio.to_thread(_fetch, self._url)
                self._keys = read_keys(document)
            except (jwt.PyJWTError, OSError, ValueError, HTTPException) as error:
                # The pause begins now: those who waited would otherwise wait as long again, one after the other.
                self._tried_at = self._clock()
                if was_reachable:
                    _log.warning("sign-in keys not read, keeping the known ones", error=str(error))
                return
            self._read_at = self._tried_at
            if not self._keys:
                _log.warning("sign-in has no usable key", reason="BONGSU_JWKS_URL has no key for RS256 or ES256 with an id")


def _fetch(url: str) -> Any:
    # Some servers refuse the name that urllib gives itself.
    return jwt.PyJWKClient(url, timeout=TIMEOUT_SECONDS, headers={"User-Agent": "bongsu"}).fetch_data()


def read_keys(document: Any) -> dict[str, VerificationKey]:
    """The signing keys of a JWKS document by their ids. Keys of other kinds, or that are too weak, are left out."""
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it is not a JWKS document")
    keys = {}
    for each in listed:
        if isinstance(each, dict) and isinstance(key_id := each.get("kid"), str) and (found := _read_key(each)):
            keys[key_id] = found
    return keys


def _read_key(described: dict[str, Any]) -> VerificationKey | None:
    kinds = {"RSA": "RS256", "EC P-256": "ES256"}
    algorithm = kinds.get(" ".join(str(described[name]) for name in ("kty", "crv") if name in described))
    if algorithm is None or described.get("use", "sig") != "sig" or described.get("alg", algorithm) != algorithm:
        return None
    try:
        key = jwt.PyJWK(described, algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    # A document that has private keys by mistake is not used to verify: anyone can sign with them.
    if isinstance(key, RSAPublicKey) and key.key_size >= RSA_BITS:
        return VerificationKey(key, algorithm)
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        return VerificationKey(key, algorithm)
    return None
