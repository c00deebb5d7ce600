"""Our messages beside Google's own: the same message built by firebase-admin is the same JSON."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from firebase_admin import messaging

from bongsu.deliver.channels.push.message import build_message
from bongsu.model import Priority
from tests.deliver.channels.push.test_message import NID, NOW, outgoing

# Google would rather see installation ids. Devices send us tokens, and tokens go on working.
pytestmark = pytest.mark.filterwarnings("ignore:Message.token is deprecated")


def by_google(message: messaging.Message) -> Any:
    return messaging._MessagingService.encode_message(message)


def test_an_alert_is_the_same() -> None:
    expires_at = NOW + timedelta(hours=2)
    ours = outgoing(priority=Priority.HIGH, expires_at=expires_at, ref_id="sku-1", data={"price": 9900})
    theirs = messaging.Message(
        token="token-1",
        notification=messaging.Notification("가격이 내렸어요", "9,900원"),
        data={"notificationId": "77", "type": "PRICE_DROP", "nid": NID, "refId": "sku-1", "price": "9900"},
        android=messaging.AndroidConfig(
            priority="high", ttl=timedelta(hours=2), notification=messaging.AndroidNotification(tag=NID)
        ),
        apns=messaging.APNSConfig(
            headers={
                "apns-push-type": "alert",
                "apns-priority": "10",
                "apns-collapse-id": NID,
                "apns-expiration": str(int(expires_at.timestamp())),
            },
            payload=messaging.APNSPayload(
                messaging.Aps(alert=messaging.ApsAlert(title="가격이 내렸어요", body="9,900원"), sound="default")
            ),
        ),
        webpush=messaging.WebpushConfig(
            headers={"Urgency": "high", "TTL": "7200", "Topic": NID}, notification=messaging.WebpushNotification(tag=NID)
        ),
    )
    assert build_message(ours, NOW) == by_google(theirs)


def test_a_silent_one_is_the_same() -> None:
    theirs = messaging.Message(
        token="token-1",
        data={
            "notificationId": "77",
            "type": "PRICE_DROP",
            "nid": NID,
            "title": "가격이 내렸어요",
            "body": "9,900원",
            "who": '{"name":"봉수"}',
        },
        android=messaging.AndroidConfig(priority="high"),
        apns=messaging.APNSConfig(
            headers={"apns-push-type": "background", "apns-priority": "5", "apns-collapse-id": NID},
            payload=messaging.APNSPayload(messaging.Aps(content_available=True)),
        ),
        webpush=messaging.WebpushConfig(headers={"Urgency": "normal", "Topic": NID}),
    )
    assert build_message(outgoing(is_silent=True, data={"who": {"name": "봉수"}}), NOW) == by_google(theirs)


def test_one_of_low_priority_without_an_id_is_the_same() -> None:
    theirs = messaging.Message(
        token="token-1",
        notification=messaging.Notification("가격이 내렸어요", "9,900원"),
        data={"notificationId": "77", "type": "PRICE_DROP"},
        android=messaging.AndroidConfig(priority="normal"),
        apns=messaging.APNSConfig(
            headers={"apns-push-type": "alert", "apns-priority": "5"},
            payload=messaging.APNSPayload(messaging.Aps(alert=messaging.ApsAlert(title="가격이 내렸어요", body="9,900원"))),
        ),
        webpush=messaging.WebpushConfig(headers={"Urgency": "low"}),
    )
    assert build_message(outgoing(priority=Priority.LOW, collapse_id=""), NOW) == by_google(theirs)
