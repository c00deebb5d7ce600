"""Who speaks on which channel."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bongsu import App, Channel
from bongsu.deliver.channels.callback import CallbackSender, GuardedSender, send_and_wait
from bongsu.deliver.channels.email import smtp
from bongsu.deliver.channels.email.sender import Email
from bongsu.deliver.channels.push import sender as push
from bongsu.deliver.channels.push.sender import Push
from bongsu.deliver.channels.registry import is_simulated, senders
from bongsu.deliver.channels.simulated import Simulated
from bongsu.deliver.channels.sms import apprise_sender as sms_apprise
from bongsu.deliver.channels.sms import sender as sms
from bongsu.deliver.channels.sms.sender import Sms
from bongsu.errors import BadSettings
from bongsu.model.channels import find_channel
from bongsu.model.outcome import Accepted, Outcome, Outgoing, Refused, Retry, Sender, Unknown
from bongsu.rules import catalogue, load_app
from bongsu.settings import Settings
from tests.deliver.channels.kits import outgoing
from tests.support.providers.scripted import Scripted


class Pigeon:
    channel = Channel.SMS

    async def send(self, outgoing: Outgoing) -> Outcome:
        return Accepted("coo")

    async def close(self) -> None: ...


def behind_its_guard(sender: CallbackSender) -> Sender:
    assert isinstance(sender, GuardedSender)
    return sender.sender


async def closed(made: Mapping[str, CallbackSender]) -> None:
    for sender in made.values():
        await sender.close()


@pytest.fixture
async def unconfigured() -> AsyncIterator[dict[str, CallbackSender]]:
    made = senders(Settings())
    yield made
    await closed(made)


def test_what_is_not_configured_is_simulated(unconfigured: dict[str, CallbackSender]) -> None:
    # The inbox row is the delivery of IN_APP.
    assert set(unconfigured) == set(Channel) - {Channel.IN_APP}
    assert all(is_simulated(sender) for sender in unconfigured.values())
    assert all(sender.channel == channel for channel, sender in unconfigured.items())


async def test_what_is_configured_is_real() -> None:
    mail = {"smtp_url": "smtp://mail.example", "email_from": "a@b.example"}
    sms = {"sms_url": "http://x.example", "sms_from": "1"}
    made = senders(Settings.model_validate(mail | sms | {"fcm_url": "http://fcm.example"}))
    assert isinstance(behind_its_guard(made[Channel.EMAIL]), Email)
    assert isinstance(behind_its_guard(made[Channel.SMS]), Sms)
    assert isinstance(made[Channel.PUSH], Push)
    await closed(made)


def test_half_a_configuration_stops_the_start() -> None:
    with pytest.raises(BadSettings, match="BONGSU_EMAIL_FROM"):
        senders(Settings(smtp_url="smtp://mail.example"))


async def test_the_users_own_sender_takes_the_place_of_ours() -> None:
    app, pigeon = App(), Pigeon()
    app.channel("SMS", pigeon)
    # Wrong as it is, the setting does not matter: nobody builds what nobody needs.
    made = senders(Settings(sms_url="http://x.example"), catalogue(Settings(), app).senders)
    assert behind_its_guard(made[Channel.SMS]) is pigeon
    assert await send_and_wait(made[Channel.SMS], outgoing("+82101")) == Accepted("coo")
    await closed(made)


async def test_a_simulated_message_is_one_line_without_address_or_text() -> None:
    message = outgoing("kim@example.org", title="비밀 제목", body="비밀 내용")
    with capture_logs() as lines:
        outcome = await Simulated(Channel.EMAIL).send(message)
    assert outcome == Accepted(f"simulated-{message.delivery_id}", is_simulated=True)
    line = str(lines)
    assert len(lines) == 1
    assert "member-1" in line
    assert "PRICE_DROP" in line
    assert "비밀" not in line
    assert "kim@example.org" not in line


async def test_the_sender_shown_in_the_howto_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sms_gateway: Scripted, closed_port: int
) -> None:
    page = (Path(__file__).parents[3] / "docs/howto/channels.md").read_text()
    (shown,) = re.findall(r"^```python shop/gateway.py\n(.+?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "gateway_of_the_howto.py").write_text(shown)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sender = load_app("gateway_of_the_howto:app").senders[Channel.SMS]
    there = type(sender)(f"http://127.0.0.1:{sms_gateway.port}/send")  # type: ignore[call-arg]
    nowhere = type(sender)(f"http://127.0.0.1:{closed_port}/send")  # type: ignore[call-arg]
    assert await there.send(outgoing("+821011110009")) == Accepted("SM4711")
    assert isinstance(await there.send(outgoing("+821021110009")), Refused)
    assert isinstance(await there.send(outgoing("+821041110009")), Unknown)
    assert isinstance(await nowhere.send(outgoing("+821011110009")), Retry)
    for one in (there, nowhere, sender):
        await one.close()


@pytest.mark.parametrize(
    ("channel", "at_once"),
    [(Channel.EMAIL, smtp.CONNECTIONS), (Channel.SMS, sms_apprise.THREADS), (Channel.PUSH, push.CONNECTIONS)],
)
def test_the_slots_of_a_channel_fit_its_connections(channel: Channel, at_once: int) -> None:
    """What is claimed beyond that only waits, and no other process can send it."""
    assert at_once <= find_channel(channel).concurrency <= 4 * at_once


def test_an_http_gateway_has_a_connection_for_each_slot() -> None:
    assert find_channel(Channel.SMS).concurrency == sms.CONNECTIONS
