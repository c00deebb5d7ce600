"""One frozen Settings, read once at the start: BONGSU_* from the environment, then bongsu.toml, then the defaults."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from bongsu.errors import BadSettings
from bongsu.model.base import Cron, Zone
from bongsu.settings.checks import (
    Addresses,
    Count,
    CounterTargets,
    Days,
    ExistingFile,
    HttpUrl,
    Listed,
    Mailbox,
    NamedUrl,
    NamedUrls,
    Origins,
    RabbitmqUrl,
    RedisUrl,
    Seconds,
    SmsTemplate,
    SmsUrl,
    SmtpUrl,
    StoreUrl,
    split_named_urls,
)

PREFIX = "BONGSU_"
FILE = Path("bongsu.toml")


# Validated, so that a deployment can be prepared, but without effect: the features that use them do not exist yet.
NOT_USED_YET = frozenset(
    {
        "kafka_servers", "schema_registry_url", "kafka_format", "transport", "opensearch_url",
    }
)  # fmt: skip


class Retention(NamedTuple):
    """For how many days each kind is kept."""

    notifications: int
    deliveries: int
    suppressions: int
    events: int
    runs: int
    audit: int
    # 0: for ever.
    chat: int


class Settings(BaseModel):
    """All settings. An unknown name or a bad value stops the start with one line."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    data_dir: Path = Path(".bongsu")
    database_url: StoreUrl = ""
    redis_url: RedisUrl = ""
    kafka_servers: Addresses = ""
    schema_registry_url: HttpUrl = ""
    kafka_format: Literal["avro", "json"] = "avro"
    transport: Literal["store", "kafka"] = "store"
    rabbitmq_url: RabbitmqUrl = ""
    outbox_urls: NamedUrls = ""
    opensearch_url: HttpUrl = ""
    fcm_project: str = ""
    fcm_credentials: ExistingFile = ""
    fcm_url: HttpUrl = ""
    smtp_url: SmtpUrl = ""
    email_from: Mailbox = ""
    sms_url: SmsUrl = ""
    sms_from: str = ""
    sms_template: SmsTemplate = Field("", repr=False)
    recommendation_url: HttpUrl = ""
    jwt_secret: Annotated[Listed, Field(repr=False)] = ""
    jwks_url: HttpUrl = ""
    jwt_issuer: str = ""
    jwt_audience: Listed = ""
    api_keys: Annotated[Listed, Field(repr=False)] = ""
    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    cors_origins: Origins = ""
    # Below 4 KB the cookies and tokens of ordinary requests would be refused.
    max_header_bytes: int = Field(32_768, ge=4_096, le=1_048_576)
    max_headers: int = Field(100, ge=20, le=1_000)
    request_timeout_seconds: Seconds = 30
    keep_alive_seconds: Seconds = 5
    max_connections_per_address: int = Field(1_000, ge=0)
    timezone: Zone = "Asia/Seoul"
    price_drop_threshold: float = Field(10, ge=0, le=100, allow_inf_nan=False)
    interested_user_days: Days = 7
    cart_user_days: Days = 30
    duplicate_hours: float = Field(1, ge=0, le=876_000, allow_inf_nan=False)
    daily_limit: int = Field(10, ge=0, le=2**31 - 1)
    max_retries: int = Field(3, ge=0)
    retry_base_seconds: Seconds = 1
    poll_seconds: Seconds = 1
    send_timeout_seconds: Seconds = 15
    lease_seconds: Seconds = 60
    audience_timeout_seconds: Seconds = 30
    retention_days: Days = 30
    notification_retention_days: Days | None = None
    delivery_retention_days: Days | None = None
    suppression_retention_days: Days | None = None
    event_retention_days: Days | None = None
    run_retention_days: Days | None = None
    # Who requested what. Asked about later than anything else.
    audit_retention_days: Days = 365
    # What people wrote to each other is theirs to look up: kept for ever (0), unless it is decided otherwise.
    chat_retention_days: int = Field(0, ge=0, le=36_500)
    retention_cron: Cron = "0 4 * * *"
    stale_device_days: Days = 60
    drop_stale_devices: bool = False
    recovery_cron: Cron = "*/5 9-21 * * *"
    recommendation_cron: Cron = "0 9 * * *"
    sse_max_connections: Count = 3
    sse_ping_seconds: Seconds = 20
    sse_timeout_seconds: Seconds = 1800
    sse_replay: int = Field(10, ge=0)
    counter_flush_seconds: Seconds = 3
    # By counter, a statement of the team's own that is run with each flush.
    counter_targets: CounterTargets = ""
    recommendation_enabled: bool = False
    recommendation_days: Days = 7
    recommendation_limit: Count = 3
    digest_seconds: float = Field(300, ge=0, le=604_800, allow_inf_nan=False)
    max_devices: Count = 20
    member_rate: float = Field(20, ge=0, allow_inf_nan=False)
    member_burst: Count = 100
    # A message is held, sent to every reader and shown as one.
    chat_max_bytes: int = Field(4096, ge=1, le=1_048_576)
    chat_rate: Count = 20
    # Long enough for readers who are there to read, short enough that a push is news. 0: no pushes.
    chat_push_seconds: float = Field(5, ge=0, le=3_600, allow_inf_nan=False)

    @model_validator(mode="after")
    def _sign_in_is_complete(self) -> Settings:
        # Firebase and others sign the tokens of all their customers with the same keys: the audience distinguishes them.
        given = {"jwks_url": self.jwks_url, "jwt_issuer": self.jwt_issuer, "jwt_audience": self.jwt_audience}
        if any(given.values()) and not all(given.values()):
            missing = " and ".join(PREFIX + name.upper() for name, value in given.items() if not value)
            raise PydanticCustomError(
                "sign_in", "BONGSU_JWKS_URL, BONGSU_JWT_ISSUER and BONGSU_JWT_AUDIENCE are set together: set {missing}",
                {"missing": missing},
            )  # fmt: skip
        return self

    @classmethod
    def load(cls, environment: Mapping[str, str] | None = None, file: Path = FILE) -> Settings:
        """Read file and environment; the environment wins. Raises BadSettings naming what to correct."""
        given = os.environ if environment is None else environment
        from_file = _read(file)
        from_environment = {
            name.removeprefix(PREFIX).lower(): value for name, value in given.items() if name.startswith(PREFIX)
        }
        sources = dict.fromkeys(from_file, str(file)) | dict.fromkeys(from_environment, "the environment")
        try:
            return cls.model_validate(from_file | from_environment)
        except ValidationError as error:
            raise BadSettings("; ".join(_describe(found, sources) for found in error.errors())) from None

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """A URL may have a password in it, or be a secret as a whole, as those of Apprise."""
        for name, value in super().__repr_args__():
            yield name, "[hidden]" if value and name is not None and "url" in name else value

    def create_data_dir(self) -> Path:
        """The data dir, created if missing; readable by its owner only, because it holds keys."""
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BadSettings(f"BONGSU_DATA_DIR {self.data_dir} cannot be created: {error.strerror}") from None
        return self.data_dir

    @property
    def is_embedded(self) -> bool:
        """Whether the store is a SQLite file, which this process may create, migrate and keep keys beside."""
        return not self.database_url.startswith("postgres")

    @property
    def without_effect(self) -> list[str]:
        """The names of settings that were given although nothing uses them yet."""
        return sorted(PREFIX + name.upper() for name in self.model_fields_set & NOT_USED_YET)

    @property
    def retention(self) -> Retention:
        days = self.retention_days
        return Retention(
            notifications=self.notification_retention_days or days,
            deliveries=self.delivery_retention_days or days,
            suppressions=self.suppression_retention_days or days,
            events=self.event_retention_days or days,
            runs=self.run_retention_days or days,
            audit=self.audit_retention_days,
            chat=self.chat_retention_days,
        )

    @property
    def targets(self) -> Mapping[str, str]:
        """The statements of BONGSU_COUNTER_TARGETS by counter."""
        statements: dict[str, str] = json.loads(self.counter_targets or "{}")
        return {counter: text.strip().rstrip(";") for counter, text in statements.items()}

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)

    @property
    def outboxes(self) -> list[NamedUrl]:
        """The databases of other services whose outboxes are relayed."""
        return split_named_urls(self.outbox_urls.strip())

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key.strip() for key in self.api_keys.split(",") if key.strip())

    @property
    def jwt_secrets(self) -> tuple[str, ...]:
        return tuple(secret.strip() for secret in self.jwt_secret.split(",") if secret.strip())

    @property
    def audiences(self) -> tuple[str, ...]:
        return tuple(audience.strip() for audience in self.jwt_audience.split(",") if audience.strip())

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(origin.strip() for origin in self.cors_origins.split(",") if origin.strip())


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSettings(f"{file} cannot be read: {error}") from None


def _describe(error: Any, sources: Mapping[str, str]) -> str:
    if not error["loc"]:  # about several settings, which it names itself
        return str(error["msg"])
    field = str(error["loc"][0])
    name, source = PREFIX + field.upper(), sources.get(field, "the environment")
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(field, Settings.model_fields, n=1)
        hint = f"did you mean {PREFIX}{near[0].upper()}?" if near else "remove it"
        return f"{name} in {source} is not a setting: {hint}"
    rule = error["msg"].removeprefix("Input ").replace("should be", "must be", 1)
    # A secret is never repeated, not even in an error about it.
    shown = "" if field in {"jwt_secret", "api_keys", "sms_template"} or "url" in field else f", not {error['input']!r}"
    return f"{name} in {source} {rule}{shown}"
