"""Korean particles: 이/가, 을/를, 은/는, 과/와, 으로/로 follow the sound a word ends in.

For Hangul it follows from the last letter; digits, units and Latin words are read as Koreans read them aloud. Where it
cannot be known (other scripts, only symbols), both forms are written: 이(가).
"""

from __future__ import annotations

import re
import unicodedata
from enum import Enum

# Longer than any word or number that is read aloud.
LONGEST_WORD = 64


class Ending(Enum):
    """What a word sounds like at its end."""

    VOWEL = "vowel"
    # ㄹ is a consonant to every particle but 으로.
    RIEUL = "ㄹ"
    CONSONANT = "consonant"
    UNKNOWN = "unknown"


def iga(word: object) -> str:
    return _join(word, "이", "가", "이(가)")


def eul(word: object) -> str:
    return _join(word, "을", "를", "을(를)")


def eun(word: object) -> str:
    return _join(word, "은", "는", "은(는)")


def wa(word: object) -> str:
    return _join(word, "과", "와", "와(과)")


def euro(word: object) -> str:
    return _join(word, "으로", "로", "(으)로", after_rieul="로")


def _join(word: object, after_consonant: str, after_vowel: str, unsure: str, after_rieul: str | None = None) -> str:
    text = str(word)
    match ending(text):
        case Ending.VOWEL:
            return text + after_vowel
        case Ending.RIEUL:
            return text + (after_rieul or after_consonant)
        case Ending.CONSONANT:
            return text + after_consonant
        case Ending.UNKNOWN:
            return text + unsure


# A bracket at the end is not read: the particle goes with the word before it.
_BRACKET = re.compile(r"(?<=\S)\s*[(\[（［][^()\[\]（）［］]*[)\]）］]\s*$")
_NUMBER = re.compile(r"(?P<whole>[0-9]+(?:,[0-9]{3})*)(?P<fraction>\.[0-9]+)?$")
_UNIT = re.compile(r"[0-9]\s?(kg|mg|g|ml|l|km|cm|mm|m)$", re.IGNORECASE)
_LATIN = re.compile(r"[A-Za-z]+$")

# 영 일 이 삼 사 오 육 칠 팔 구
_V, _R, _C = Ending.VOWEL, Ending.RIEUL, Ending.CONSONANT
_DIGITS = dict(zip("0123456789", (_C, _R, _V, _C, _V, _V, _C, _R, _R, _V), strict=True))
# 십 백 천, and every four zeros 만 억 조 경 해: of all these only 조 and 해 end in a vowel.
_OPEN_MYRIADS = frozenset({3, 5})
# 퍼센트, 플러스, 도, 도; 샵
_SYMBOLS = {"%": Ending.VOWEL, "+": Ending.VOWEL, "℃": Ending.VOWEL, "°": Ending.VOWEL, "#": Ending.CONSONANT}
# 그램; the others are 리터 and 미터.
_GRAMS = frozenset({"g", "kg", "mg"})
# 엘, 알; 엠, 엔. The names of all other letters end in a vowel.
_LETTERS = {"l": Ending.RIEUL, "r": Ending.RIEUL, "m": Ending.CONSONANT, "n": Ending.CONSONANT}
# 애플, 세일, 몰
_RIEUL_WORD = re.compile(r"(l|le)$")
# 폼, 폰, 게임, 라인, 쇼핑, 슬랙, 북; 컵, 매직, 랩, 태블릿: one short vowel before the stop. After two it is 위크, 시트.
_CONSONANT_WORD = re.compile(r"(m|n|ng|me|ne|ck|ook|(^|[^aeiou])[aeiouy][bckpt])$")


def ending(text: str) -> Ending:
    """What the text sounds like at its end, read aloud in Korean."""
    spoken = _spoken(unicodedata.normalize("NFC", text))
    for read in (_of_symbol, _of_hangul, _of_number, _of_unit, _of_latin):
        if spoken and (found := read(spoken)):
            return found
    return Ending.UNKNOWN


def _spoken(text: str) -> str:
    """The text up to the last character that is read aloud."""
    text = _BRACKET.sub("", text)
    end = len(text)
    while end and not (text[end - 1].isalnum() or text[end - 1] in _SYMBOLS):
        end -= 1
    # The last word is all that counts; a bound keeps the patterns fast on long input.
    return text[max(0, end - LONGEST_WORD) : end]


def _of_symbol(spoken: str) -> Ending | None:
    return _SYMBOLS.get(spoken[-1])


def _of_hangul(spoken: str) -> Ending | None:
    last = spoken[-1]
    if "가" <= last <= "힣":
        # The last of a syllable's three parts is one of 28: 0 is none, 8 is ㄹ.
        return {0: _V, 8: _R}.get((ord(last) - ord("가")) % 28, _C)
    if "ㄱ" <= last <= "ㅣ":  # a letter by itself is read by its name: 기역, 리을; 아, 야
        return _V if last >= "ㅏ" else _R if last == "ㄹ" else _C
    return None


def _of_number(spoken: str) -> Ending | None:
    number = _NUMBER.search(spoken)
    if number is None:
        return None
    if number["fraction"]:
        return _DIGITS[number["fraction"][-1]]  # read digit by digit: 일 점 오
    whole = number["whole"].replace(",", "")
    significant = whole.rstrip("0")
    zeros = len(whole) - len(significant)
    if not significant or not zeros:
        return _DIGITS[whole[-1]]
    return _V if zeros // 4 in _OPEN_MYRIADS else _C


def _of_unit(spoken: str) -> Ending | None:
    unit = _UNIT.search(spoken)
    return unit and (_C if unit[1].lower() in _GRAMS else _V)


def _of_latin(spoken: str) -> Ending | None:
    """Few capitals, or capitals without a vowel, are spelt out (LG, TV, BTS); the rest is read as a word."""
    latin = _LATIN.search(spoken)
    if latin is None:
        return None
    word = latin[0]
    if len(word) == 1 or (word.isupper() and (len(word) <= 3 or not set(word) & set("AEIOUY"))):
        return _LETTERS.get(word[-1].lower(), _V)
    lower = word.lower()
    return _R if _RIEUL_WORD.search(lower) else _C if _CONSONANT_WORD.search(lower) else _V
