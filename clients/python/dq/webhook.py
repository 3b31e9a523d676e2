"""Verifies the callbacks of dq: signatures of Standard Webhooks (docs/CALLBACKS.md, "Signatures")."""

import base64
import hashlib
import hmac
import re
import time
from typing import Iterable, Optional, Protocol, Sequence, Tuple, Union


class Headers(Protocol):
    """The headers of a request, as a dict or in the form of a framework."""

    def items(self) -> Iterable[Tuple[str, str]]: ...


class WebhookError(Exception):
    """A request is not a callback of dq, or is too old. Answer it with 401."""


class Webhook:
    """Verifies callbacks with the secrets of a topic. A secret that dq itself would refuse is a ValueError.

    While a secret is rotated, give the new one and the old one: a signature of either is enough. A request whose
    timestamp differs by more than `tolerance` seconds from this host's clock is refused.
    """

    def __init__(self, *secrets: str, tolerance: int = 300) -> None:
        if not secrets:
            raise ValueError("a webhook needs a secret")
        self._keys = [_key(secret, f"secret {n}") for n, secret in enumerate(secrets, 1)]
        self._tolerance = tolerance

    def verify(self, headers: Headers, body: Union[bytes, str], now: Optional[float] = None) -> str:
        """Returns the webhook-id, by which to recognize repeats. Otherwise raises WebhookError.

        body is the body as it came, before it is decoded. It is empty if the method of the topic is GET.
        """
        found = {name.lower(): value for name, value in headers.items()}
        id, timestamp, signatures = (found.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
        if not id or not signatures:
            raise WebhookError("the request is not signed")
        if not re.fullmatch("[0-9]{1,15}", timestamp):
            raise WebhookError("webhook-timestamp is not a time")
        if abs((time.time() if now is None else now) - int(timestamp)) > self._tolerance:
            raise WebhookError("webhook-timestamp is too far from the clock of this host")
        signed = f"{id}.{timestamp}.".encode() + (body.encode() if isinstance(body, str) else body)
        given = [signature.encode() for signature in signatures.split(" ")]
        if not any([_is_one_of(_signature(key, signed), given) for key in self._keys]):
            raise WebhookError("no signature is valid")
        return id


def _key(secret: str, name: str) -> bytes:
    """Returns the key of a secret. An error names the secret, and does not show it."""
    if secret.startswith(("whsk_", "whpk_")):
        raise ValueError(f"{name} is a key of an asymmetric signature, which dq does not use")
    if not secret.startswith("whsec_"):
        key = secret.encode(errors="replace")
        if len(key) < 8:
            raise ValueError(f"{name} has {len(key)} bytes, and needs at least 8")
        return key
    encoded = secret[len("whsec_"):].rstrip("=")
    if not re.fullmatch("[A-Za-z0-9+/]*", encoded) or len(encoded) % 4 == 1:
        raise ValueError(f"{name} has no base64 after whsec_")
    key = base64.b64decode(encoded + "=" * (-len(encoded) % 4))
    if not 24 <= len(key) <= 64:
        raise ValueError(f"{name} has {len(key)} bytes after whsec_, and needs 24 to 64")
    return key


def _signature(key: bytes, signed: bytes) -> bytes:
    return b"v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())


def _is_one_of(wanted: bytes, given: Sequence[bytes]) -> bool:
    return any([hmac.compare_digest(wanted, signature) for signature in given])
