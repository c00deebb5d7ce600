"""A service account of our own making, whose tokens come from the simulator."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


@cache
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def service_account(token_uri: str) -> dict[str, str]:
    return {
        "type": "service_account",
        "project_id": "shop",
        "private_key_id": "1",
        "private_key": private_key(),
        "client_email": "push@shop.example",
        "token_uri": token_uri,
    }


def write_account(folder: Path, token_uri: str) -> str:
    file = folder / "account.json"
    file.write_text(json.dumps(service_account(token_uri)))
    return str(file)
