"""Templates: the title and body of a notice by type and locale, from small text files.

The first line of `texts/LOCALE/TYPE.txt` is the title, the rest the body, both Jinja2. A folder `texts` in the directory
Bongsu runs in (beside bongsu.toml) comes before the one in the package, file by file. All are read once, at the start; a bad
one is reported when it is used, and by `bongsu doctor`.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bongsu.errors import BadTemplate
from bongsu.model import Event, Notice
from bongsu.render import particles

DEFAULT_LOCALE = "ko"
SHIPPED = Path(__file__).parent / "texts"
FOLDER = Path("texts")
WORDS = "words.toml"

# A folder called texts may have other content: only subfolders named like a locale are read.
_LOCALE = re.compile(r"[a-z]{2,3}(-[a-z0-9]{2,8})*")


# How many notices a digest has gathered, and the names of its newest actors, newest first.
Gathered = tuple[int, Sequence[str | None]]


@dataclass(frozen=True)
class Rendered:
    """The text of one message."""

    title: str
    body: str


class Templates:
    """All templates, compiled."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """A file of a later folder replaces the same file of an earlier one."""
        self._texts: dict[tuple[str, str], _Text] = {}
        self._words: dict[str, dict[str, str]] = {}
        self._unreadable: list[str] = []
        for folder in folders:
            for locale, file in _files(folder):
                self._add(locale, file)

    @classmethod
    def load(cls, own: Path = FOLDER) -> Templates:
        return cls([SHIPPED, own])

    def render(self, name: str, locale: str | None, context: Mapping[str, Any]) -> Rendered:
        """Title and body of a type for a member of that locale. Raises BadTemplate naming the file and the cause."""
        found_locale = self.locale_for(name, locale)
        text = self._texts[name, found_locale]
        named = {key: value for key, value in context.items() if value or key not in ("product", "actor")}
        return text.fill_in({**self._words_for(found_locale), **named})

    def phrase(
        self,
        notice: Notice,
        event: Event,
        locale: str | None,
        product_name: str | None = None,
        gathered: Gathered | None = None,
    ) -> Rendered:
        """The notice's own title and body as they are, else those of its type's template."""
        if notice.title is not None and notice.body is not None:
            return Rendered(notice.title, notice.body)
        made = self.render(notice.type.name, locale, context_of(notice, event, product_name, gathered))
        return Rendered(
            made.title if notice.title is None else notice.title, made.body if notice.body is None else notice.body
        )

    def locale_for(self, name: str, locale: str | None) -> str:
        """The locale whose text a member of that locale reads: the nearest there is, so that one text serves many."""
        for candidate in (*_nearer_first(locale or ""), DEFAULT_LOCALE):
            if (name, candidate) in self._texts:
                return candidate
        # Not even in the default locale: a user's own types may have templates in another language only.
        for known, candidate in sorted(self._texts):
            if known == name:
                return candidate
        raise BadTemplate(f"{name} has no template: write {FOLDER / DEFAULT_LOCALE / name}.txt, the title in its first line")

    def check(self) -> list[str]:
        """What is wrong with the templates, one line each. Built-in types are rendered with what their rules provide."""
        problems = list(self._unreadable)
        for (name, locale), text in sorted(self._texts.items()):
            for sample in SAMPLES.get(name, [None]):
                try:
                    text.raise_if_bad() if sample is None else self.render(name, locale, sample)
                except BadTemplate as error:
                    problems.append(error.detail)
        return list(dict.fromkeys(problems))

    @property
    def own(self) -> list[str]:
        """The user's own files."""
        return sorted(str(text.file) for text in self._texts.values() if SHIPPED not in text.file.parents)

    def _words_for(self, locale: str) -> dict[str, str]:
        words: dict[str, str] = {}
        for candidate in _nearer_first(locale):
            words = self._words.get(candidate, {}) | words
        return words

    def _add(self, locale: str, file: Path) -> None:
        if file.suffix == ".txt":
            self._texts[file.stem, locale] = _Text.read(file)
        elif file.name == WORDS:
            try:
                words = tomllib.loads(file.read_text(encoding="utf-8-sig"))
            except (OSError, ValueError) as error:
                self._unreadable.append(f"{file}: {error}")
            else:
                self._words[locale] = self._words.get(locale, {}) | words


def context_of(
    notice: Notice, event: Event, product_name: str | None = None, gathered: Gathered | None = None
) -> dict[str, Any]:
    """The variables of a template: the event's payload, overridden by the notice's data, overridden by our own names.

    Types with a digest have `count`, `others` and `actors` as well, also of what is not gathered.
    """
    given = {**event.payload, **notice.data}
    actor_name = given.get("actorName") if isinstance(given.get("actorName"), str) else None
    own = {} if notice.type.digest is None else digest_names(*(gathered or (1, [actor_name])))
    return given | {
        "eventType": event.event_type,
        "actorId": event.actor_id,
        "targetId": event.target_id,
        "refId": notice.ref_id,
        "product": product_name,
        "actor": actor_name,
        "payload": event.payload,
        "data": notice.data,
        **own,
    }


def digest_names(count: int, names: Sequence[str | None]) -> dict[str, Any]:
    """What a template says of a digest: how many it has gathered, how many of them beside the newest, and the names of the
    newest actors that are known, newest first. `actor` is the newest, if the name is known."""
    known = [name for name in names if name]
    return {"count": count, "others": count - 1, "actors": known, "actor": names[0] if names else None}


def number(value: object) -> str:
    """12000 is 12,000; 1234.50 is 1,234.5; what is not a number stays as it is."""
    match value:
        case bool():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            exact = f"{Decimal(repr(value)):,f}"
            return exact.rstrip("0").rstrip(".") if "." in exact else exact
    return str(value)


@dataclass(frozen=True)
class _Text:
    """One file: its two templates, or what is wrong with it."""

    file: Path
    title: Template | None = None
    body: Template | None = None
    problem: str = ""

    @classmethod
    def read(cls, file: Path) -> _Text:
        try:
            title, _, body = file.read_text(encoding="utf-8-sig").partition("\n")
            if not title.strip():
                return cls(file, problem=f"{file}: its first line is empty, and that is the title")
            # The line break in front keeps line numbers in error messages right.
            return cls(file, _compiled(title), _compiled("\n" + body))
        except TemplateSyntaxError as error:
            return cls(file, problem=f"{file}, line {error.lineno}: {error.message}")
        except (OSError, ValueError, TemplateError) as error:
            return cls(file, problem=f"{file}: {error}")

    def raise_if_bad(self) -> None:
        if self.problem:
            raise BadTemplate(self.problem)

    def fill_in(self, context: Mapping[str, Any]) -> Rendered:
        self.raise_if_bad()
        assert self.title is not None
        assert self.body is not None
        try:
            return Rendered(" ".join(self.title.render(context).split()), self.body.render(context).strip())
        except UndefinedError as error:
            cure = "write {{ name|default('…') }} for what may be missing"
            raise BadTemplate(f"{self.file}: {error.message}: {cure}") from None
        except Exception as error:
            raise BadTemplate(f"{self.file}: {type(error).__name__}: {error}") from error


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.glob("*/*")):
        locale = _normal(file.parent.name)
        if _LOCALE.fullmatch(locale):
            yield locale, file


def _normal(locale: str) -> str:
    return locale.replace("_", "-").lower()


def _nearer_first(locale: str) -> Iterator[str]:
    """zh-Hant-TW, zh-Hant, zh."""
    parts = _normal(locale).split("-")
    for length in range(len(parts), 0, -1):
        yield "-".join(parts[:length])


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
    environment.filters["number"] = number
    for filter_ in (particles.iga, particles.eul, particles.eun, particles.wa, particles.euro):
        environment.filters[filter_.__name__] = filter_
    return environment


# Texts are plain: push, SMS and inbox show them as they are, and the mail channel escapes what it puts into HTML.
_environment = _make_environment()


# Each role that renders loads the templates for itself, and to compile the built-in ones takes 25 ms. More than these are a
# user's own.
@functools.lru_cache(maxsize=256)
def _compiled(source: str) -> Template:
    return _environment.from_string(source)


# What the built-in rules provide for each type: the minimum, and everything.
_LEAST: dict[str, Any] = {
    "eventType": "event.type",
    "actorId": None,
    "targetId": None,
    "refId": None,
    "product": None,
    "actor": None,
    "payload": {},
    "data": {},
}
_NAMED = _LEAST | {"actorId": "m-1", "targetId": "m-2", "refId": "42", "product": "연필", "actor": "지민"}


def _samples(**data: Any) -> list[dict[str, Any]]:
    return [context | data | {"data": data} for context in (_LEAST, _NAMED)]


SAMPLES = {
    "PRICE_DROP": _samples(previousPrice=12000, currentPrice=9900, dropPercentage=17),
    "BACK_IN_STOCK": _samples(currentStock=3),
    "RECOMMENDATION": [
        sample for names in ([], ["연필", "지우개"]) for sample in _samples(productIds=["p-1", "p-2"], productNames=names)
    ],
    "FOLLOW": _samples(),
    "POST_LIKE": [
        sample | digest_names(count, names)
        for count, names in ((1, [None]), (1, ["지민"]), (2, ["지민", "Alice"]), (2, [None, None]), (12_000, ["지민"]))
        for sample in _samples()
    ],
    "POST_COMMENT": _samples(),
    # When it is decided, and when it is sent.
    "CHAT_MESSAGE": [
        sample | {"room": "여행", "count": count, "others": count - 1} | said
        for count in (1, 12_000)
        for said in ({}, {"sender": "m-1", "message": "안녕"})
        for sample in _samples()
    ],
    "VOTE_CLOSED": _samples(memberIds=["m-2"]),
    "RESERVATION_CONFIRMED": _samples(),
}
