"""Texts that somebody wrote to have a channel, a page or a log take them for more than text."""

from __future__ import annotations

from hypothesis import strategies as st

# Each of them got through somewhere, or is the kind of thing that does.
KNOWN = (
    "=?utf-8?q?a=0D=0AReply-To:_x@y.example?=",
    "=?utf-8?q?a=0D=0A=0D=0A<script>alert(1)</script>?=",
    "=?utf-8?b?YQ0KQmNjOiBldmVAZXhhbXBsZS5vcmcNCg0KYm9keQ==?=",
    "sale =?utf-8?q?=0D=0A?= =?utf-8?q?Bcc:_eve@example.org?= today",
    "=?utf-8?q?" + "=0D=0A" * 40 + "?=",
    "=?utf-8?q?never ended",
    "가격 =?utf-8?q?=0D=0ABcc:_eve@example.org?=",
    "x\r\nBcc: eve@example.org\r\n\r\nbody",
    "x\nBcc: eve@example.org",
    "x\rBcc: eve@example.org",
    "x\x0bBcc: a\x0cb\x1cc\x85d\u2028e\u2029f",
    "\r\n.\r\nMAIL FROM:<eve@example.org>\r\n",
    "end\n.\nQUIT",
    "x" * 1500,
    "한" * 400,
    "a " * 600,
    "\x00\x08\x1b[31m\x7f\x9b",
    "half a pair \ud83d of surrogates",
    '"quoted", (comment) <eve@example.org>; \\',
    "</title></h2><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% for x in range(9) %}{{ x }}{% endfor %}",
    "data: x\n\nevent: withdrawn\nid: 9\ndata: {}\n\n",
    '", "token": "another", "x": "',
    "&To=%2B15005550001&Body=other",
    "",
    " ",
)
_PIECES = (
    "\r\n", "\n", "\r", "\t", " ", "\x00", "\x0b", "\x85", "\u2028", "\ud800", "=?", "?=", "=?utf-8?q?", "=?utf-8?b?",
    "=0D=0A", "DQo=", "_", "=", "?", ".", ",", '"', "\\", "<", ">", "(", "@", ":", "Bcc: eve@example.org", "x" * 70,
    "한", "😀",
)  # fmt: skip

hostile_texts = st.one_of(
    st.sampled_from(KNOWN),
    st.lists(st.sampled_from(_PIECES) | st.text(max_size=8), max_size=12).map("".join),
)
