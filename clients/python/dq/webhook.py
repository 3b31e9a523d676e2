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
    """Verifies callbacks with the secrets of a topic.

    While a secret is rotated, give the new one and the old one: a signature of either is enough. A request whose
    timestamp differs by more than `tolerance` seconds from this host's clock is refused.
    """

    def __init__(self, *secrets: str, tolerance: int = 300) -> None:
        if not secrets:
            raise ValueError("a webhook needs a secret")
        self._keys = [_key(secret) for secret in secrets]
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


def _key(secret: str) -> bytes:
    if not secret.startswith("whsec_"):
        return secret.encode()
    encoded = secret[len("whsec_"):].rstrip("=")
    return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)


def _signature(key: bytes, signed: bytes) -> bytes:
    return b"v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())


def _is_one_of(wanted: bytes, given: Sequence[bytes]) -> bool:
    return any([hmac.compare_digest(wanted, signature) for signature in given])
