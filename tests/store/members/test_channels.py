"""Channels that apps declare, as the store has them: their bits, members' addresses, what is decided and sent on them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bongsu.errors import BadApp
from bongsu.model import Device, Listed, Member, NoticeType, Platform, Preferences, TypePreference
from bongsu.model.channels import BUILT_IN, MOST_OWN, Channel, channels, from_bits, to_bits, use_declared
from bongsu.settings import Settings
from bongsu.store import Store, Transaction, migrate
from bongsu.store import deliveries as statements
from bongsu.store.decisions import decide as decide_statements
from bongsu.store.deliveries import RANKS
from bongsu.store.members import find_member, find_preferences, put_member, put_preferences
from bongsu.store.members.channels import declare_channels, load_channels
from bongsu.store.members.devices import put_device
from tests.support.decisions import (
    decide,
    delivery_channels,
    results_by_member,
    rows,
    rules_notifying,
    run_sql,
    trigger_event,
)
from tests.support.long_runs import examples
from tests.support.rows import add_member

OWN = ("ALIMTALK", "KITE")


@pytest.fixture(autouse=True)
def only_built_in_before_and_after() -> Iterator[None]:
    use_declared({})
    yield
    use_declared({})


@pytest.fixture
async def declared(store: Store) -> Store:
    await declare_channels(store, OWN)
    return store


def own_bits() -> dict[str, int]:
    return {one.name: one.bit for one in channels() if one not in BUILT_IN}


async def test_a_channel_gets_the_next_bit_once_and_keeps_it(store: Store) -> None:
    await declare_channels(store, ["KITE"])
    assert own_bits() == {"KITE": 16}
    await declare_channels(store, ["ALIMTALK", "KITE"])
    assert own_bits() == {"KITE": 16, "ALIMTALK": 32}
    use_declared({})
    # A process without the app.
    assert await load_channels(store) == {"KITE", "ALIMTALK"}
    assert own_bits() == {"KITE": 16, "ALIMTALK": 32}
    assert from_bits(to_bits(["ALIMTALK", Channel.PUSH])) == ("PUSH", "ALIMTALK")
    with pytest.raises(ValueError, match="there is no channel 'FAX', there are PUSH, SMS, EMAIL, IN_APP, KITE, ALIMTALK"):
        to_bits(["FAX"])


async def test_processes_that_start_at_once_take_different_bits(store: Store, settings: Settings) -> None:
    others = [Store.open(settings) for _ in range(4)]
    await asyncio.gather(*(declare_channels(one, [f"C{place}", "SHARED"]) for place, one in enumerate(others)))
    await load_channels(store)
    assert sorted(own_bits().values()) == [16, 32, 64, 128, 256]
    for one in others:
        await one.close()


async def test_a_store_takes_so_many_channels_and_refuses_the_next(store: Store) -> None:
    names = [f"C{place:02}" for place in range(MOST_OWN)]
    await declare_channels(store, names)
    # They fit, all together, into the column.
    everything = to_bits([*Channel, *names])
    async with store.transaction() as tx:
        await add_member(tx, "m", capped_count=everything)
    assert from_bits((await rows(store, "SELECT capped_count FROM bongsu_members"))[0]["capped_count"])[4:] == tuple(names)
    with pytest.raises(BadApp, match=f"Channel ONE_MORE is one too many: a store takes {MOST_OWN} channels"):
        await declare_channels(store, ["ONE_MORE"])
    await declare_channels(store, names)


async def test_addresses_and_preferences_are_found_as_they_were_put(declared: Store) -> None:
    member = Member(email="a@b", addresses={"ALIMTALK": "0101", "KITE": "north"})
    wish = Preferences(types={"SAID": TypePreference(channels=frozenset({"KITE", "PUSH"}))})
    async with declared.transaction() as tx:
        await put_member(tx, "m", member)
        await put_preferences(tx, "m", wish)
        assert await find_member(tx, "m") == member
        assert await find_preferences(tx, "m") == wish
        await put_member(tx, "m", Member(addresses={"KITE": "south"}))
        assert await find_member(tx, "m") == Member(addresses={"KITE": "south"})
        await put_member(tx, "m", Member())
        assert await find_member(tx, "m") == Member()
        await put_member(tx, "m", member)
    await run_sql(declared, "DELETE FROM bongsu_members WHERE member_id = 'm'")
    assert await rows(declared, "SELECT * FROM bongsu_addresses") == []


async def test_a_claim_has_the_address_of_the_moment(declared: Store, settings: Settings) -> None:
    async with declared.transaction() as tx:
        await put_member(tx, "m", Member(addresses={"ALIMTALK": "0101"}))
        await put_member(tx, "gone", Member(addresses={"ALIMTALK": "0102"}))
    rules = rules_notifying(Listed(("gone", "m")), NoticeType("SAID", ("ALIMTALK",)))
    await decide(declared, settings, rules, trigger_event())
    async with declared.transaction() as tx:
        await put_member(tx, "m", Member(addresses={"ALIMTALK": "0109", "KITE": "north"}))
        await put_member(tx, "gone", Member(phone="0103"))
    assert await statements.claim(declared, "KITE", RANKS, 10, 60, "w") == []
    claimed = await statements.claim(declared, "ALIMTALK", RANKS, 10, 60, "w")
    assert {one.member_id: (one.address, one.can_go) for one in claimed} == {"m": ("0109", True), "gone": (None, False)}


# --- what is decided, by a model --------------------------------------------------------------------------------------

NAMES = (*Channel, *OWN)


@dataclass(frozen=True)
class Person:
    """On which channels a member has an address, and which they want; None for no preference."""

    reachable: frozenset[str]
    wanted: frozenset[str] | None

    def fate(self, asked: frozenset[str]) -> tuple[str, list[str]]:
        """What becomes of a notice for these channels, and the channels it is sent on."""
        wanted = asked if self.wanted is None else asked & self.wanted
        if not wanted:
            return "USER_OPTED_OUT", []
        got = wanted & (self.reachable | {Channel.IN_APP})
        return ("NOTIFIED", sorted(got - {Channel.IN_APP})) if got else ("NO_ADDRESS", [])


subsets = st.frozensets(st.sampled_from(NAMES))
people = st.lists(st.builds(Person, subsets, st.none() | subsets), min_size=1, max_size=6)


class Stores:
    """One store for all examples: what they wrote is removed after each."""

    def __init__(self, url: str) -> None:
        self.settings = Settings(data_dir=Path(mkdtemp()), database_url=url)
        self.store = Store.open(self.settings)
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self._begin())

    async def _begin(self) -> None:
        await migrate(self.store)
        await declare_channels(self.store, OWN)

    def close(self) -> None:
        self.loop.run_until_complete(self.store.close())
        self.loop.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    made = Stores(request.getfixturevalue("migrated_postgres_url") if request.param == "postgresql" else "")
    yield made
    made.close()


@pytest.mark.parametrize("few", [0, 1_000], ids=["many", "few"])
def test_each_channel_reaches_those_who_want_it_and_have_an_address(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(decide_statements, "FEW_RECIPIENTS", few)

    @settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(people, st.frozensets(st.sampled_from(NAMES), min_size=1))
    def check(found: list[Person], asked: frozenset[str]) -> None:
        stores.loop.run_until_complete(_check(stores, {f"m-{place}": one for place, one in enumerate(found)}, asked))

    check()


async def _check(stores: Stores, found: dict[str, Person], asked: frozenset[str]) -> None:
    store = stores.store
    async with store.transaction() as tx:
        for member_id, one in found.items():
            await _put(tx, member_id, one)
    await decide(
        store,
        stores.settings,
        rules_notifying(Listed(tuple(found)), NoticeType("SAID", tuple(sorted(asked)))),
        trigger_event(),
    )
    expected = {member_id: one.fate(asked) for member_id, one in found.items()}
    assert {member_id: [*fate] for member_id, fate in (await results_by_member(store)).items()} == {
        member_id: [fate] for member_id, (fate, _) in expected.items()
    }
    sent = [(member_id, channel) for member_id, (_, names) in sorted(expected.items()) for channel in names]
    assert await delivery_channels(store) == sent
    await run_sql(
        store, *(f"DELETE FROM bongsu_{table}" for table in ("deliveries", "notifications", "suppressions", "members"))
    )


async def _put(tx: Transaction, member_id: str, one: Person) -> None:
    addresses = {name: f"{name} of {member_id}" for name in OWN if name in one.reachable}
    email = "a@b" if Channel.EMAIL in one.reachable else None
    phone = "010-1234" if Channel.SMS in one.reachable else None
    await put_member(tx, member_id, Member(email=email, phone=phone, addresses=addresses))
    if Channel.PUSH in one.reachable:
        device = Device(token=f"token-{member_id}", platform=Platform.ANDROID, push_consent=True)
        await put_device(tx, member_id, "phone", device)
    if one.wanted is not None:
        await put_preferences(tx, member_id, Preferences(types={"SAID": TypePreference(channels=one.wanted)}))
