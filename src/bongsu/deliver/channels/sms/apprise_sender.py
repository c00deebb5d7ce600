"""SMS by one of the services that Apprise knows: BONGSU_SMS_URL with any scheme of its own.

Apprise answers yes or no and writes why into its log. So the log is read, in the thread that sends: an answer's status
becomes what it means, a connection that was never made becomes a retry, and every other failure is Unknown, because it is
not known how far it came.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import apprise

from bongsu.deliver.channels.sms.answers import TWILIO, by_code, by_status
from bongsu.deliver.channels.sms.sender import number_of, text_of
from bongsu.errors import BadSettings
from bongsu.model.outcome import Accepted, Gone, Outcome, Outgoing, Refused, Retry, Scope, Unknown
from bongsu.settings import Settings

# Each is a message under way. If all are busy, sends wait; the dispatcher's slots bound how many.
THREADS = 16
# Stands in for a number when the URL is tried out at the start.
SAMPLE_NUMBER = "+821000000000"

_ERROR = re.compile(r"\berror=(\d{3,5})\b")
# urllib3's names for a connection that was never made. Whatever else broke may have broken after the message.
_NEVER_CONNECTED = ("NewConnectionError", "ConnectTimeoutError", "NameResolutionError")


class AppriseGateway:
    """Apprise's services block, so each message takes a thread, of which there are only so many."""

    def __init__(self, settings: Settings) -> None:
        self._url = _with_placeholder(settings.sms_url)
        self._timeout = settings.send_timeout_seconds
        if self._service(SAMPLE_NUMBER) is None:
            raise BadSettings("BONGSU_SMS_URL is not a URL that Apprise understands")
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="bongsu-sms")
        # A thread may be busy for longer than its message was waited for.
        self._free = asyncio.Semaphore(THREADS)

    async def send(self, outgoing: Outgoing) -> Outcome:
        service = self._service(number_of(outgoing))
        if service is None:
            return Refused("APPRISE_URL", "with this number, BONGSU_SMS_URL is not a URL that Apprise understands")
        if getattr(service, "targets", True) in ([], ()):
            # It has dropped the number as none; some would now write to their own sender instead.
            return Gone("ADDRESS_INVALID", "the service does not take it for a phone number")
        try:
            async with asyncio.timeout(self._timeout):
                await self._free.acquire()
        except TimeoutError:
            # Each thread is busy with a message that was given up long ago.
            detail = f"none of {THREADS} threads was free within {self._timeout:g} s"
            return Retry("NO_THREAD", scope=Scope.CHANNEL, detail=detail, is_held=True)
        call = asyncio.get_running_loop().run_in_executor(self._threads, _notify, service, text_of(outgoing))
        # The thread is free when it is done, which may be later than we wait for it.
        call.add_done_callback(lambda _: self._free.release())
        try:
            # Apprise waits as long for a connection as for each piece of the answer; this is the end of the sum.
            async with asyncio.timeout(self._timeout * 2):
                return await asyncio.shield(call)
        except TimeoutError:
            return Unknown("TIMEOUT", f"no answer within {self._timeout * 2:g} s")

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)

    def _service(self, number: str) -> apprise.NotifyBase | None:
        service = apprise.Apprise.instantiate(self._url.replace("{to}", quote(number, safe="")))
        if service is not None:
            service.socket_connect_timeout = service.socket_read_timeout = self._timeout
        return service


def _with_placeholder(url: str) -> str:
    """Without a placeholder of its own, the number goes to the end of the path, as most services have it."""
    if "{to}" in url:
        return url
    front, mark, query = url.partition("?")
    return f"{front.rstrip('/')}/{{to}}{mark}{query}"


def _notify(service: apprise.NotifyBase, text: str) -> Outcome:
    with _LOG_CAPTURE as captured:
        try:
            is_taken = service.notify(body=text)
        except Exception as error:  # a hundred services by as many authors: what one of them raises is its answer
            return Unknown("APPRISE", type(error).__name__)
    return Accepted() if is_taken else outcome_of(captured, is_twilio=service.secure_protocol == "twilio")


def outcome_of(captured: list[tuple[int, str]], *, is_twilio: bool) -> Outcome:
    """What a failed notification means, by the levels and lines that Apprise logged meanwhile."""
    # Statuses stand in warnings. Lower levels repeat the message, and a message may contain the same text.
    codes = [int(code) for level, line in captured if level >= logging.WARNING for code in _ERROR.findall(line)]
    if codes:
        code = codes[-1]
        if is_twilio and code in TWILIO:
            return by_code(code, "")
        return by_status(code, "") if code < 600 else Refused(f"APPRISE_{code}")
    broken = [line for _, line in captured if line.startswith("Socket Exception")]
    if broken and all(any(name in line for name in _NEVER_CONNECTED) for line in broken):
        return Retry("CONNECT", scope=Scope.CHANNEL)
    return Unknown("CONNECTION_LOST" if broken else "APPRISE")


class _LogCapture(logging.Handler):
    """Collects what Apprise logs in one thread, while the context is open there."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._here = threading.local()

    def __enter__(self) -> list[tuple[int, str]]:
        captured: list[tuple[int, str]] = []
        self._here.captured = captured
        return captured

    def __exit__(self, *_: object) -> None:
        del self._here.captured

    def emit(self, record: logging.LogRecord) -> None:
        captured = getattr(self._here, "captured", None)
        if captured is not None:
            captured.append((record.levelno, record.getMessage()))


_LOG_CAPTURE = _LogCapture()
_APPRISE_LOG = logging.getLogger("apprise")
_APPRISE_LOG.addHandler(_LOG_CAPTURE)
_APPRISE_LOG.setLevel(logging.DEBUG)
# It writes down numbers and texts: they end here, and never reach our own log.
_APPRISE_LOG.propagate = False
