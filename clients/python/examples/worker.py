"""A worker for the pull topic `shipping`. SIGTERM ends it after the job in hand."""

# docs: work
import signal
import threading

import dq

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())


def ship(job: dq.ReservedJob) -> str:
    print("shipping", job.id, job.body, flush=True)
    return "shipped"    # kept in the job's record; an exception means: try again later


dq.work(dq.Client(), "shipping", ship, stop=stop, wait=1)
# docs: end of work
