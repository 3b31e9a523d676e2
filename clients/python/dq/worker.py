"""A worker for pull topics (docs/PULL.md)."""

import contextlib
import logging
import threading
from typing import Any, Callable, Iterator, Optional, Sequence, Union

from .client import Client
from .errors import DqError
from .jobs import ReservedJob

log = logging.getLogger("dq")


def work(
    client: Client, topics: Union[str, Sequence[str]], handler: Callable[[ReservedJob], Any], *,
    stop: Optional[threading.Event] = None, wait: float = 10, lease: float = 60,
) -> None:
    """Reserves one job after the other, and calls handler(job), until `stop` is set.

    If the handler returns, the job is done; a text that it returns is kept in the job's record. If it raises, the job
    is tried again, or becomes a dead letter. The lease is `lease` seconds, and is extended while the handler runs. A
    job may come twice: if this process or dq fails before the report, or if the lease ends. Run several threads or
    processes to work on several jobs at a time.
    """
    stop = stop or threading.Event()
    while not stop.is_set():
        try:
            jobs = client.reserve(topics, wait=wait, lease=lease)
        except DqError as e:
            if not e.is_transient:
                raise
            log.warning("no jobs are reserved: %s", e)
            stop.wait(1)
            continue
        for job in jobs:
            _work_on(client, job, handler, lease)


def _work_on(client: Client, job: ReservedJob, handler: Callable[[ReservedJob], Any], lease: float) -> None:
    try:
        try:
            with _extended(client, job, lease):
                answer = handler(job)
        except Exception as e:
            log.exception("job %s of %s failed", job.id, job.topic)
            reason = f"{type(e).__name__}: {e}"[:200]
            client.nack(job, reason=reason.encode(errors="replace").decode())
        else:
            client.ack(job, answer if isinstance(answer, str) else None)
    except (DqError, ValueError) as e:
        # The lease ends by itself, and the job comes again.
        log.warning("the outcome of job %s of %s was not reported: %s", job.id, job.topic, e)


@contextlib.contextmanager
def _extended(client: Client, job: ReservedJob, lease: float) -> Iterator[None]:
    """Extends the lease three times as often as needed."""
    done = threading.Event()

    def extend() -> None:
        while not done.wait(lease / 3):
            try:
                client.extend(job, lease)
            except DqError as e:
                log.warning("the lease of job %s of %s was not extended: %s", job.id, job.topic, e)
                if not e.is_transient:
                    return

    thread = threading.Thread(target=extend, name="dq-extend", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
