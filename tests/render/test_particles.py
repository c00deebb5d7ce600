"""Korean particles, against the letters taken apart and the numbers spelt out."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bongsu.render.particles import Ending, ending, eul, eun, euro, iga, wa

syllables = st.characters(min_codepoint=ord("가"), max_codepoint=ord("힣"))


def final_of(syllable: str) -> str:
    """The final consonant by Unicode's own decomposition: "" for none."""
    return unicodedata.normalize("NFD", syllable)[2:]


def spelt_out(number: int) -> str:
    """한 수를 한글로: 12000 is 만 이천, group by group of four."""
    if number == 0:
        return "영"
    digits = ("", *"일이삼사오육칠팔구")
    text = ""
    for myriad in ("", *"만억조경해"):
        number, group = divmod(number, 10_000)
        places = [(digits[group // 10**power % 10], ("", "십", "백", "천")[power]) for power in (3, 2, 1, 0)]
        said = "".join(digit + place for digit, place in places if digit)
        text = (said + myriad if said else "") + text
    return text


@given(st.text(), syllables)
def test_after_hangul_the_final_consonant_decides(start: str, last: str) -> None:
    word, final = start + last, final_of(last)
    assert iga(word) == word + ("이" if final else "가")
    assert eul(word) == word + ("을" if final else "를")
    assert eun(word) == word + ("은" if final else "는")
    assert wa(word) == word + ("과" if final else "와")
    assert euro(word) == word + ("으로" if final not in ("", "\u11af") else "로")


@given(syllables)
def test_letters_stored_apart_count_as_whole_ones(syllable: str) -> None:
    assert ending(unicodedata.normalize("NFD", syllable)) is ending(syllable)


@given(st.one_of(st.integers(0, 10**24 - 1), st.builds(lambda a, b: a * 10**b, st.integers(1, 999), st.integers(0, 20))))
def test_a_number_ends_as_it_does_when_spelt_out(number: int) -> None:
    expected = ending(spelt_out(number))
    assert ending(str(number)) is ending(f"{number:,}") is ending(f"제품 {number}") is expected


@given(st.text())
def test_any_word_gets_one_particle_and_keeps_its_letters(word: str) -> None:
    assert iga(word) in (f"{word}이", f"{word}가", f"{word}이(가)")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("상품", "상품이"),
        ("3", "3이"),
        ("갤럭시 2", "갤럭시 2가"),
        ("1.5", "1.5가"),
        ("1.50", "1.50이"),
        ("L", "L이"),
        ("R", "R이"),
        ("M", "M이"),
        ("S", "S가"),
        ("LG", "LG가"),
        ("TV", "TV가"),
        ("BTS", "BTS가"),
        ("Apple", "Apple이"),
        ("iPhone", "iPhone이"),
        ("MacBook", "MacBook이"),
        ("Slack", "Slack이"),
        ("Galaxy", "Galaxy가"),
        ("Computer", "Computer가"),
        ("Nike", "Nike가"),
        ("Desk", "Desk가"),
        ("SAMSUNG", "SAMSUNG이"),
        ("Galaxy S24+", "Galaxy S24+가"),
        ("쌀 10kg", "쌀 10kg이"),
        ("우유 500ml", "우유 500ml가"),
        ("30%", "30%가"),
        ("아이패드 (64색)", "아이패드 (64색)가"),
        ("(주)봉수", "(주)봉수가"),
        ("'책'", "'책'이"),
        ("책!", "책!이"),
        ("ㅋㅋ", "ㅋㅋ이"),
        ("日本", "日本이(가)"),
        ("★", "★이(가)"),
        ("", "이(가)"),
    ],
)
def test_words_are_read_as_koreans_read_them(word: str, expected: str) -> None:
    assert iga(word) == expected


def test_where_nobody_can_know_both_forms_are_written() -> None:
    assert [add("★") for add in (iga, eul, eun, wa, euro)] == ["★이(가)", "★을(를)", "★은(는)", "★와(과)", "★(으)로"]


@pytest.mark.parametrize(("word", "expected"), [("연필", "로"), ("1", "로"), ("L", "로"), ("Seoul", "로"), ("3", "으로")])
def test_rieul_goes_with_ro(word: str, expected: str) -> None:
    assert euro(word) == word + expected


@pytest.mark.parametrize("piece", ["1", "a", "(", "( ", " ", "!", "1a", "()", "a ("])
def test_a_name_of_any_length_is_read(piece: str) -> None:
    # Without their bound the patterns would not come to an end before the test's own time limit.
    assert ending(piece * 1_000_000 + "日") is Ending.UNKNOWN
