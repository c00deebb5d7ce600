"""Keys: made once, kept for the owner alone, compared in constant time, and never one kind for the other."""

from __future__ import annotations

import concurrent.futures
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import pytest

from bongsu.errors import BadKey, KeysMissing
from bongsu.runtime.keys import Keys
from bongsu.settings import Settings

SECRET = "a secret that is long enough to sign tokens"
KEYS = Keys(("first-key", "second-key"), (SECRET,))


def test_the_embedded_store_makes_keys_once_and_keeps_them_private(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    first = Keys.load(settings)
    assert Keys.load(settings) == first
    assert [len(secret) >= 32 for secret in first.jwt_secrets] == [True]
    for name in ("api-key", "jwt-secret"):
        assert stat.S_IMODE((tmp_path / "data" / name).stat().st_mode) == 0o600
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["api-key", "jwt-secret"]


def test_many_processes_at_once_agree_on_the_keys(tmp_path: Path) -> None:
    with concurrent.futures.ProcessPoolExecutor(4) as pool:
        found = list(pool.map(_load, [str(tmp_path / "data")] * 16))
    assert len(set(found)) == 1


def _load(data_dir: str) -> Keys:
    return Keys.load(Settings(data_dir=Path(data_dir)))


def test_given_keys_win(tmp_path: Path) -> None:
    keys = Keys.load(Settings(data_dir=tmp_path, api_keys="a,b", jwt_secret="s, t"))
    assert keys == Keys(("a", "b"), ("s", "t"))
    assert list(tmp_path.iterdir()) == []


def test_with_postgresql_keys_must_be_given() -> None:
    with pytest.raises(KeysMissing, match="BONGSU_JWT_SECRET and BONGSU_API_KEYS not set"):
        Keys.load(Settings(database_url="postgresql://localhost/x"))
    with pytest.raises(KeysMissing, match="^BONGSU_API_KEYS not set"):
        Keys.load(Settings(database_url="postgresql://localhost/x", jwt_secret="s"))


def test_each_api_key_opens_and_nothing_else_does() -> None:
    assert KEYS.is_api_key("first-key")
    assert KEYS.is_api_key("second-key")
    for wrong in ("", "on", "onee", "ONE", "one,two", "하나"):
        assert not KEYS.is_api_key(wrong)


async def test_a_token_names_its_member() -> None:
    assert await KEYS.member_of(KEYS.member_token("철수", timedelta(hours=1))) == "철수"


async def test_of_several_secrets_the_first_signs_and_all_are_accepted_until_they_are_removed() -> None:
    old = KEYS.member_token("m", timedelta(hours=1))
    both = Keys(("one",), ("a new secret that is long enough to sign", SECRET))
    new = both.member_token("m", timedelta(hours=1))
    assert [await both.member_of(token) for token in (old, new)] == ["m", "m"]
    rotated = Keys(("one",), both.jwt_secrets[:1])
    assert await rotated.member_of(new) == "m"
    for keys, token in ((rotated, old), (KEYS, new)):
        with pytest.raises(BadKey, match="not valid"):
            await keys.member_of(token)


def test_every_secret_is_checked_for_its_length() -> None:
    assert Keys(("an-api-key-of-length",), (SECRET, "short")).weakness is not None
    assert Keys(("an-api-key-of-length",), (SECRET, SECRET[::-1])).weakness is None


def _token(claims: dict[str, object], secret: str = SECRET, algorithm: str = "HS256") -> str:
    return jwt.encode(claims, secret, algorithm=algorithm)


LATER = datetime.now(UTC) + timedelta(hours=1)


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
@pytest.mark.parametrize(
    ("token", "says"),
    [
        (_token({"sub": "m", "exp": datetime.now(UTC) - timedelta(seconds=1)}), "expired"),
        (_token({"sub": "m"}), "has no `exp`"),
        (_token({"exp": LATER}), "has no `sub`"),
        (_token({"sub": "", "exp": LATER}), "not a member id"),
        (_token({"sub": 7, "exp": LATER}), "not valid"),
        (_token({"sub": "m", "exp": "soon"}), "not valid"),
        (_token({"sub": "m", "exp": LATER}, "another secret, just as long as it"), "not valid"),
        (_token({"sub": "m", "exp": LATER}, SECRET * 2, "HS512"), "not valid"),
        (_token({"sub": "m", "exp": LATER}, "", "none"), "not valid"),
        ("", "not valid"),
        ("a.b.c", "not valid"),
        ("한글", "not valid"),
    ],
    # Two processes that run the tests together must call them the same, and tokens have the time in them.
    ids=lambda value: value if len(value) < 20 else "token",
)
async def test_a_token_that_is_not_ours_and_in_time_is_refused(token: str, says: str) -> None:
    with pytest.raises(BadKey, match=says):
        await KEYS.member_of(token)


# --- guests -----------------------------------------------------------------------------------------------------------

HOUR = timedelta(hours=1)
WITH_GUESTS = KEYS.with_guests(["mina", "emma"])


async def test_a_guests_token_is_good_for_guests_while_they_are_expected_and_for_nobody_else() -> None:
    token = WITH_GUESTS.guest_token("mina", HOUR)
    assert await WITH_GUESTS.member_of(token) == "mina"
    assert await WITH_GUESTS.member_of(WITH_GUESTS.member_token("철수", HOUR)) == "철수"
    for others in (KEYS, KEYS.with_guests(["mina"])):
        with pytest.raises(BadKey, match="not valid"):
            await others.member_of(token)
    for member, keys in (("철수", WITH_GUESTS), ("mina", KEYS)):
        with pytest.raises(BadKey):
            keys.guest_token(member, HOUR)


async def test_the_guests_secret_makes_no_token_for_another_member() -> None:
    assert WITH_GUESTS.guests is not None
    forged = _token({"sub": "a-real-person", "exp": LATER}, WITH_GUESTS.guests.secret)
    with pytest.raises(BadKey, match="not valid"):
        await WITH_GUESTS.member_of(forged)
    with pytest.raises(BadKey, match="expired"):
        await WITH_GUESTS.member_of(WITH_GUESTS.guest_token("mina", -HOUR))


def test_keys_do_not_show_what_they_hold() -> None:
    assert WITH_GUESTS.guests is not None
    for secret in ("first-key", SECRET, WITH_GUESTS.guests.secret):
        assert secret not in repr(WITH_GUESTS)
