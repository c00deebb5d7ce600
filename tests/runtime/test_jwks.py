"""Member tokens of the team's own sign-in: checked with the keys of its JWKS document, read from a real HTTP server."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from bongsu.errors import BadKey, BadSettings, KeyServerUnreachable, KeysMissing
from bongsu.runtime import jwks
from bongsu.runtime.jwks import PAUSE_SECONDS, REFRESH_SECONDS, SignInKeys, read_keys
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import running
from bongsu.settings import Settings
from tests.support.clocks import ManualClock

ISSUER, AUDIENCE = "https://sign-in.example/realm", "shop"
SECRET = "a secret that is long enough to sign tokens"


@cache
def rsa_key(bits: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


@cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_rsa(key_id: str, bits: int = 2048, **more: str) -> dict[str, Any]:
    return {**RSAAlgorithm.to_jwk(rsa_key(bits).public_key(), as_dict=True), "kid": key_id, **more}


def public_ec(key_id: str, **more: str) -> dict[str, Any]:
    return {**ECAlgorithm.to_jwk(ec_key().public_key(), as_dict=True), "kid": key_id, **more}


@dataclass
class SignIn:
    """The server of a sign-in. `status` other than 200 is an outage."""

    keys: list[dict[str, Any]] = field(default_factory=lambda: [public_rsa("r"), public_ec("e")])
    status: int = 200
    requests: int = 0
    url: str = ""


@pytest.fixture
def sign_in() -> Iterator[SignIn]:
    state = SignIn()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests += 1
            body = json.dumps({"keys": state.keys}).encode()
            self.send_response(state.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/jwks"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0.0)


@pytest.fixture
def keys(sign_in: SignIn, clock: ManualClock) -> Keys:
    return Keys(("key",), (SECRET,), SignInKeys(sign_in.url, ISSUER, [AUDIENCE, "app"], clock))


def token(key_id: str | None = "r", key: Any = None, algorithm: str = "RS256", **changes: Any) -> str:
    claims = {"sub": "m-1", "exp": datetime.now(UTC) + timedelta(hours=1), "iss": ISSUER, "aud": AUDIENCE} | changes
    kept = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(
        kept, rsa_key(2048) if key is None else key, algorithm, headers={} if key_id is None else {"kid": key_id}
    )


def _signed_with(secret: bytes) -> str:
    """Signed by hand, because the library refuses such a secret."""
    signed = token("r", "x" * 32, "HS256").rpartition(".")[0]
    return f"{signed}.{base64.urlsafe_b64encode(hmac.digest(secret, signed.encode(), 'sha256')).decode().rstrip('=')}"


async def test_tokens_signed_with_rs256_and_es256_name_their_member_and_our_own_still_do(keys: Keys) -> None:
    given = [
        token(),
        token(aud=["other", "app"]),
        token("e", ec_key(), "ES256"),
        keys.member_token("m-1", timedelta(hours=1)),
    ]
    assert [await keys.member_of(each) for each in given] == ["m-1"] * 4


async def test_a_token_that_the_sign_in_did_not_make_for_us_is_refused(keys: Keys) -> None:
    public = rsa_key(2048).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    past = datetime.now(UTC) - timedelta(minutes=1)
    refused = [
        token(iss="https://other.example"), token(iss=None), token(aud="other"), token(aud=None), token(exp=past),
        token(exp=None), token(sub=None), token(sub=""), token(nbf=datetime.now(UTC) + timedelta(minutes=1)),
        token(None), token("unknown"), token("e"), token("r", ec_key(), "ES256"),
        token("r", rsa.generate_private_key(65537, 2048)), token("r", algorithm="RS512"), token("r", algorithm="PS256"),
        # The public key, which everybody knows, taken for a secret.
        _signed_with(public), token("r", "x" * 32, "HS256"), token("r", "", "none"),
    ]  # fmt: skip
    for each in refused:
        with pytest.raises(BadKey):
            await keys.member_of(each)


async def test_without_a_sign_in_its_tokens_are_refused() -> None:
    with pytest.raises(BadKey):
        await Keys(("key",), (SECRET,)).member_of(token())


async def test_a_key_that_is_new_is_found_and_invented_key_ids_do_not_cause_a_request_each(
    keys: Keys, sign_in: SignIn, clock: ManualClock
) -> None:
    assert await keys.member_of(token()) == "m-1"
    clock.now += PAUSE_SECONDS
    sign_in.keys.append(public_rsa("new"))
    assert await keys.member_of(token("new")) == "m-1"
    assert sign_in.requests == 2
    clock.now += PAUSE_SECONDS
    answers = await asyncio.gather(*(keys.member_of(token(f"k-{n}")) for n in range(50)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {BadKey}
    assert sign_in.requests == 3


async def test_known_keys_stay_valid_while_the_sign_in_is_down_and_others_are_not_accepted(
    keys: Keys, sign_in: SignIn, clock: ManualClock
) -> None:
    assert await keys.member_of(token()) == "m-1"
    sign_in.status = 500
    clock.now += 10 * REFRESH_SECONDS
    assert keys.sign_in is not None
    await keys.sign_in.tick()
    assert sign_in.requests == 2
    assert await keys.member_of(token()) == "m-1"
    # It may be a new key or an invented one, and nobody can say which.
    with pytest.raises(KeyServerUnreachable):
        await keys.member_of(token("new"))


async def test_a_sign_in_that_is_down_at_the_start_is_asked_again(keys: Keys, sign_in: SignIn, clock: ManualClock) -> None:
    sign_in.status = 503
    with pytest.raises(KeyServerUnreachable):
        await keys.member_of(token())
    assert await keys.member_of(keys.member_token("m-2", timedelta(hours=1))) == "m-2"
    sign_in.status = 200
    with pytest.raises(KeyServerUnreachable):
        await keys.member_of(token())
    clock.now += PAUSE_SECONDS
    assert await keys.member_of(token()) == "m-1"


async def test_a_key_that_was_withdrawn_is_refused_after_the_next_refresh(
    keys: Keys, sign_in: SignIn, clock: ManualClock
) -> None:
    assert keys.sign_in is not None
    async with running(keys.sign_in):
        await keys.sign_in.idle.wait()
    assert await keys.member_of(token()) == "m-1"
    assert sign_in.requests == 1
    sign_in.keys = [public_ec("e")]
    clock.now += REFRESH_SECONDS
    await keys.sign_in.tick()
    with pytest.raises(BadKey):
        await keys.member_of(token())


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_keys_of_other_kinds_are_left_out() -> None:
    private = json.loads(RSAAlgorithm.to_jwk(rsa_key(2048)))
    document = [
        public_rsa("ok"), public_rsa("enc", use="enc"), public_rsa("alg", alg="RS512"), public_rsa("short", 1024),
        public_ec("ec", use="sig", alg="ES256"), public_ec("curve", crv="P-384"),
        {"kty": "oct", "k": "c2VjcmV0", "kid": "oct"}, {**private, "kid": "private"}, {"kty": ["RSA"], "kid": "list"},
        {"kid": "none"},
        {"kty": "RSA", "kid": "empty"}, "text",
        {**public_rsa("x"), "kid": 7},
    ]  # fmt: skip
    assert {key_id: key.algorithm for key_id, key in read_keys({"keys": document}).items()} == {"ok": "RS256", "ec": "ES256"}
    wrong: Any
    for wrong in ([], {}, {"keys": {}}, None):
        with pytest.raises(ValueError, match="not a JWKS document"):
            read_keys(wrong)


def test_the_settings_of_a_sign_in_are_given_together_and_replace_the_secret() -> None:
    url = {"BONGSU_JWKS_URL": "https://sign-in.example/jwks"}
    with pytest.raises(BadSettings, match="set BONGSU_JWT_ISSUER and BONGSU_JWT_AUDIENCE"):
        Settings.load(url)
    with pytest.raises(BadSettings, match="set BONGSU_JWKS_URL and BONGSU_JWT_AUDIENCE"):
        Settings.load({"BONGSU_JWT_ISSUER": ISSUER})
    given = url | {"BONGSU_JWT_ISSUER": ISSUER, "BONGSU_JWT_AUDIENCE": "shop, app", "BONGSU_API_KEYS": "key"}
    keys = Keys.load(Settings.load(given | {"BONGSU_DATABASE_URL": "postgresql://localhost/x"}))
    assert keys.sign_in is not None
    with pytest.raises(KeysMissing, match="BONGSU_JWT_SECRET"):
        keys.member_token("m", timedelta(hours=1))


async def test_those_who_wait_for_a_server_that_does_not_answer_wait_once(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    def fetch(url: str) -> Any:
        attempts.append(url)
        clock.now += PAUSE_SECONDS
        raise TimeoutError

    monkeypatch.setattr(jwks, "_fetch", fetch)
    keys = SignInKeys("https://sign-in.example/jwks", ISSUER, [AUDIENCE], clock)
    found = await asyncio.gather(*(keys.verify("", {"kid": "r"}) for _ in range(5)), return_exceptions=True)
    assert [type(each) for each in found] == [KeyServerUnreachable] * 5
    assert len(attempts) == 1
