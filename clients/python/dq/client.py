"""Requests to the HTTP API of dq."""

import http.client
import json
import logging
import os
import random
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union
from urllib.parse import quote, urlsplit

from .errors import DqError
from .jobs import Added, Job, NewJob, ReservedJob, Span, moment, span, uuid7

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .jobs import JobOptions

log = logging.getLogger("dq")

# The pause before the second try, and the longest one. Each pause is twice as long as the one before it.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0

# How many characters of an answer or a reason dq keeps.
TEXT_MAX = 200


class Client:
    """A client of dq over HTTP, for any number of threads. Each thread keeps one connection.

    url and token default to the variables DQ_URL and DQ_TOKEN of the environment, as for the command `dq`. timeout is
    how many seconds to wait for a connection, and for an answer to go on. A request is tried again for retry_for
    seconds while dq cannot be reached or cannot do it now; 0 means one try, on a connection of its own.
    """

    def __init__(
        self, url: Optional[str] = None, token: Optional[str] = None, *, timeout: float = 5.0, retry_for: float = 10.0,
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        url = url or os.environ.get("DQ_URL") or "http://127.0.0.1:8088"
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the URL of dq must be http://… or https://…, not {url}")
        self._base = parts.path.rstrip("/")
        self._open = _opener(parts.scheme, parts.hostname, parts.port, timeout, tls)
        self._timeout, self._retry_for = timeout, retry_for
        self._headers = {"user-agent": "dq-python/0.1", "accept": "application/json"}
        token = token or os.environ.get("DQ_TOKEN")
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._kept = threading.local()

    def add(self, topic: str, body: Any, **options: "Unpack[JobOptions]") -> Added:
        """Stores a job. The options are the other fields of NewJob, such as id, delay and tags."""
        return _added(self.request("POST", _jobs(topic), NewJob(body, **options).to_json()))

    def add_many(self, topic: str, jobs: Iterable[NewJob]) -> List[Union[Added, DqError]]:
        """Stores up to 10,000 jobs, and returns for each of them how it was stored, or why not."""
        wanted = {"jobs": [job.to_json() for job in jobs]}
        results = _with_field("results", self.request("POST", f"{_jobs(topic)}/batch", wanted))["results"]
        return [_problem(r["status"], r) if r["status"] >= 400 else _added(r) for r in results]

    def get(self, topic: str, id: str) -> Optional[Job]:
        """Returns a pending job or the latest dead letter of this id, or None."""
        answer = self._unless_missing("GET", _job(topic, id))
        if answer is None:
            return None
        return Job(topic, id, answer.get("state"), answer.get("body"), answer)

    def change(self, topic: str, id: str, **fields: Any) -> Dict[str, Any]:
        """Changes the given fields of a job.

        They are delay, run_at, body, priority, max_attempts, ttr, headers, tags, path and url.
        """
        written: Dict[str, Callable[[Any], Any]] = {"delay": span, "ttr": span, "run_at": moment}
        fields = {name: written[name](v) if name in written else v for name, v in fields.items()}
        changed: Dict[str, Any] = self.request("PATCH", _job(topic, id), fields)
        return changed

    def delete(self, topic: str, id: str) -> bool:
        """Removes a job, in any state. False: there is none (any more), also if the answer to an earlier try was lost."""
        return self._unless_missing("DELETE", _job(topic, id)) is not None

    def run(self, topic: str, id: str) -> None:
        """Delivers a delayed job now."""
        self.request("POST", f"{_job(topic, id)}/run")

    def reserve(
        self, topics: Union[str, Sequence[str]], *, max: int = 1, wait: float = 0, lease: Optional[Span] = None
    ) -> List[ReservedJob]:
        """Reserves due jobs of pull topics, and waits up to `wait` seconds (at most 60) for the first one."""
        topics = [topics] if isinstance(topics, str) else list(topics)
        wanted = {"topics": topics, "max": max, "wait": span(float(wait))}
        if lease is not None:
            wanted["lease"] = span(lease)
        # The request has no Idempotency-Key. With a key, the reserve would continue after the client has gone away, and
        # take a job.
        jobs = _with_field("jobs", self._send("POST", "/v1/reserve", wanted, timeout=wait + self._timeout))["jobs"]
        return [ReservedJob(**{name: job.get(name) for name in ReservedJob.__annotations__}) for job in jobs]

    def ack(self, job: ReservedJob, answer: Optional[str] = None) -> None:
        """Reports that a reserved job is done. The first 200 characters of the answer are kept in its record."""
        self._report(job, "ack", answer=_cut(answer))

    def nack(self, job: ReservedJob, *, delay: Optional[Span] = None, reason: Optional[str] = None) -> None:
        """Reports that a reserved job could not be done. It is tried again, or becomes a dead letter."""
        self._report(job, "nack", delay=span(delay), reason=_cut(reason))

    def extend(self, job: ReservedJob, lease: Optional[Span] = None) -> int:
        """Takes more time for a reserved job, and returns until when, in Unix milliseconds."""
        until_ms: int = self._report(job, "extend", lease=span(lease))["until_ms"]
        return until_ms

    def request(
        self, method: str, path: str, body: Any = None, *, key: Optional[str] = None, timeout: Optional[float] = None
    ) -> Any:
        """Makes any request of the API, such as request("PUT", "/v1/topics/orders", {...}).

        The request may be sent again. So a POST without a key (Idempotency-Key) gets one.
        """
        if method == "POST" and key is None:
            key = uuid7()
        return self._send(method, path, body, key=key, timeout=timeout)

    def _send(
        self, method: str, path: str, body: Any = None, *, key: Optional[str] = None, timeout: Optional[float] = None
    ) -> Any:
        """Makes a request, and adds no key. A reserve needs none, and dq knows a repeated report by its token."""
        headers = dict(self._headers)
        data = None
        if body is not None:
            data = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
            headers["content-type"] = "application/json"
        if key is not None:
            headers["idempotency-key"] = key
        started, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            wait = pause * random.uniform(0.5, 1)
            try:
                status, answer, retry_after = self._try(method, self._base + path, data, headers, timeout)
                if status < 300 and answer is not None:
                    return answer
                error = _problem(status, answer)
                wait = max(wait, retry_after)
            except _StaleConnection:
                continue
            except ssl.SSLCertVerificationError as e:
                raise DqError("untrusted", f"{method} {path}: {e}") from e
            except (OSError, http.client.HTTPException) as e:
                error = DqError("no_answer", f"{method} {path}: {e or type(e).__name__}")
            if not error.is_transient or time.monotonic() + wait > started + self._retry_for:
                raise error
            log.info("%s %s is tried again in %.1f s: %s", method, path, wait, error)
            time.sleep(wait)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _try(
        self, method: str, path: str, data: Optional[bytes], headers: Mapping[str, str], timeout: Optional[float]
    ) -> Tuple[int, Any, float]:
        """Makes one try, and returns the status, the answer and its Retry-After."""
        # A child process must not use a connection of its parent.
        kept: Optional[_Kept] = self._kept.__dict__.pop("connection", None)
        was_kept = kept is not None and kept.process == os.getpid()
        if kept is None or not was_kept:
            kept = _Kept(self._open())
        connection = kept.connection
        try:
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(timeout or self._timeout)
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read()
        except (ConnectionError, http.client.BadStatusLine) as e:
            if was_kept:
                # dq closes idle connections, and the connections of a process that ends. The caller then makes a new
                # connection. A client that may try only once keeps no connection, so it never sends a request twice.
                raise _StaleConnection() from e
            raise
        if response.will_close or self._retry_for <= 0:
            connection.close()
        else:
            self._kept.connection = kept
        retry_after = response.getheader("retry-after") or ""
        try:
            answer = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            answer = None
        return response.status, answer, float(retry_after) if retry_after.isdecimal() else 0.0

    def _unless_missing(self, method: str, path: str) -> Any:
        try:
            return self.request(method, path)
        except DqError as e:
            if e.code == "not_found":
                return None
            raise

    def _report(self, job: ReservedJob, report: str, **fields: Any) -> Any:
        if job.token is None:
            return {"until_ms": 0}
        wanted = {"token": job.token, **{name: value for name, value in fields.items() if value is not None}}
        return _with_field("outcome", self._send("POST", f"{_job(job.topic, job.id)}/{report}", wanted))


class _Kept:
    """A connection of one thread, which is closed with it."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection, self.process = connection, os.getpid()

    def __del__(self) -> None:
        self.connection.close()


class _StaleConnection(Exception):
    """A kept connection was closed before the answer. The request is made again on a new one."""


def _opener(
    scheme: str, host: str, port: Optional[int], timeout: float, tls: Optional[ssl.SSLContext]
) -> Callable[[], http.client.HTTPConnection]:
    if scheme == "http":
        return lambda: http.client.HTTPConnection(host, port, timeout=timeout)
    context = tls or ssl.create_default_context()
    return lambda: http.client.HTTPSConnection(host, port, timeout=timeout, context=context)


def _jobs(topic: str) -> str:
    return f"/v1/topics/{quote(topic, safe='')}/jobs"


def _job(topic: str, id: str) -> str:
    return f"{_jobs(topic)}/{quote(id, safe='')}"


def _added(answer: Any) -> Added:
    answer = _with_field("outcome", answer)
    return Added(answer["topic"], answer["id"], answer["outcome"], answer.get("due_ms"))


def _with_field(field: str, answer: Any) -> Any:
    """Returns an answer that has this field. An answer without it is not one of dq."""
    if not isinstance(answer, dict) or field not in answer:
        raise DqError("bad_answer", f"the answer has no field {field}", 200)
    return answer


def _cut(text: Optional[str]) -> Optional[str]:
    """Returns the part of a text that dq keeps. Characters that UTF-8 cannot write become question marks."""
    return None if text is None else text[:TEXT_MAX].encode(errors="replace").decode()


def _problem(status: int, answer: Any) -> DqError:
    if isinstance(answer, dict) and isinstance(answer.get("code"), str):
        return DqError(answer["code"], answer.get("detail", ""), status, answer.get("field"))
    return DqError("bad_answer", f"status {status} without a problem of dq", status)
