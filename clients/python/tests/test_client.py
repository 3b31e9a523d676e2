"""Tests against a daemon. clients/run starts it and sets the environment."""

import contextlib
import http.server
import io
import json
import os
import queue
import runpy
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import unittest
import urllib.request
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest import mock

import dq

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
NEW, OLD = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=", "the-old-secret"


def control(path):
    urllib.request.urlopen(urllib.request.Request(os.environ["DQ_CONTROL_URL"] + path, method="POST")).close()


class Script:
    """A proxy before dq that answers the first requests as the rules say: scripted() of clients/run."""

    def __init__(self, *rules):
        self.place = f"{os.environ['DQ_SCRIPTED_URL']}/scripts/{uuid.uuid4().hex}"
        self.url = self.place.replace("/scripts", "")
        urllib.request.urlopen(urllib.request.Request(self.place, json.dumps(rules).encode(), method="POST")).close()

    def requests(self, end):
        """Returns the requests to paths with this end."""
        with urllib.request.urlopen(self.place) as answer:
            return [request for request in json.load(answer) if request["path"].endswith(end)]


def reserved(id):
    """Returns a rule that answers a reserve with a job."""
    job = {"topic": "t", "id": id, "body": id, "headers": {}, "tags": [], "attempt": 1, "due_ms": 1, "added_ms": 1,
           "token": "AQ", "lease_until_ms": int(time.time() * 1000) + 60000}
    return {"path": "/reserve$", "status": 200, "body": {"jobs": [job]}}


# A worker whose jobs are all done gets this.
NO_JOBS = {"path": "/reserve$", "times": 1000, "status": 200, "body": {"jobs": []}}
DONE = {"path": "/ack$", "status": 200, "body": {"outcome": "done"}}


def problem(status, code):
    return {"status": status, "body": {"status": status, "code": code, "detail": "as the test says"}}


class Sink:
    """A receiver that puts what arrives into a queue. It refuses the first `refusals` callbacks."""

    def __init__(self, refusals=0):
        self.callbacks = queue.Queue()
        sink, left = self, [refusals]

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                sink.callbacks.put((self.headers, body))
                left[0] -= 1
                self.send_response(503 if left[0] >= 0 else 204)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def next(self):
        return self.callbacks.get(timeout=20)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class ClientTest(unittest.TestCase):
    def setUp(self):
        self.client = dq.Client()
        # Tests share the daemon. Each has topics and tags of its own.
        self.topic = f"py.{uuid.uuid4().hex[:12]}"
        self.client.request("PUT", f"/v1/topics/{self.topic}", {"callback": "http://127.0.0.1:9/hook"})

    def pull_topic(self, name=None, **settings):
        name = name or f"{self.topic}.pull"
        self.client.request("PUT", f"/v1/topics/{name}", {"mode": "pull", **settings})
        return name

    def eventually(self, condition):
        deadline = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def sink(self, **options):
        sink = Sink(**options)
        self.addCleanup(sink.close)
        return sink

    def test_a_job_is_added_shown_changed_and_deleted(self):
        for id in ["7", "p/ü 1", "..", "a?b#c%25", "batch"]:
            before = time.time()
            added = self.client.add(self.topic, {"n": [1, "超时"]}, id=id, delay="1h", tags=["shop:7"], priority=5)
            self.assertEqual((added.topic, added.id, added.outcome), (self.topic, id, "new"))
            self.assertTrue(before + 3599 < added.due_ms / 1000 < time.time() + 3601)
            job = self.client.get(self.topic, id)
            self.assertEqual((job.state, job.body, job.data["tags"]), ("delayed", {"n": [1, "超时"]}, ["shop:7"]))
            self.assertEqual(self.client.add(self.topic, 2, id=id, delay=60).outcome, "replaced")
            self.client.change(self.topic, id, body=3, delay=timedelta(hours=2), ttr=timedelta(minutes=3))
            job = self.client.get(self.topic, id)
            self.assertEqual((job.body, job.data["ttr_ms"]), (3, 180_000))
            self.assertGreater(job.data["due_ms"] / 1000, before + 7199)
            self.assertTrue(self.client.delete(self.topic, id))
            self.assertFalse(self.client.delete(self.topic, id))
            self.assertIsNone(self.client.get(self.topic, id))

    def test_times_are_what_the_caller_means(self):
        at = datetime.now(timezone(timedelta(hours=8))) + timedelta(hours=3)
        for given in [at, int(at.timestamp() * 1000), at.isoformat()]:
            due_ms = self.client.add(self.topic, 1, run_at=given).due_ms
            self.assertAlmostEqual(due_ms / 1000, at.timestamp(), delta=0.01)
        for delay in [90, 90.0, "90s", timedelta(seconds=90)]:
            due_ms = self.client.add(self.topic, 1, delay=delay).due_ms
            self.assertAlmostEqual(due_ms / 1000, time.time() + 90, delta=5)
        with self.assertRaises(ValueError):
            self.client.add(self.topic, 1, run_at=datetime.now())

    def test_each_job_of_a_batch_has_its_result(self):
        self.client.add(self.topic, 1, id="there", delay="1h")
        results = self.client.add_many(self.topic, [
            dq.NewJob(1, delay="1h"), dq.NewJob(2, id="two", delay="1h"),
            dq.NewJob(3, id="there", on_conflict="reject"), dq.NewJob(4, id="there", on_conflict="keep"),
            dq.NewJob(5, delay="soon"),
        ])
        shown = [(r.code, r.status) if isinstance(r, dq.DqError) else r.outcome for r in results]
        self.assertEqual(shown, ["new", "new", ("exists", 409), "kept", ("bad_field", 422)])
        self.assertEqual(uuid.UUID(results[0].id).version, 7)
        self.assertEqual(results[4].field, "delay")

    def test_a_refusal_has_a_code(self):
        with self.assertRaises(dq.DqError) as caught:
            self.client.add("no-such-topic", 1)
        self.assertEqual((caught.exception.code, caught.exception.status), ("unknown_topic", 404))
        with self.assertRaises(dq.DqError) as caught:
            self.client.add(self.topic, 1, delay="soon")
        self.assertEqual((caught.exception.code, caught.exception.field), ("bad_field", "delay"))
        with self.assertRaises(dq.DqError) as caught:
            self.client.reserve(self.topic)
        self.assertEqual((caught.exception.code, caught.exception.is_transient), ("not_pull", False))
        with self.assertRaises(dq.DqError) as caught:
            dq.Client(token="dq_wrong").get(self.topic, "1")
        self.assertEqual(caught.exception.code, "unauthorized")
        with self.assertRaises(TypeError):
            self.client.add(self.topic, 1, dealy=3)
        with self.assertRaises(ValueError):
            dq.Client("unix:/run/dq/http.sock")

    def test_a_server_that_does_not_answer_is_an_error_in_time(self):
        listener = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
        self.addCleanup(listener.server_close)    # it accepts, and never answers
        client = dq.Client(f"http://127.0.0.1:{listener.server_address[1]}", timeout=0.2, retry_for=0.5)
        started = time.monotonic()
        with self.assertRaises(dq.DqError) as caught:
            client.add(self.topic, 1)
        self.assertEqual((caught.exception.code, caught.exception.is_transient), ("no_answer", True))
        self.assertTrue(0.2 < time.monotonic() - started < 2)

    def test_a_server_must_be_trusted(self):
        url = os.environ["DQ_TLS_URL"]
        with self.assertRaises(dq.DqError) as caught:
            dq.Client(url).get(self.topic, "1")
        self.assertEqual((caught.exception.code, caught.exception.is_transient), ("untrusted", False))
        # A connection that ends during the handshake says nothing about the certificate.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=lambda: listener.accept()[0].close()).start()
            with self.assertRaises(dq.DqError) as caught:
                dq.Client(f"https://127.0.0.1:{listener.getsockname()[1]}", retry_for=0).get(self.topic, "1")
        self.assertEqual((caught.exception.code, caught.exception.is_transient), ("no_answer", True))
        trusting = dq.Client(url, tls=ssl.create_default_context(cafile=os.environ["DQ_CA_FILE"]))
        for outcome in ["new", "replaced"]:
            self.assertEqual(trusting.add(self.topic, 1, id="1", delay="1h").outcome, outcome)

    def test_a_retry_after_a_lost_answer_adds_no_second_job(self):
        lossy = dq.Client(os.environ["DQ_LOSSY_URL"])
        added = lossy.add(self.topic, 1, delay="1h", tags=[self.topic])
        self.assertEqual(added.outcome, "kept")
        results = lossy.add_many(self.topic, [dq.NewJob(n, delay="1h", tags=[self.topic]) for n in range(3)])
        self.assertEqual([r.outcome for r in results], ["kept"] * 3)
        jobs = self.client.request("GET", f"/v1/jobs?tag={self.topic}")["jobs"]
        self.assertEqual(len(jobs), 4)
        # The first try has deleted the job. The second try does not know this, and finds no job.
        self.assertFalse(lossy.delete(self.topic, added.id))
        self.assertIsNone(self.client.get(self.topic, added.id))

    def test_an_add_waits_for_a_restart_of_dq(self):
        self.client.add(self.topic, 1, id="before", delay="1h")    # makes a connection, which is lost
        control("/stop")
        with self.assertRaises(dq.DqError) as caught:
            dq.Client(retry_for=0).add(self.topic, 1)
        self.assertEqual(caught.exception.code, "no_answer")
        control("/start?after_ms=500")
        added = dq.Client(retry_for=60).add(self.topic, 1, delay="1h")
        self.assertEqual(added.outcome, "new")
        self.assertEqual(self.client.get(self.topic, "before").state, "delayed")

    def test_a_callback_after_a_delay_has_a_valid_signature(self):
        sink = self.sink()
        for secrets in [[NEW], [NEW, OLD]]:
            self.client.request("PUT", f"/v1/topics/{self.topic}", {"callback": sink.url, "secrets": secrets})
            due_ms = self.client.add(self.topic, {"a": 1, "zh": "超时"}, delay=1).due_ms
            headers, body = sink.next()
            self.assertGreaterEqual(time.time() * 1000, due_ms)
            self.assertEqual(json.loads(body), {"a": 1, "zh": "超时"})
            self.assertEqual(dq.Webhook(NEW).verify(headers, body), headers["webhook-id"])
            dq.Webhook("another-secret", NEW).verify(headers, body.decode())
            if OLD in secrets:
                dq.Webhook(OLD).verify(headers, body)
            for webhook, sent in [(dq.Webhook("another-secret"), body), (dq.Webhook(NEW, OLD), body + b" ")]:
                with self.assertRaises(dq.WebhookError):
                    webhook.verify(headers, sent)

    def test_the_table_of_signatures(self):
        cases = json.loads((HERE.parents[1] / "signatures.json").read_text())
        self.assertGreater(len(cases), 30)
        for case in cases:
            try:
                dq.Webhook(*case["secrets"]).verify(case["headers"], case["body"], now=case["now"])
                is_valid = True
            except dq.WebhookError:
                is_valid = False
            self.assertEqual(is_valid, case["valid"], case["name"])

    def test_a_secret_that_dq_refuses_is_refused(self):
        for case in json.loads((HERE.parents[1] / "secrets.json").read_text()):
            error = None
            try:
                dq.Webhook(*case["secrets"])
            except ValueError as e:
                error = str(e)
            self.assertEqual(error, case["error"], case)
        for secrets in [{}, {"DQ_WEBHOOK_SECRETS": ""}]:
            with mock.patch.dict(os.environ, secrets), self.assertRaisesRegex(RuntimeError, "DQ_WEBHOOK_SECRETS"):
                runpy.run_path(str(EXAMPLES / "flask_app.py"))

    def test_a_job_is_reserved_and_reported(self):
        topic = self.pull_topic()
        self.assertEqual(self.client.reserve(topic), [])
        self.client.add(topic, {"a": 1}, id="1", delay="1h", headers={"x-shop": "7"}, tags=["t"])
        self.client.run(topic, "1")
        [job] = self.client.reserve([topic], wait=10, lease="1m")
        self.assertEqual((job.id, job.body, job.headers, job.tags, job.attempt), ("1", {"a": 1}, {"x-shop": "7"}, ["t"], 1))
        self.assertGreater(self.client.extend(job, timedelta(minutes=5)), job.lease_until_ms)
        self.client.nack(job, delay=0, reason="not yet")
        [job] = self.client.reserve(topic, wait=10)
        self.assertEqual(job.attempt, 2)
        self.client.ack(job, "done")
        self.client.ack(job, "done")    # a repeat gets the same answer
        with self.assertRaises(dq.DqError) as caught:
            self.client.nack(job)
        self.assertEqual(caught.exception.code, "gone")

    def test_a_job_that_was_removed_at_its_reserve_needs_no_report(self):
        topic = self.pull_topic(on_reserve="remove")
        self.client.add(topic, 1, id="1")
        [job] = self.client.reserve(topic, wait=10)
        self.assertEqual((job.id, job.token, job.lease_until_ms), ("1", None, None))
        self.client.nack(job, reason="too late")
        self.assertEqual(self.client.extend(job), 0)
        self.client.ack(job)
        self.assertIsNone(self.client.get(topic, "1"))

    def test_a_worker_survives_errors_and_an_outage(self):
        topic = self.pull_topic()
        stop, worked, errors = threading.Event(), queue.Queue(), []

        def handler(job):
            worked.put((job.body, job.attempt))
            if job.body == "once more" and job.attempt == 1:
                raise RuntimeError("not now \udcff")
            if job.body == "long":
                time.sleep(2)    # longer than its lease, which is extended
            return "worked"

        script = Script({"path": "/extend$", "status": 500, "body": "<h1>Error</h1>"})    # the worker tries again

        def run():
            try:
                dq.work(dq.Client(script.url, retry_for=0.2), topic, handler, stop=stop, wait=0.5, lease=1)
            except BaseException as e:
                errors.append(e)

        self.client.request("PATCH", f"/v1/topics/{topic}", {"retry": ["1ms"]})
        thread = threading.Thread(target=run)
        with self.assertLogs("dq", "WARNING") as logs:
            thread.start()
            self.client.add(topic, "once more")
            self.assertEqual([worked.get(timeout=20) for _ in range(2)], [("once more", 1), ("once more", 2)])
            self.client.add(topic, "long", id="long")
            self.assertEqual(worked.get(timeout=20), ("long", 1))
            self.eventually(lambda: self.client.get(topic, "long") is None)
            control("/stop")
            self.eventually(lambda: any("no jobs are reserved" in line for line in logs.output))
            control("/start")
            self.client.add(topic, "last")
            self.assertEqual(worked.get(timeout=20), ("last", 1))
            stop.set()
            thread.join(20)
        self.assertEqual(errors, [])
        self.assertFalse(thread.is_alive())
        self.assertTrue(worked.empty())

    @contextlib.contextmanager
    def working(self, client, topics, handler, **options):
        """Runs a worker, and stops it at the end. Gives the lines of its log."""
        stop, errors = threading.Event(), []

        def run():
            try:
                dq.work(client, topics, handler, stop=stop, **{"wait": 0.2, **options})
            except BaseException as e:
                errors.append(e)

        thread = threading.Thread(target=run)
        with self.assertLogs("dq", "INFO") as logs:
            dq.client.log.info("the worker starts")
            thread.start()
            try:
                yield logs.output
            finally:
                stop.set()
                thread.join(20)
        self.assertEqual(errors, [])
        self.assertFalse(thread.is_alive())

    def test_a_worker_goes_on_after_refusals_that_pass(self):
        deep = json.dumps(reserved("1")["body"]).replace('"body": "1"', f'"body": {"[" * 100_000}{"]" * 100_000}')
        script = Script(
            {"path": "/reserve$", "status": 403, "body": "<h1>Forbidden</h1>"},
            {"path": "/reserve$", **problem(429, "too_many_failures")},
            {"path": "/reserve$", "status": 200, "body": deep},
            {"path": "/reserve$", "status": 200, "body": {"it": "works"}},
            reserved("2"), DONE, NO_JOBS,
        )
        worked = queue.Queue()
        with self.working(dq.Client(script.url, retry_for=0), "t", lambda job: worked.put(job.id)) as logs:
            self.assertEqual(worked.get(timeout=20), "2")
            self.assertEqual(sum("no jobs are reserved" in line for line in logs), 4)
            self.eventually(lambda: script.requests("/ack"))

        # Somebody may change the mode of the topic back. A stop ends this pause, which is longer.
        with self.working(self.client, self.topic, worked.put) as logs:
            self.eventually(lambda: any("not_pull" in line for line in logs))
        for client, code in [(dq.Client(token="dq_wrong"), "unauthorized"), (self.client, "unknown_topic")]:
            with self.assertRaises(dq.DqError) as caught:
                dq.work(client, "no-such-topic", worked.put)
            self.assertEqual(caught.exception.code, code)

    def test_a_worker_reports_until_the_lease_ends(self):
        # An error that passes does not end the reports.
        script = Script(
            reserved("1"), {"path": "/ack$", "status": 0}, {"path": "/ack$", "status": 500, "body": "<h1>Error</h1>"},
            DONE, NO_JOBS,
        )
        with self.working(dq.Client(script.url, retry_for=0), "t", lambda job: "done"):
            self.eventually(lambda: len(script.requests("/ack")) == 3)

        # While jobs are moved between nodes, no lease ends. Afterwards it does.
        script = Script(
            reserved("1"), {"path": "/ack$", "times": 2, **problem(503, "nodes_moving")}, DONE,
            reserved("2"), {"path": "/ack$", "times": 1000, "status": 0}, NO_JOBS,
        )
        with self.working(dq.Client(script.url, retry_for=0), "t", lambda job: "done", lease=1) as logs:
            self.eventually(lambda: any("job 2 of t was not reported" in line for line in logs))
        self.assertEqual(len(script.requests("/1/ack")), 3)
        self.assertFalse(any("job 1 of t was not reported" in line for line in logs))

        # A stop ends the repeats.
        script = Script(reserved("1"), {"path": "/ack$", "times": 1000, "status": 0}, NO_JOBS)
        with self.working(dq.Client(script.url, retry_for=0), "t", lambda job: "done"):
            self.eventually(lambda: script.requests("/ack"))

    def test_no_answer_of_a_handler_prevents_its_report(self):
        topic = self.pull_topic(max_attempts=1)

        class Mute(Exception):
            def __str__(self):
                raise RuntimeError("no text")

        async def later(job):
            return "done"

        def handler(job):
            if job.id == "mute":
                raise Mute()
            if job.id == "huge":
                return "\ud83d\U0001f600" * 3_000_000
            return later(job) if job.id == "async" else (n for n in "a")

        for id in ["huge", "mute", "async", "generator"]:
            self.client.add(topic, 1, id=id)
        with self.working(self.client, topic, handler):
            self.eventually(lambda: self.client.get(topic, "huge") is None)
            for id, error in [("mute", "Mute"), ("async", "TypeError"), ("generator", "TypeError")]:
                self.eventually(lambda: getattr(self.client.get(topic, id), "state", None) == "dead")
                self.assertIn(error, json.dumps(self.client.get(topic, id).data))
        with self.assertRaisesRegex(TypeError, "async"):
            dq.work(self.client, topic, later)

    def test_a_post_has_a_key_and_one_try_is_one_try(self):
        body = {"id": "1", "body": 1, "delay": "1h"}
        lossy = dq.Client(os.environ["DQ_LOSSY_URL"])
        self.assertEqual(lossy.request("POST", f"/v1/topics/{self.topic}/jobs", body)["outcome"], "replaced")

        # A kept connection that breaks does not count as a try, unless there is only one.
        for retry_for, tries in [(10, 2), (0, 1)]:
            script = Script({"path": "/run$", "status": 0})
            client = dq.Client(script.url, retry_for=retry_for)
            self.assertIsNotNone(client.get(self.topic, "1"))
            with contextlib.suppress(dq.DqError):
                client.request("POST", f"/v1/topics/{self.topic}/jobs/1/run")
            keys = [request["key"] for request in script.requests("/run")]
            self.assertEqual((len(keys), len(set(keys)), None in keys), (tries, 1, False))

    def test_the_examples_work(self):
        self.client.request("PUT", "/v1/topics/orders", {"callback": "http://127.0.0.1:9/hook"})
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(str(EXAMPLES / "add.py"))
        lines = out.getvalue().split("\n")
        self.assertEqual((lines[0], lines[4]), ("delayed", "unknown_topic 404"))

        self.pull_topic("shipping")
        self.client.add("shipping", {"order": 7}, id="7")
        worker = subprocess.Popen([sys.executable, "-B", EXAMPLES / "worker.py"], cwd=HERE.parent, stdout=subprocess.PIPE,
                                  env={**os.environ, "PYTHONPATH": str(HERE.parent)}, text=True)
        self.addCleanup(worker.stdout.close)
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)
        self.assertEqual(worker.stdout.readline(), "shipping 7 {'order': 7}\n")
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(20), 0)
        self.assertIsNone(self.client.get("shipping", "7"))

    def test_the_receiver_of_the_example_refuses_what_is_not_signed(self):
        with mock.patch.dict(os.environ, {"DQ_WEBHOOK_SECRETS": f"{NEW},{OLD}"}):
            app = runpy.run_path(str(EXAMPLES / "flask_app.py"))["app"]
        sink = self.sink()
        self.client.request("PUT", f"/v1/topics/{self.topic}", {"callback": sink.url, "secrets": [OLD]})
        self.client.add(self.topic, {"order": 42}, id="42")
        headers, body = sink.next()
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for _ in range(2):
                self.assertEqual(app.test_client().post("/hook", data=body, headers=dict(headers)).status_code, 204)
            self.assertEqual(app.test_client().post("/hook", data=b"{}", headers=dict(headers)).status_code, 401)
        self.assertEqual(out.getvalue(), "job 42 {'order': 42}\n")

    def test_a_failed_callback_comes_again_with_the_same_webhook_id(self):
        sink = self.sink(refusals=1)
        self.client.request("PUT", f"/v1/topics/{self.topic}", {"callback": sink.url, "secrets": [NEW], "retry": ["1ms"]})
        self.client.add(self.topic, 1)
        ids = [dq.Webhook(NEW).verify(*sink.next()) for _ in range(2)]
        self.assertEqual(ids[0], ids[1])


if __name__ == "__main__":
    unittest.main()
