"""What notices say: the shipped texts, the user's own over them, and what is wrong with a text said before it hurts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bongsu.errors import BadTemplate
from bongsu.model import Event, Everyone, Notice, NoticeType
from bongsu.render.templates import SAMPLES, SHIPPED, Rendered, Templates, number
from bongsu.rules import catalogue
from bongsu.settings import Settings
from tests.support.hostile import KNOWN
from tests.support.processes import BONGSU

RULES = catalogue(Settings())
# The member's own words say it: title and body come with the event.
WITHOUT_TEXT = {"NOTICE"}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "texts"


def write(folder: Path, name: str, text: str) -> Templates:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return Templates.load(folder)


def phrase(event: Event, locale: str | None = "ko", product_name: str | None = None) -> Rendered:
    (notice,) = RULES.detect(event)
    return Templates.load(Path("none")).phrase(notice, event, locale, product_name)


DROP = Event(event_type="product.price_changed", ref_id="p", payload={"previousPrice": 12000, "currentPrice": 9900})


@pytest.mark.parametrize(
    ("locale", "product_name", "title", "body"),
    [
        ("ko", "무선 이어폰", "가격이 떨어졌어요!", "무선 이어폰이 17% 할인 중입니다!"),
        ("ko", "사과", "가격이 떨어졌어요!", "사과가 17% 할인 중입니다!"),
        ("ko", None, "가격이 떨어졌어요!", "상품이 17% 할인 중입니다!"),
        ("en", "Pen", "The price has dropped!", "Good news: Pen is now 17% off!"),
        ("en", "", "The price has dropped!", "Good news: the product is now 17% off!"),
    ],
)
def test_a_price_drop_in_words(locale: str, product_name: str | None, title: str, body: str) -> None:
    assert phrase(DROP, locale, product_name) == Rendered(title, body)


@pytest.mark.parametrize(
    ("event_type", "payload", "title", "body"),
    [
        ("product.stock_changed", {"previousStock": 0, "currentStock": 1}, "재입고 알림", "상품이 다시 입고되었습니다!"),
        ("follow.created", {"actorName": "지민"}, "새 팔로워", "지민님이 회원님을 팔로우하기 시작했어요."),
        ("post.liked", {}, "좋아요", "다른 회원님이 회원님의 게시글을 좋아해요."),
        ("comment.created", {"actorName": "{{ x }}"}, "새 댓글", "{{ x }}님이 회원님의 게시글에 댓글을 남겼어요."),
        ("vote.closed", {"memberIds": ["b"]}, "투표가 마감되었어요", "투표 결과를 확인해 보세요."),
        ("reservation.confirmed", {}, "예약이 확정되었어요", "예약이 확정되었습니다. 예약 번호: 42"),
        ("notice.published", {"title": "a {{ b", "body": "{% c %}"}, "a {{ b", "{% c %}"),
    ],
)
def test_the_rest_of_the_catalogue_in_words(event_type: str, payload: dict[str, Any], title: str, body: str) -> None:
    event = Event(event_type=event_type, actor_id="a", target_id="b", ref_id="42", payload=payload)
    assert phrase(event) == Rendered(title, body)


def test_a_recommendation_in_words(own: Path) -> None:
    rendered = Templates.load(own).render("RECOMMENDATION", "ko", {"productNames": ["연필", "지우개"]})
    assert rendered == Rendered("오늘의 추천 상품", "연필, 지우개를 추천드려요!")


@pytest.mark.parametrize(
    ("locale", "names", "body"),
    [
        ("ko", ["연필"], "연필을 추천드려요!"),
        ("ko", ["사과", "Coffee Mug 3"], "사과, Coffee Mug 3을 추천드려요!"),
        ("ko", [], "상품을 추천드려요!"),
        ("en", ["Pencil", "Mug"], "We think you will like Pencil, Mug."),
        ("en", [], "We have found something that you may like."),
    ],
)
def test_a_recommendation_has_the_right_particle_and_does_without_names(locale: str, names: list[str], body: str) -> None:
    products = [{"productId": name, "productName": name} for name in names] or [{"productId": "p-1"}]
    event = Event(event_type="recommendation.ready", target_id="a", payload={"products": products})
    (notice,) = RULES.detect(event)
    assert Templates.load().phrase(notice, event, locale).body == body


def test_every_declared_type_has_its_texts_and_samples() -> None:
    expected = set(RULES.types) - WITHOUT_TEXT
    for locale in ("ko", "en"):
        assert {file.stem for file in (SHIPPED / locale).glob("*.txt")} == expected
    assert set(SAMPLES) == expected


def test_the_shipped_texts_are_in_order(own: Path) -> None:
    assert Templates.load(own).check() == []


@pytest.mark.parametrize(
    ("locale", "spoken"),
    [
        ("ko", "ko"),
        ("ko-KR", "ko"),
        ("en_US", "en"),
        ("EN", "en"),
        ("en-Latn-GB", "en"),
        ("fr", "ko"),
        (None, "ko"),
        ("", "ko"),
        ("../en", "ko"),
    ],
)
def test_a_member_reads_the_nearest_there_is(own: Path, locale: str | None, spoken: str) -> None:
    assert Templates.load(own).locale_for("FOLLOW", locale) == spoken


def test_a_nearer_locale_comes_first_and_inherits_the_words(own: Path) -> None:
    templates = write(own, "en_GB/PRICE_DROP.txt", "Down!\n{{ product }} for less")
    assert templates.render("PRICE_DROP", "en-GB", {"dropPercentage": 1}) == Rendered("Down!", "the product for less")
    assert templates.render("PRICE_DROP", "en-US", {"dropPercentage": 1}).title == "The price has dropped!"


def test_a_file_of_ones_own_takes_the_place_of_the_shipped_one(own: Path) -> None:
    text = "\ufeff지금 {{ product|eun }} {{ currentPrice|number }}원\r\n\r\n첫 줄\r\n둘째 줄\r\n"
    templates = write(own, "ko/PRICE_DROP.txt", text)
    assert templates.check() == []
    assert templates.own == [str(own / "ko" / "PRICE_DROP.txt")]
    rendered = templates.render("PRICE_DROP", "ko", {"currentPrice": 9900, "product": "책"})
    assert rendered == Rendered("지금 책은 9,900원", "첫 줄\n둘째 줄")
    assert templates.render("FOLLOW", "ko", {"actor": "지민"}).title == "새 팔로워"


def test_the_word_for_an_unknown_name_can_be_another(own: Path) -> None:
    templates = write(own, "ko/words.toml", 'product = "도서"')
    assert templates.render("BACK_IN_STOCK", "ko", {}).body == "도서가 다시 입고되었습니다!"
    assert templates.render("FOLLOW", "ko", {}).body.startswith("다른 회원님이")


def test_a_type_with_texts_in_one_other_language_speaks_that(own: Path) -> None:
    assert write(own, "ja/SHIPPED.txt", "発送\n本").render("SHIPPED", "ko", {}) == Rendered("発送", "本")


SHIPPED_TYPE = NoticeType("SHIPPED", ())


def test_a_text_speaks_of_payload_data_and_the_events_ids(own: Path) -> None:
    templates = write(own, "ko/SHIPPED.txt", "{{ refId }} {{ actorId }} {{ eventType }}\n{{ a }} {{ b }} {{ payload.b }}")
    event = Event(event_type="order.shipped", actor_id="x", ref_id="7", payload={"a": 1, "b": 2})
    notice = Notice(SHIPPED_TYPE, Everyone(), ref_id="9", data={"b": 3})
    assert templates.phrase(notice, event, None) == Rendered("9 x order.shipped", "1 3 2")


@pytest.mark.parametrize("text", KNOWN)
def test_a_variable_is_text_and_not_a_template(own: Path, text: str) -> None:
    rendered = write(own, "ko/SAID.txt", "<{{ said }}>\n{{ said }}").render("SAID", "ko", {"said": text})
    assert rendered == Rendered(" ".join(f"<{text}>".split()), text.strip())


def test_a_notices_own_words_stand_as_they_are(own: Path) -> None:
    templates = write(own, "ko/SHIPPED.txt", "title\nbody")
    event = Event(event_type="order.shipped")
    both = Notice(SHIPPED_TYPE, Everyone(), title="{{ 7*7 }} <b>", body="")
    assert templates.phrase(both, event, "ko") == Rendered("{{ 7*7 }} <b>", "")
    assert templates.phrase(Notice(SHIPPED_TYPE, Everyone(), title="{{ x"), event, "ko") == Rendered("{{ x", "body")
    # And no text is needed for what says all by itself.
    unknown = Notice(NoticeType("MARKETING", ()), Everyone(), title="t", body="b")
    assert templates.phrase(unknown, event, "ko") == Rendered("t", "b")


def test_a_type_without_text_says_which_file_to_write(own: Path) -> None:
    with pytest.raises(BadTemplate, match=r"^SHIPPED has no template: write texts/ko/SHIPPED\.txt, the title in its first"):
        Templates.load(own).render("SHIPPED", "en", {})
    with pytest.raises(BadTemplate, match="has no template"):
        Templates.load(own).render("../../../etc/passwd", "ko", {})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("t\n\n{{ product|iga }", ", line 3: unexpected '}'"),
        ("{% if %}\n", ", line 1: Expected an expression"),
        ("t\n{{ product|nosuch }}", ", line 2: No filter named 'nosuch'"),
        ("t\n{{ brand }}", ": 'brand' is undefined: write {{ name|default('…') }}"),
        ("t\n{{ brand|iga }}", ": 'brand' is undefined"),
        ("t\n{{ brand|number }}", ": 'brand' is undefined"),
        ("t\n{{ 1 // 0 }}", ": ZeroDivisionError"),
        ("t\n{{ ''.__class__.__mro__ }}", ": SecurityError: access to attribute '__class__' of 'str'"),
        ("t\n{% set _ = data.update(x=1) %}", ": SecurityError"),
        ("t\n{% include 'words.toml' %}", ": TypeError: no loader"),
        ("\n\nbody", ": its first line is empty, and that is the title"),
    ],
)
def test_a_bad_text_fails_with_its_file_and_cause_and_the_check_finds_it_before(own: Path, text: str, problem: str) -> None:
    templates = write(own, "ko/PRICE_DROP.txt", text)
    (found,) = templates.check()
    assert found.startswith(f"{own / 'ko' / 'PRICE_DROP.txt'}{problem}")
    with pytest.raises(BadTemplate) as caught:
        templates.render("PRICE_DROP", "ko", SAMPLES["PRICE_DROP"][0])
    assert str(caught.value).startswith(found)
    # The others are none the worse for it.
    assert templates.render("PRICE_DROP", "en", {"dropPercentage": 1}).title == "The price has dropped!"


def test_a_text_of_ones_own_type_is_checked_for_its_form(own: Path) -> None:
    assert write(own, "ko/SHIPPED.txt", "{{ anything }}\n{{ at.all }}").check() == []
    assert len(write(own, "ko/SHIPPED.txt", "{{ anything").check()) == 1


def test_a_new_language_needs_its_words(own: Path) -> None:
    (problem,) = write(own, "ja/PRICE_DROP.txt", "値下げ\n{{ product }}").check()
    assert "ja/PRICE_DROP.txt: 'product' is undefined" in problem
    assert write(own, "ja/words.toml", 'product = "商品"').check() == []


def test_files_that_cannot_be_read_are_found(own: Path) -> None:
    assert "words.toml: " in write(own, "ko/words.toml", "product = ").check()[0]
    (own / "ko" / "words.toml").unlink()
    (own / "ko" / "FOLLOW.txt").write_bytes(b"\xff\xfe")
    assert "FOLLOW.txt: 'utf-8' codec can't decode" in Templates.load(own).check()[0]


def test_a_folder_of_another_meaning_is_left_alone(own: Path) -> None:
    assert write(own, "corpus/PRICE_DROP.txt", "{{").check() == []
    assert write(own, "ko/README.md", "{{").check() == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (12000, "12,000"),
        (12000.0, "12,000"),
        (1234.5, "1,234.5"),
        (1e15, "1,000,000,000,000,000"),
        (-1200, "-1,200"),
        (0, "0"),
        (100.0, "100"),
        ("12000", "12000"),
        (True, "True"),
    ],
)
def test_numbers_have_thousands_separators(value: object, expected: str) -> None:
    assert number(value) == expected


def doctor(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {"BONGSU_DATA_DIR": str(folder), "COLUMNS": "300"}
    command = [*BONGSU, "doctor"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_doctor_finds_a_bad_text(tmp_path: Path, own: Path) -> None:
    write(own, "ko/FOLLOW.txt", "{{ nobody[0] }}\nbody")
    ill = doctor(tmp_path)
    assert ill.returncode == 1
    assert "texts/ko/FOLLOW.txt: 'nobody' is undefined: write {{ name|default" in ill.stdout
    write(own, "ko/FOLLOW.txt", "{{ actor }}\nbody")
    well = doctor(tmp_path)
    assert well.returncode == 0
    assert "yours are texts/ko/FOLLOW.txt" in well.stdout
