"""A worker for pull topics (docs/PULL.md)."""

import contextlib
import inspect
import logging
import threading
import time
from typing import Any, Callable, Iterator, Optional, Sequence, Union

from .client import Client
from .errors import DqError
from .jobs import ReservedJob

log = logging.getLogger("dq")

# How long the worker waits before it tries again, and how long if somebody must change the topic first.
PAUSE_S, LONG_PAUSE_S = 1.0, 10.0

# How long after a move of jobs between nodes no lease ends (docs/PULL.md).
MOVE_GRACE_S = 10.0


def work(
    client: Client, topics: Union[str, Sequence[str]], handler: Callable[[ReservedJob], Any], *,
    stop: Optional[threading.Event] = None, wait: float = 10, lease: float = 60,
) -> None:
    """Reserves one job after the other, and calls handler(job), until `stop` is set.

    If the handler returns, the job is done; a text that it returns is kept in the job's record. If it raises, the job
    is tried again, or becomes a dead letter. The lease is `lease` seconds, and is extended while the handler runs. A
    job may come twice: if this process or dq fails before the report, or if the lease ends. Run several threads or
    processes to work on several jobs at a time.

    work() raises a DqError if waiting does not help, for example if there is no such topic.
    """
    if inspect.iscoroutinefunction(handler):
        raise TypeError("the handler is an async function; give a function that calls asyncio.run()")
    stop = stop or threading.Event()
    while not stop.is_set():
        try:
            jobs = client.reserve(topics, wait=wait, lease=lease)
        except DqError as e:
            pause = _pause_after(e)
            if pause is None:
                raise
            log.warning("no jobs are reserved: %s", e)
            stop.wait(pause)
            continue
        for job in jobs:
            _work_on(client, job, handler, _Lease(lease), stop)


def _pause_after(error: DqError) -> Optional[float]:
    """Returns how many seconds to wait before the next reserve. None: waiting does not help."""
    if error.code == "not_pull":
        # The topic is held, or somebody has changed its mode.
        return LONG_PAUSE_S
    return PAUSE_S if _is_passing(error) else None


def _is_passing(error: DqError) -> bool:
    """Whether the same request may succeed later. Errors that a proxy before dq can cause are passing."""
    return error.is_transient or error.code == "bad_answer" or error.status == 429 or error.status >= 500


class _Lease:
    """The lease of a job, as far as this process knows it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.renew()

    def renew(self) -> None:
        self._end = time.monotonic() + self.seconds

    def can_hold(self, error: DqError) -> bool:
        """Whether a request about the job that failed with this error should be repeated."""
        if error.code == "nodes_moving":
            self._end = max(self._end, time.monotonic() + MOVE_GRACE_S)
        return _is_passing(error) and time.monotonic() < self._end


def _work_on(
    client: Client, job: ReservedJob, handler: Callable[[ReservedJob], Any], lease: _Lease, stop: threading.Event
) -> None:
    try:
        with _extended(client, job, lease):
            answer = _call(handler, job)
    except Exception as e:
        log.exception("job %s of %s failed", job.id, job.topic)
        reason = _reason(e)
        _report_outcome(job, lease, stop, lambda: client.nack(job, reason=reason))
    else:
        _report_outcome(job, lease, stop, lambda: client.ack(job, answer if isinstance(answer, str) else None))


def _call(handler: Callable[[ReservedJob], Any], job: ReservedJob) -> Any:
    answer = handler(job)
    if inspect.iscoroutine(answer) or inspect.isgenerator(answer):
        answer.close()
        raise TypeError("the handler returned a coroutine or a generator, so its code has not run")
    return answer


def _reason(error: Exception) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:
        return name


def _report_outcome(job: ReservedJob, lease: _Lease, stop: threading.Event, report: Callable[[], None]) -> None:
    """Reports an outcome. It repeats the report while that may help, unless the worker is told to stop."""
    while True:
        try:
            report()
            return
        except DqError as e:
            if stop.is_set() or not lease.can_hold(e):
                # The lease ends by itself, and the job comes again.
                log.warning("the outcome of job %s of %s was not reported: %s", job.id, job.topic, e)
                return
            log.warning("the outcome of job %s of %s is reported again: %s", job.id, job.topic, e)
            stop.wait(PAUSE_S)


@contextlib.contextmanager
def _extended(client: Client, job: ReservedJob, lease: _Lease) -> Iterator[None]:
    """Extends the lease three times as often as needed."""
    done = threading.Event()

    def extend() -> None:
        while not done.wait(lease.seconds / 3):
            try:
                client.extend(job, lease.seconds)
                lease.renew()
            except DqError as e:
                log.warning("the lease of job %s of %s was not extended: %s", job.id, job.topic, e)
                if not _is_passing(e):
                    return

    thread = threading.Thread(target=extend, name="dq-extend", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
