"""Access tokens of FCM against the simulator: one for all sends, renewed in time, replaced when refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bongsu.model.outcome import Accepted, Misconfigured, Retry, Scope
from tests.simulator.account import write_account
from tests.simulator.running import Simulator
from tests.support.clocks import ManualClock
from tests.support.push import outgoing, pushing, sent


async def test_many_sends_share_one_access_token(simulator: Simulator, tmp_path: Path) -> None:
    simulator.configure(oauth={"required": True})
    account = write_account(tmp_path, f"{simulator.address}/token")
    async with pushing(simulator.address, credentials=account) as push:
        outcomes = await asyncio.gather(*(push.send(outgoing()) for _ in range(50)))
        (reference,) = {outcome.reference.split("/")[1] for outcome in outcomes if isinstance(outcome, Accepted)}
    assert {type(outcome) for outcome in outcomes} == {Accepted}
    assert reference == "shop", "the project is the account's unless BONGSU_FCM_PROJECT names another"
    assert simulator.stats()["tokensIssued"] == 1


async def test_a_token_is_renewed_before_its_end_while_the_old_one_serves(simulator: Simulator, tmp_path: Path) -> None:
    simulator.configure(oauth={"required": True, "seconds": 1000})
    clock = ManualClock()
    account = write_account(tmp_path, f"{simulator.address}/token")
    async with pushing(simulator.address, credentials=account, clock=clock) as push:
        assert isinstance(await push.send(outgoing()), Accepted)
        clock.now += 790
        assert isinstance(await push.send(outgoing()), Accepted)
        assert simulator.stats()["tokensIssued"] == 1
        clock.now += 20
        assert isinstance(await push.send(outgoing()), Accepted)
    assert simulator.stats()["tokensIssued"] == 2


async def test_an_ended_token_is_not_used(simulator: Simulator, tmp_path: Path) -> None:
    simulator.configure(oauth={"required": True, "seconds": 1000})
    clock = ManualClock()
    account = write_account(tmp_path, f"{simulator.address}/token")
    async with pushing(simulator.address, credentials=account, clock=clock) as push:
        assert isinstance(await push.send(outgoing()), Accepted)
        simulator.reset()
        simulator.configure(oauth={"required": True})
        clock.now += 1000
        assert isinstance(await push.send(outgoing()), Accepted)
    assert simulator.stats()["answers"] == {"ACCEPTED": 1}


async def test_tokens_taken_back_are_replaced_by_one_and_every_message_goes_again(
    simulator: Simulator, tmp_path: Path
) -> None:
    simulator.configure(oauth={"required": True})
    account = write_account(tmp_path, f"{simulator.address}/token")
    async with pushing(simulator.address, credentials=account) as push:
        assert isinstance(await push.send(outgoing()), Accepted)
        simulator.reset()
        simulator.configure(oauth={"required": True}, latency={"medianMs": 20})
        outcomes = await asyncio.gather(*(push.send(outgoing()) for _ in range(20)))
    assert {type(outcome) for outcome in outcomes} == {Accepted}
    stats = simulator.stats()
    assert stats["tokensIssued"] == 1
    assert stats["acceptedOnce"] == 20


async def test_a_storm_of_401_is_answered_with_one_new_token_and_then_misconfigured(
    simulator: Simulator, tmp_path: Path
) -> None:
    simulator.configure(oauth={"required": True}, faults={"unauthorized": 1})
    account = write_account(tmp_path, f"{simulator.address}/token")
    outcomes = await sent(simulator, outgoing("ok-1"), outgoing("ok-2"), credentials=account)
    assert [type(outcome) for outcome in outcomes] == [Misconfigured, Retry]
    assert simulator.entry("ok-1")["answers"] == ["HTTP_401"] * 2
    assert simulator.ledger(token="ok-2")["messages"] == []
    assert simulator.stats()["tokensIssued"] == 2


async def test_an_account_that_is_refused_is_misconfigured(simulator: Simulator, tmp_path: Path) -> None:
    simulator.configure(oauth={"required": True, "fault": "refused"})
    account = write_account(tmp_path, f"{simulator.address}/token")
    (outcome,) = await sent(simulator, outgoing(), credentials=account)
    assert isinstance(outcome, Misconfigured)
    assert outcome.code == "OAUTH_REFUSED"
    assert simulator.stats()["sends"] == 0


async def test_a_token_endpoint_that_is_away_is_waited_for(simulator: Simulator, tmp_path: Path, closed_port: int) -> None:
    account = write_account(tmp_path, f"http://127.0.0.1:{closed_port}/token")
    (outcome,) = await sent(simulator, outgoing(), credentials=account)
    assert isinstance(outcome, Retry)
    assert (outcome.code, outcome.scope) == ("OAUTH_UNAVAILABLE", Scope.CHANNEL)
    assert simulator.stats()["sends"] == 0


async def test_a_token_endpoint_that_talks_nonsense_is_waited_for(simulator: Simulator, tmp_path: Path) -> None:
    simulator.configure(oauth={"fault": "garbage"})
    account = write_account(tmp_path, f"{simulator.address}/token")
    (outcome,) = await sent(simulator, outgoing(), credentials=account)
    assert isinstance(outcome, Retry)
    assert outcome.code == "OAUTH_UNAVAILABLE"


async def test_a_cancelled_send_does_not_take_the_token_from_the_others(simulator: Simulator, tmp_path: Path) -> None:
    simulator.configure(oauth={"required": True})
    account = write_account(tmp_path, f"{simulator.address}/token")
    async with pushing(simulator.address, credentials=account) as push:
        first = asyncio.create_task(push.send(outgoing()))
        second = asyncio.create_task(push.send(outgoing()))
        await asyncio.sleep(0)
        first.cancel()
        assert isinstance(await second, Accepted)
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_token_that_has_ended_is_not_used_while_no_other_can_be_had(simulator: Simulator, tmp_path: Path) -> None:
    simulator.configure(oauth={"required": True, "seconds": 1000})
    clock = ManualClock()
    account = write_account(tmp_path, f"{simulator.address}/token")
    async with pushing(simulator.address, credentials=account, clock=clock) as push:
        assert isinstance(await push.send(outgoing()), Accepted)
        simulator.configure(oauth={"required": True, "fault": "garbage"})
        clock.now += 900  # it ends soon, and its renewal fails in the background
        assert isinstance(await push.send(outgoing()), Accepted)
        await push._tokens.close()  # type: ignore[union-attr]
        clock.now += 120
        outcomes = [await push.send(outgoing()) for _ in range(5)]
        assert {(one.code, one.is_held) for one in outcomes if isinstance(one, Retry)} == {("OAUTH_UNAVAILABLE", True)}
    assert simulator.stats()["answers"] == {"ACCEPTED": 2}


@pytest.mark.parametrize("answers", [{}, {"unavailable": 1}], ids=["well", "ordinary 503"])
async def test_an_outage_of_oauth_is_probed_soon_and_any_answer_ends_the_pause(
    simulator: Simulator, tmp_path: Path, answers: dict[str, float]
) -> None:
    simulator.configure(oauth={"required": True, "fault": "garbage"})
    clock = ManualClock()
    account = write_account(tmp_path, f"{simulator.address}/token")
    waits = []
    async with pushing(simulator.address, credentials=account, clock=clock) as push:
        for _ in range(8):
            first, paused = await push.send(outgoing()), await push.send(outgoing())
            assert isinstance(first, Retry)
            assert isinstance(paused, Retry)
            assert (first.is_held, paused.is_held) == (True, True)
            waits.append(paused.after_seconds)
            clock.now += paused.after_seconds
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
        simulator.configure(oauth={"required": True}, faults=answers)
        probe = await push.send(outgoing())
        assert isinstance(probe, Retry if answers else Accepted)
        simulator.configure(oauth={"required": True})
        assert {type(await push.send(outgoing())) for _ in range(5)} == {Accepted}
