"""Push keeps to what every sender keeps to."""

from __future__ import annotations

import pytest

from bongsu.deliver.channels.push.sender import Push
from bongsu.model.outcome import Accepted, Sender
from bongsu.settings import Settings
from tests.deliver.channels import test_conformance as suite
from tests.deliver.channels.kits import Kit, outgoing
from tests.simulator.running import Simulator

WISHES = {"accept": "ok", "refuse": "refused", "hang": "fault-acceptedSilence", "close": "fault-acceptedReset"}


@pytest.fixture
def kit(simulator: Simulator) -> Kit:
    def build(port: int, timeout: float) -> Sender:
        address = f"http://127.0.0.1:{port}" if port else simulator.address
        return Push(Settings(fcm_url=address, send_timeout_seconds=timeout))

    def arrived() -> list[tuple[str, str]]:
        entries = simulator.ledger()["messages"]
        return [
            (entry["token"], f"{entry['text']['title']}\n{entry['text']['body']}")
            for entry in entries
            for _ in range(entry["accepted"])
        ]

    return Kit(build, WISHES, "{wish}-{number}", arrived)


any_kit = kit

test_what_is_accepted_arrives_once_with_its_text = suite.test_what_is_accepted_arrives_once_with_its_text
test_what_the_provider_refuses_is_refused = suite.test_what_the_provider_refuses_is_refused
test_with_the_provider_down_it_is_to_be_retried = suite.test_with_the_provider_down_it_is_to_be_retried
test_silence = suite.test_a_provider_that_takes_it_and_falls_silent_leaves_it_unknown
test_hanging_up = suite.test_a_provider_that_takes_it_and_hangs_up_leaves_it_unknown
test_fifty_at_once_all_arrive_once = suite.test_fifty_at_once_all_arrive_once
test_whatever_it_is_given_it_answers = suite.test_whatever_it_is_given_it_answers
test_an_address_that_is_none_is_answered_too = suite.test_an_address_that_is_none_is_answered_too
test_closing_twice_or_before_any_use_is_fine = suite.test_closing_twice_or_before_any_use_is_fine


async def test_korean_and_emoji_arrive_as_they_were(kit: Kit) -> None:
    """As the suite's own, within the 4,096 bytes that FCM takes."""
    title, body = "🎉 예약이 확정되었습니다 👩‍👩‍👧", "쓿뷁 — 가나다\n둘째 줄 😀\n" + "긴 " * 700 + "끝"
    message = outgoing(kit.to("accept"), title=title, body=body)
    assert isinstance((await suite.sent(kit, message))[0], Accepted)
    assert suite.arrived(kit, message) == [[f"{title}\n{body}"]]
