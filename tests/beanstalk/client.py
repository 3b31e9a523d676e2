"""A worker and a producer with greenstalk, a client of beanstalkd, as it comes from PyPI."""

import sys
import time

import greenstalk

address = ("127.0.0.1", int(sys.argv[1]))
with greenstalk.Client(address, use="mail", watch=["mail"]) as client:
    first = client.put("hello", ttr=60)
    begun = time.monotonic()
    late = client.put("later", delay=1, priority=5, ttr=60)
    assert client.peek(first).body == "hello"
    assert client.peek_delayed().id == late

    job = client.reserve(timeout=5)
    assert (job.id, job.body) == (first, "hello")
    client.touch(job)
    client.delete(job)
    try:
        client.delete(job)
        raise AssertionError("it was deleted twice")
    except greenstalk.NotFoundError:
        pass

    job = client.reserve(timeout=5)
    took = time.monotonic() - begun
    assert job.id == late and 1.0 <= took < 3.0, took
    client.release(job, priority=9, delay=0)
    job = client.reserve(timeout=5)
    stats = client.stats_job(job)
    assert (stats["state"], stats["pri"], stats["releases"], stats["reserves"]) == ("reserved", 9, 1, 2), stats
    client.bury(job, priority=3)
    assert client.stats_job(job)["state"] == "buried"
    assert client.peek_buried().id == late
    assert client.stats_tube("mail")["current-jobs-buried"] == 1
    assert client.kick(10) == 1
    job = client.reserve(timeout=0)
    client.bury(job)
    client.kick_job(job)
    job = client.reserve_job(late)
    assert job.body == "later"
    client.delete(job)

    try:
        client.reserve(timeout=0)
        raise AssertionError("there is another job")
    except greenstalk.TimedOutError:
        pass
    client.pause_tube("mail", 1)
    client.put("paused")
    begun = time.monotonic()
    job = client.reserve(timeout=5)
    assert 0.9 <= time.monotonic() - begun < 3.0
    client.delete(job)

    assert client.watch("other") == 2
    assert client.watching() == ["mail", "other"]
    assert client.ignore("mail") == 1
    try:
        client.ignore("other")
        raise AssertionError("the last tube was ignored")
    except greenstalk.NotIgnoredError:
        pass
    assert client.using() == "mail" and "mail" in client.tubes()
    stats = client.stats()
    assert stats["cmd-put"] == 3 and stats["current-connections"] == 1, stats

# With `encoding=None`, the client sends and gets bodies as bytes.
with greenstalk.Client(address, encoding=None, use="mail", watch=["mail"]) as client:
    for body in (b"", b"\x00\xff\r\n", bytes(range(256)) * 200, "é".encode()):
        client.put(body)
        job = client.reserve(timeout=5)
        assert job.body == body
        client.delete(job)
print("good")
