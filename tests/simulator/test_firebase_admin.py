"""Google's own client, pointed at the simulator, sees what it would see of FCM: its own right exception for each error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import firebase_admin
import google.auth.credentials
import pytest
import requests
from firebase_admin import credentials, exceptions, messaging

from tests.simulator.account import service_account
from tests.simulator.running import Simulator

# Google would rather see installation ids. Devices send us tokens, and tokens go on working.
pytestmark = pytest.mark.filterwarnings("ignore:Message.token is deprecated")


@pytest.fixture
def app(simulator: Simulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[firebase_admin.App]:
    """An app of the simulator's. Google's client tries 500 and 503 again by itself, for seconds: not here."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # google-auth asks Google in the background where the account may act. There is no Google here.
    with_boundary = google.auth.credentials.CredentialsWithRegionalAccessBoundary
    monkeypatch.setattr(with_boundary, "_maybe_start_regional_access_boundary_refresh", lambda *_: None)
    monkeypatch.setattr(messaging._MessagingService, "FCM_URL", simulator.address + "/v1/projects/{0}/messages:send")
    app = firebase_admin.initialize_app(credentials.Certificate(service_account(f"{simulator.address}/token")))
    session = messaging._get_messaging_service(app)._client.session
    session.mount("http://", requests.adapters.HTTPAdapter(max_retries=0))
    yield app
    session.close()
    firebase_admin.delete_app(app)


def send(app: firebase_admin.App, token: str = "ok") -> Any:
    message = messaging.Message(token=token, notification=messaging.Notification("제목", "본문"), data={"nid": "n1"})
    return messaging.send(message, app=app)


def test_it_sends_with_an_access_token_of_the_simulator(simulator: Simulator, app: firebase_admin.App) -> None:
    simulator.configure(oauth={"required": True})
    assert send(app).startswith("projects/shop/messages/")
    assert simulator.entry("ok")["accepted"] == 1


@pytest.mark.parametrize(
    ("token", "error"),
    [
        ("unregistered-1", messaging.UnregisteredError),
        ("bad-1", exceptions.InvalidArgumentError),
        ("refused-1", exceptions.InvalidArgumentError),
        ("apns-gone-1", exceptions.InvalidArgumentError),
        ("other-project-1", messaging.SenderIdMismatchError),
        ("third-party-1", messaging.ThirdPartyAuthError),
        ("fault-quota-1", messaging.QuotaExceededError),
        ("fault-deviceQuota-1", messaging.QuotaExceededError),
        ("fault-unavailable-1", exceptions.UnavailableError),
        ("fault-internal-1", exceptions.InternalError),
        ("fault-truncated-1", exceptions.InternalError),
        ("fault-unauthorized-1", exceptions.UnauthenticatedError),
        ("fault-forbidden-1", exceptions.PermissionDeniedError),
        ("fault-notFound-1", exceptions.NotFoundError),
        ("fault-badGateway-1", exceptions.UnknownError),
    ],
)
def test_it_raises_its_own_right_exception(app: firebase_admin.App, token: str, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        send(app, token)
    assert type(raised.value) is error


def test_a_payload_too_large_is_an_invalid_argument(app: firebase_admin.App) -> None:
    with pytest.raises(exceptions.InvalidArgumentError, match="too big"):
        messaging.send(messaging.Message(token="ok", data={"text": "x" * 5000}), app=app)


def test_a_connection_that_breaks_is_unavailable_to_it(app: firebase_admin.App) -> None:
    with pytest.raises(exceptions.UnavailableError, match="Connection reset"):
        send(app, "fault-acceptedReset-1")
