"""Adds jobs to a dq at 127.0.0.1:6789 and receives their callbacks on 127.0.0.1:9000: traffic.py SECONDS PER_SECOND [TOKEN]

Prints one JSON object: how many adds were acknowledged, failed, or found their connection closed, and how many of the
acknowledged jobs did not arrive, arrived early, or arrived again. Ends when all have arrived, or after 30 s.
"""

import asyncio
import json
import sys
import time

CONNECTIONS = 10
DELAY_MS = 1000
WAIT = 30

due = {}
arrived = {}


class Receiver(asyncio.Protocol):
    """Accepts every callback. The body is the id of the job."""

    def connection_made(self, transport):
        self.transport, self.unread = transport, b""

    def data_received(self, data):
        self.unread += data
        while (end := self.unread.find(b"\r\n\r\n")) >= 0:
            length = 0
            for line in self.unread[:end].split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if len(self.unread) < end + 4 + length:
                return
            body, self.unread = self.unread[end + 4:end + 4 + length], self.unread[end + 4 + length:]
            arrived.setdefault(json.loads(body), []).append(time.time())
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


async def ask(reader, writer, request):
    request = json.dumps(request).encode()
    writer.write(b"%04d" % len(request) + request)
    return json.loads(await reader.readexactly(int(await reader.readexactly(4))))


async def connect():
    reader, writer = await asyncio.open_connection("127.0.0.1", 6789)
    if TOKEN:
        await ask(reader, writer, {"cmd": "auth", "token": TOKEN})
    return reader, writer


async def add(sum_of, connection, until, pause):
    reader, writer = await connect()
    number, begin = 0, time.monotonic()
    while time.monotonic() < until:
        name = f"{connection}-{number}"
        request = {"cmd": "add", "topic": "traffic", "id": name, "delay_ms": DELAY_MS, "body": name}
        not_before = time.time() + DELAY_MS / 1000
        try:
            answer = await ask(reader, writer, request)
        except (OSError, asyncio.IncompleteReadError):
            sum_of["closed"] += 1
            reader, writer = await connect()
            continue
        if answer["code"] == 1:
            sum_of["acknowledged"] += 1
            due[name] = not_before
        else:
            sum_of["failed"] += 1
            print(answer, file=sys.stderr)
        number += 1
        await asyncio.sleep(begin + number * pause - time.monotonic())
    writer.close()


async def main(seconds, per_second):
    server = await asyncio.get_running_loop().create_server(Receiver, "127.0.0.1", 9000)
    print("ready", flush=True)
    sum_of = {"acknowledged": 0, "failed": 0, "closed": 0}
    until = time.monotonic() + seconds
    await asyncio.gather(*(add(sum_of, c, until, CONNECTIONS / per_second) for c in range(CONNECTIONS)))
    give_up = time.monotonic() + WAIT
    while len(arrived) < len(due) and time.monotonic() < give_up:
        await asyncio.sleep(0.05)
    server.close()
    sum_of["missing"] = len(due.keys() - arrived.keys())
    # A due time is rounded to a millisecond, so a job may seem to arrive up to 1 ms early.
    sum_of["early"] = sum(1 for name, at in due.items() if name in arrived and arrived[name][0] < at - 0.001)
    sum_of["again"] = sum(len(times) - 1 for times in arrived.values())
    print(json.dumps(sum_of), flush=True)


TOKEN = sys.argv[3] if len(sys.argv) > 3 else None
asyncio.run(main(float(sys.argv[1]), float(sys.argv[2])))
