"""Jobs as clients write and see them."""

import os
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Dict, List, Mapping, Optional, Sequence, TypedDict, Union

Span = Union[str, int, float, timedelta]
"""A duration: a text such as "30m", seconds, or a timedelta."""


@dataclass(frozen=True)
class NewJob:
    """A job to add. Fields that are None are not sent; docs/HTTP.md ("Jobs") says what each means.

    Without an id, the client makes one before its first try, so that a retry does not add a second job.
    """

    body: Any
    id: Optional[str] = None
    delay: Optional[Span] = None
    run_at: Union[datetime, str, int, None] = None
    priority: Union[str, int, None] = None
    on_conflict: Optional[str] = None
    max_attempts: Optional[int] = None
    ttr: Optional[Span] = None
    headers: Optional[Mapping[str, str]] = None
    tags: Optional[Sequence[str]] = None
    path: Optional[str] = None
    url: Optional[str] = None
    then: Any = None

    def to_json(self) -> Dict[str, Any]:
        """Returns the job as the API takes it, with an id."""
        fields = {
            "id": self.id, "delay": span(self.delay), "run_at": moment(self.run_at), "priority": self.priority,
            "on_conflict": self.on_conflict, "max_attempts": self.max_attempts, "ttr": span(self.ttr),
            "headers": self.headers, "tags": self.tags, "path": self.path, "url": self.url, "then": self.then,
        }
        job = {name: value for name, value in fields.items() if value is not None}
        if self.id is None:
            # Nobody else has this id. So a job with this id was added by an earlier try.
            job["id"] = uuid7()
            job.setdefault("on_conflict", "keep")
        return {**job, "body": self.body}


class JobOptions(TypedDict, total=False):
    """The fields of NewJob beside its body, as keywords of Client.add."""

    id: Optional[str]
    delay: Optional[Span]
    run_at: Union[datetime, str, int, None]
    priority: Union[str, int, None]
    on_conflict: Optional[str]
    max_attempts: Optional[int]
    ttr: Optional[Span]
    headers: Optional[Mapping[str, str]]
    tags: Optional[Sequence[str]]
    path: Optional[str]
    url: Optional[str]
    then: Any


@dataclass(frozen=True)
class Added:
    """What became of an add. outcome is "new", "replaced", "kept" or "spooled"."""

    topic: str
    id: str
    outcome: str
    due_ms: Optional[int] = None


@dataclass(frozen=True)
class Job:
    """A job or its latest dead letter. state is "delayed", "ready", "leased" or "dead"; data has all that dq shows."""

    topic: str
    id: str
    state: Optional[str]
    body: Any
    data: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class ReservedJob:
    """A job of a pull topic that this client may work on until its lease ends."""

    topic: str
    id: str
    body: Any
    headers: Mapping[str, str]
    tags: List[str]
    attempt: int
    due_ms: int
    added_ms: int
    # None: the topic says on_reserve = "remove". The job is done, and nothing is reported.
    token: Optional[str] = field(repr=False)
    lease_until_ms: Optional[int]


def span(value: Optional[Span]) -> Union[str, int, None]:
    """Returns a duration as dq reads it."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return f"{round(value * 1000)}ms" if isinstance(value, float) else value


def moment(value: Union[datetime, str, int, None]) -> Union[str, int, None]:
    """Returns a moment as dq reads it: RFC 3339, or Unix milliseconds."""
    if not isinstance(value, datetime):
        return value
    if value.utcoffset() is None:
        raise ValueError("run_at has no time zone; use for example datetime.now(timezone.utc)")
    return value.isoformat()


def uuid7() -> str:
    """Returns a UUID of version 7: the time in milliseconds, then 74 random bits."""
    bits = int(time.time() * 1000) << 80 | int.from_bytes(os.urandom(10), "big")
    bits = bits & ~(0xF << 76) | 0x7 << 76
    bits = bits & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=bits))
