package dq;

import com.sun.net.httpserver.HttpServer;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.stream.Collectors;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** Tests against a daemon. clients/run starts it and sets the environment. */
final class ClientTest {
    private static final String NEW = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    private static final String OLD = "the-old-secret";
    private static final Duration HOUR = Duration.ofHours(1);
    private static final Duration TEN_SECONDS = Duration.ofSeconds(10);

    private static final Logger LOG = Logger.getLogger("dq");

    private final Client client = Client.create();
    // Tests share the daemon. Each has topics and tags of its own.
    private final String topic =
        register("java." + UUID.randomUUID().toString().substring(0, 13), Map.of("callback", "http://127.0.0.1:9/hook"));

    public static void main(String[] arguments) throws Exception {
        LOG.setUseParentHandlers(false);
        List<Method> tests = Arrays.stream(ClientTest.class.getDeclaredMethods())
            .filter(method -> method.getName().startsWith("test") && !Modifier.isStatic(method.getModifiers()))
            .sorted(Comparator.comparing(Method::getName)).collect(Collectors.toList());
        int failed = 0;
        for (Method test : tests) {
            try {
                test.invoke(new ClientTest());
                System.out.println("ok      " + test.getName());
            } catch (InvocationTargetException e) {
                failed++;
                System.out.println("FAILED  " + test.getName());
                e.getCause().printStackTrace(System.out);
            }
        }
        System.out.println(tests.size() - failed + " passed, " + failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }

    private static void same(Object wanted, Object given) {
        if (!Objects.equals(wanted, given)) {
            throw new AssertionError("wanted " + wanted + ", given " + given);
        }
    }

    private static void isTrue(boolean condition) {
        same(true, condition);
    }

    private static void near(long ms, Duration fromNow) {
        long distance = ms - System.currentTimeMillis() - fromNow.toMillis();
        if (Math.abs(distance) > 5000) {
            throw new AssertionError(distance + " ms away");
        }
    }

    private static <E extends Exception> E refusal(Class<E> kind, Callable<?> call) throws Exception {
        try {
            call.call();
        } catch (Exception e) {
            if (kind.isInstance(e)) {
                return kind.cast(e);
            }
            throw e;
        }
        throw new AssertionError("nothing is thrown");
    }

    private static <T> T next(BlockingQueue<T> queue) throws InterruptedException {
        T value = queue.poll(20, TimeUnit.SECONDS);
        if (value == null) {
            throw new AssertionError("nothing came in time");
        }
        return value;
    }

    private static void eventually(Callable<Boolean> condition) throws Exception {
        for (long deadline = System.nanoTime() + 20_000_000_000L; !condition.call(); Thread.sleep(20)) {
            isTrue(System.nanoTime() < deadline);
        }
    }

    private static void control(String path) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(System.getenv("DQ_CONTROL_URL") + path))
            .POST(HttpRequest.BodyPublishers.noBody()).build();
        same(204, HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.discarding()).statusCode());
    }

    private String register(String name, Map<String, Object> settings) {
        client.request("PUT", "/v1/topics/" + name, null, settings);
        return name;
    }

    private String pulled(Map<String, Object> settings) {
        Map<String, Object> all = new TreeMap<>(settings);
        all.put("mode", "pull");
        return register(topic + ".pull", all);
    }

    /** What came to a receiver. */
    private static final class Callback {
        final Map<String, String> headers = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
        byte[] body;

        String verify(String... secrets) throws WebhookException {
            return new Webhook(secrets).verify(headers::get, body);
        }
    }

    /** A receiver. It refuses the first callbacks. */
    private static final class Sink implements AutoCloseable {
        final BlockingQueue<Callback> callbacks = new LinkedBlockingQueue<>();
        private final HttpServer server;

        Sink(int refusals) throws Exception {
            AtomicInteger left = new AtomicInteger(refusals);
            server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
            server.createContext("/", exchange -> {
                Callback callback = new Callback();
                exchange.getRequestHeaders().forEach((name, values) -> callback.headers.put(name, values.get(0)));
                callback.body = exchange.getRequestBody().readAllBytes();
                exchange.sendResponseHeaders(left.getAndDecrement() > 0 ? 503 : 204, -1);
                exchange.close();
                callbacks.add(callback);
            });
            server.start();
        }

        String url() {
            return "http://127.0.0.1:" + server.getAddress().getPort() + "/hook";
        }

        @Override
        public void close() {
            server.stop(0);
        }
    }

    /** A proxy before dq that answers the first requests as the rules say: scripted() of clients/run. */
    private static final class Script {
        private static final HttpClient HTTP = HttpClient.newHttpClient();
        final String url;
        private final URI place;

        Script(Object... rules) throws Exception {
            String name = UUID.randomUUID().toString();
            url = System.getenv("DQ_SCRIPTED_URL") + "/" + name;
            place = URI.create(System.getenv("DQ_SCRIPTED_URL") + "/scripts/" + name);
            HttpRequest request = HttpRequest.newBuilder(place)
                .POST(HttpRequest.BodyPublishers.ofString(Json.write(Arrays.asList(rules)))).build();
            same(204, HTTP.send(request, HttpResponse.BodyHandlers.discarding()).statusCode());
        }

        /** Returns the keys of the requests to paths with this end. */
        @SuppressWarnings("unchecked")
        List<Object> keys(String end) throws Exception {
            HttpRequest request = HttpRequest.newBuilder(place).build();
            Object requests = Json.read(HTTP.send(request, HttpResponse.BodyHandlers.ofString()).body());
            return ((List<Map<String, Object>>) requests).stream()
                .filter(one -> ((String) one.get("path")).endsWith(end)).map(one -> one.get("key"))
                .collect(Collectors.toList());
        }

        /** A client that makes one try. */
        Client client() {
            return Client.builder().url(url).retryFor(Duration.ZERO).build();
        }

        static Map<String, Object> rule(String path, int times, int status, Object body) {
            return Map.of("path", path, "times", times, "status", status, "body", body);
        }

        static Map<String, Object> problem(String path, int times, int status, String code) {
            return rule(path, times, status, Map.of("status", status, "code", code, "detail", "as the test says"));
        }

        /** Returns a rule that answers a reserve with a job. */
        static Map<String, Object> reserved(String id) {
            Map<String, Object> job = new TreeMap<>(Map.of("topic", "t", "id", id, "body", id, "headers", Map.of(),
                "tags", List.of(), "attempt", 1, "due_ms", 1, "added_ms", 1, "token", "AQ"));
            job.put("lease_until_ms", System.currentTimeMillis() + 60_000);
            return rule("/reserve$", 1, 200, Map.of("jobs", List.of(job)));
        }

        static Map<String, Object> done() {
            return rule("/ack$", 1, 200, Map.of("outcome", "done"));
        }

        /** A worker whose jobs are all done gets this. */
        static Map<String, Object> noJobs() {
            return rule("/reserve$", 1000, 200, Map.of("jobs", List.of()));
        }
    }

    /** Collects the log. */
    private static final class Logged extends Handler implements AutoCloseable {
        final BlockingQueue<String> lines = new LinkedBlockingQueue<>();

        Logged() {
            LOG.addHandler(this);
        }

        @Override
        public void publish(LogRecord entry) {
            lines.add(entry.getLevel() + " " + entry.getMessage() + ": " + entry.getThrown());
        }

        boolean has(String text) {
            return lines.stream().anyMatch(line -> line.contains(text));
        }

        @Override
        public void flush() {}

        @Override
        public void close() {
            LOG.removeHandler(this);
        }
    }

    /** Runs a worker until the condition holds. */
    private static void whileWorking(Worker worker, Callable<Boolean> condition) throws Exception {
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Thread thread = new Thread(worker);
        thread.setUncaughtExceptionHandler((ended, e) -> failure.set(e));
        thread.start();
        try {
            eventually(() -> !thread.isAlive() || condition.call());
        } finally {
            worker.stop();
            thread.join(20_000);
        }
        isTrue(!thread.isAlive());
        same(null, failure.get());
    }

    /** A program of the examples. */
    private static final class Program implements AutoCloseable {
        final Process process;
        final BlockingQueue<String> lines = new LinkedBlockingQueue<>();

        Program(Map<String, String> environment, String... command) throws Exception {
            List<String> all = new ArrayList<>(List.of(
                Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-cp", System.getProperty("java.class.path")));
            all.addAll(List.of(command));
            ProcessBuilder builder = new ProcessBuilder(all).redirectErrorStream(true);
            builder.environment().putAll(environment);
            process = builder.start();
            InputStreamReader output = new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8);
            Thread reader = new Thread(() -> {
                try {
                    new BufferedReader(output).lines().forEach(lines::add);
                } catch (UncheckedIOException e) {
                    lines.add("the program has ended");
                }
            });
            reader.setDaemon(true);
            reader.start();
        }

        @Override
        public void close() {
            process.destroyForcibly();
        }
    }

    void testAJobIsAddedShownChangedAndDeleted() {
        for (String id : List.of("7", "p/ü 1", "..", "a?b#c%25", "batch")) {
            Map<String, Object> body = Map.of("n", List.of(1L, "超时 \"\\\n\u0001"));
            Added added = client.add(topic, new NewJob(body).id(id).delay(HOUR).tags("shop:7").priority(5));
            same(List.of(topic, id, "new"), List.of(added.topic, added.id, added.outcome));
            near(added.dueMs, HOUR);
            Job job = client.get(topic, id);
            same(List.of("delayed", body, List.of("shop:7")), List.of(job.state, job.body, job.fields.get("tags")));
            same("replaced", client.add(topic, new NewJob(2).id(id).delay(Duration.ofMinutes(1))).outcome);
            client.change(topic, id, Map.of("body", 3, "delay", "2h"));
            job = client.get(topic, id);
            same(3L, job.body);
            near((Long) job.fields.get("due_ms"), Duration.ofHours(2));
            same(List.of(true, false), List.of(client.delete(topic, id), client.delete(topic, id)));
            same(null, client.get(topic, id));
        }
    }

    void testTimesAreWhatTheCallerMeans() {
        Instant at = Instant.now().plus(Duration.ofHours(3)).truncatedTo(ChronoUnit.MILLIS);
        same(at.toEpochMilli(), client.add(topic, new NewJob(1).runAt(at)).dueMs);
        near(client.add(topic, new NewJob(null).delay(Duration.ofSeconds(90))).dueMs, Duration.ofSeconds(90));
    }

    void testEachJobOfABatchHasItsResult() {
        client.add(topic, new NewJob(1).id("there").delay(HOUR));
        List<Added> results = client.addMany(topic, List.of(
            new NewJob(1).delay(HOUR), NewJob.ofJson("{\"two\": 2}").id("two").delay(HOUR),
            new NewJob(3).id("there").onConflict("reject"), new NewJob(4).id("there").onConflict("keep"),
            new NewJob(5).priority("urgent")));
        List<String> shown = results.stream()
            .map(r -> r.error == null ? r.outcome : r.error.code() + " " + r.error.status()).collect(Collectors.toList());
        same(List.of("new", "new", "exists 409", "kept", "bad_field 422"), shown);
        same(7, UUID.fromString(results.get(0).id).version());
        same("priority", results.get(4).error.field());
    }

    void testARefusalHasACode() throws Exception {
        DqException e = refusal(DqException.class, () -> client.add("no-such-topic", new NewJob(1)));
        same("unknown_topic 404", e.code() + " " + e.status());
        e = refusal(DqException.class, () -> client.add(topic, new NewJob(1).priority("urgent")));
        same("bad_field priority", e.code() + " " + e.field());
        e = refusal(DqException.class, () -> client.reserve(List.of(topic), 1, Duration.ZERO, null));
        same("not_pull false", e.code() + " " + e.isTransient());
        e = refusal(DqException.class, () -> Client.builder().token("dq_wrong").build().get(topic, "1"));
        same("unauthorized", e.code());
        refusal(IllegalArgumentException.class, () -> Client.builder().url("unix:/run/dq/http.sock").build());
    }

    void testAServerThatDoesNotAnswerIsAnErrorInTime() throws Exception {
        try (ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            Client impatient = Client.builder().url("http://127.0.0.1:" + listener.getLocalPort())
                .timeout(Duration.ofMillis(200)).retryFor(Duration.ofMillis(500)).build();
            long started = System.nanoTime();
            DqException e = refusal(DqException.class, () -> impatient.add(topic, new NewJob(1)));
            same("no_answer true", e.code() + " " + e.isTransient());
            long tookMs = (System.nanoTime() - started) / 1_000_000;
            isTrue(tookMs > 200 && tookMs < 2000);
            // The client has closed the connection of the try, after its request.
            try (Socket connection = listener.accept()) {
                connection.setSoTimeout(5000);
                isTrue(connection.getInputStream().readAllBytes().length > 0);
            }
        }
    }

    void testAServerMustBeTrusted() throws Exception {
        Client.Builder builder = Client.builder().url(System.getenv("DQ_TLS_URL"));
        DqException e = refusal(DqException.class, () -> builder.build().get(topic, "1"));
        same("untrusted false", e.code() + " " + e.isTransient());
        // A connection that ends during the handshake says nothing about the certificate.
        try (ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            Thread closer = new Thread(() -> {
                try (Socket connection = listener.accept()) {
                    connection.getInputStream().read(new byte[65536]);
                    connection.getOutputStream().write(new byte[] {0x16, 3, 3, 0, 80});    // an answer of 80 bytes begins
                } catch (IOException failure) {
                    throw new UncheckedIOException(failure);
                }
            });
            closer.start();
            String closed = "https://127.0.0.1:" + listener.getLocalPort();
            Client closing = Client.builder().url(closed).retryFor(Duration.ZERO).build();
            e = refusal(DqException.class, () -> closing.get(topic, "1"));
            same("no_answer true", e.code() + " " + e.isTransient());
            closer.join();
        }
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        try (InputStream pem = Files.newInputStream(Path.of(System.getenv("DQ_CA_FILE")))) {
            trusted.setCertificateEntry("dq", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(trusted);
        SSLContext tls = SSLContext.getInstance("TLS");
        tls.init(null, factory.getTrustManagers(), null);
        Client trusting = builder.tls(tls).build();
        for (String outcome : List.of("new", "replaced")) {
            same(outcome, trusting.add(topic, new NewJob(1).id("1").delay(HOUR)).outcome);
        }
    }

    @SuppressWarnings("unchecked")
    void testARetryAfterALostAnswerAddsNoSecondJob() {
        Client lossy = Client.builder().url(System.getenv("DQ_LOSSY_URL")).build();
        Added added = lossy.add(topic, new NewJob(1).delay(HOUR).tags(topic));
        same("kept", added.outcome);
        NewJob job = new NewJob(2).delay(HOUR).tags(topic);
        for (Added result : lossy.addMany(topic, List.of(job, job, job))) {
            same("kept", result.outcome);
        }
        Object jobs = client.request("GET", "/v1/jobs?tag=" + topic, null, null).get("jobs");
        same(4, ((List<Object>) jobs).size());
        // The first try has deleted the job. The second try does not know this, and finds no job.
        same(false, lossy.delete(topic, added.id));
        same(null, client.get(topic, added.id));
    }

    void testAnAddWaitsForARestartOfDq() throws Exception {
        client.add(topic, new NewJob(1).id("before").delay(HOUR));
        control("/stop");
        Client once = Client.builder().retryFor(Duration.ZERO).build();
        same("no_answer", refusal(DqException.class, () -> once.add(topic, new NewJob(1))).code());
        control("/start?after_ms=500");
        Client patient = Client.builder().retryFor(Duration.ofMinutes(1)).build();
        same("new", patient.add(topic, new NewJob(1).delay(HOUR)).outcome);
        same("delayed", client.get(topic, "before").state);
    }

    void testACallbackAfterADelayHasAValidSignature() throws Exception {
        try (Sink sink = new Sink(0)) {
            for (List<String> secrets : List.of(List.of(NEW), List.of(NEW, OLD))) {
                register(topic, Map.of("callback", sink.url(), "secrets", secrets));
                Added added = client.add(topic, new NewJob(Map.of("zh", "超时")).delay(Duration.ofSeconds(1)));
                Callback callback = next(sink.callbacks);
                isTrue(System.currentTimeMillis() >= added.dueMs);
                same("{\"zh\":\"超时\"}", new String(callback.body, StandardCharsets.UTF_8));
                same(callback.headers.get("webhook-id"), callback.verify(NEW));
                callback.verify("another-secret", NEW);
                if (secrets.contains(OLD)) {
                    callback.verify(OLD);
                }
                refusal(WebhookException.class, () -> callback.verify("another-secret"));
                callback.body = Arrays.copyOf(callback.body, callback.body.length + 1);
                refusal(WebhookException.class, () -> callback.verify(NEW, OLD));
            }
        }
    }

    void testAFailedCallbackComesAgainWithTheSameWebhookId() throws Exception {
        try (Sink sink = new Sink(1)) {
            register(topic, Map.of("callback", sink.url(), "secrets", List.of(NEW), "retry", List.of("1ms")));
            client.add(topic, new NewJob(1));
            same(next(sink.callbacks).verify(NEW), next(sink.callbacks).verify(NEW));
        }
    }

    @SuppressWarnings("unchecked")
    void testTheTableOfSignatures() throws Exception {
        List<Map<String, Object>> cases =
            (List<Map<String, Object>>) Json.read(Files.readString(Path.of("..", "signatures.json")));
        isTrue(cases.size() > 30);
        for (Map<String, Object> one : cases) {
            Map<String, String> headers = (Map<String, String>) one.get("headers");
            Webhook webhook = new Webhook(((List<String>) one.get("secrets")).toArray(new String[0]));
            byte[] body = ((String) one.get("body")).getBytes(StandardCharsets.UTF_8);
            boolean isValid = true;
            try {
                webhook.verify(headers::get, body, Instant.ofEpochSecond((Long) one.get("now")));
            } catch (WebhookException e) {
                isValid = false;
            }
            same(one.get("name") + ": " + one.get("valid"), one.get("name") + ": " + isValid);
        }
    }

    @SuppressWarnings("unchecked")
    void testASecretThatDqRefusesIsRefused() throws Exception {
        Object cases = Json.read(Files.readString(Path.of("..", "secrets.json")));
        for (Map<String, Object> one : (List<Map<String, Object>>) cases) {
            String message = null;
            try {
                new Webhook(((List<String>) one.get("secrets")).toArray(new String[0]));
            } catch (IllegalArgumentException e) {
                message = e.getMessage();
                same(null, e.getCause());
            }
            same(one.get("error"), message);
        }
        try (Program hook = new Program(Map.of(), "Hook", "0")) {
            isTrue(hook.process.waitFor(20, TimeUnit.SECONDS) && hook.process.exitValue() != 0);
            eventually(() -> hook.lines.stream().anyMatch(line -> line.contains("DQ_WEBHOOK_SECRETS is not set")));
        }
    }

    void testABodyOfJsonIsOneValue() throws Exception {
        for (String wrong : List.of(
                "1}, {\"id\": \"2\", \"body\": 2", "1, \"priority\": 1", "", "01", "+1", "\"\n\"", "\"\\u+123\"")) {
            refusal(IllegalArgumentException.class, () -> NewJob.ofJson(wrong));
        }
        client.add(topic, NewJob.ofJson(" {\"n\": 12345678901234567891} ").id("1").delay(HOUR));
        same("{\"n\":12345678901234567891}", Json.write(client.get(topic, "1").body));
    }

    void testJsonIsReadAndWritten() throws Exception {
        String text = "{\"a\":[1,-2,3.50,1e3,12345678901234567890,true,false,null,\"\",{},[]],\"\\u8d85\\n\":\"\\ud83d\\ude00\"}";
        String written = Json.write(Json.read(" " + text.replace(",", " ,\n")));
        same("{\"a\":[1,-2,3.50,1E+3,12345678901234567890,true,false,null,\"\",{},[]],\"超\\u000a\":\"😀\"}", written);
        for (String wrong : List.of("", "{", "[1", "[1,]", "{\"a\"}", "{\"a\":1,}", "{a:1}", "01x", "tru", "\"", "\"\\x\"",
                "\"\\u12\"", "1 2", "[".repeat(100_000), "--1", "nul")) {
            refusal(IllegalArgumentException.class, () -> Json.read(wrong));
        }
        for (Object wrong : List.of(Double.NaN, new Object())) {
            refusal(IllegalArgumentException.class, () -> Json.write(wrong));
        }
    }

    void testAJobThatWasRemovedAtItsReserveNeedsNoReport() throws Exception {
        String pulled = pulled(Map.of("on_reserve", "remove"));
        client.add(pulled, new NewJob(1).id("1"));
        ReservedJob job = client.reserve(List.of(pulled), 1, TEN_SECONDS, null).get(0);
        same(0L, job.leaseUntilMs);
        client.nack(job, "too late");
        client.ack(job, null);
    }

    void testAJobIsReservedAndReported() throws Exception {
        String pulled = pulled(Map.of());
        same(0, client.reserve(List.of(pulled), 1, Duration.ZERO, null).size());
        client.add(pulled, new NewJob(Map.of("a", 1)).id("1").delay(HOUR).headers(Map.of("x-shop", "7")).tags("t"));
        client.run(pulled, "1");
        ReservedJob job = client.reserve(List.of(pulled), 2, TEN_SECONDS, Duration.ofMinutes(1)).get(0);
        same(List.of("1", "{\"a\":1}", Map.of("x-shop", "7"), List.of("t"), 1),
            List.of(job.id, job.bodyJson(), job.headers, job.tags, job.attempt));
        isTrue(client.extend(job, Duration.ofMinutes(5)) > job.leaseUntilMs);
        client.nack(job, "not yet", Duration.ZERO);
        ReservedJob again = client.reserve(List.of(pulled), 1, TEN_SECONDS, null).get(0);
        same(2, again.attempt);
        client.ack(again, "done");
        client.ack(again, "done");    // a repeat gets the same answer
        same("gone", refusal(DqException.class, () -> {
            client.nack(again, null);
            return null;
        }).code());
    }

    void testAWorkerSurvivesErrorsAndAnOutage() throws Exception {
        String pulled = pulled(Map.of("retry", List.of("1ms")));
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        Logged logged = new Logged();
        // The worker tries again to extend the lease.
        Script script = new Script(Script.rule("/extend$", 1, 500, "<h1>Error</h1>"));
        Client impatient = Client.builder().url(script.url).retryFor(Duration.ofMillis(200)).build();
        Worker worker = new Worker(impatient, List.of(pulled), job -> {
            seen.add(job.body + " " + job.attempt);
            if (job.body.equals("once more") && job.attempt == 1) {
                throw new IllegalStateException("not now");
            }
            if (job.body.equals("long")) {
                Thread.sleep(2000);    // longer than its lease, which is extended
            }
            return "worked";
        }, Duration.ofMillis(500), Duration.ofSeconds(1));
        Thread thread = new Thread(worker);
        thread.start();
        client.add(pulled, new NewJob("once more"));
        same(List.of("once more 1", "once more 2"), List.of(next(seen), next(seen)));
        isTrue(logged.has(" failed: java.lang.IllegalStateException: not now"));
        client.add(pulled, new NewJob("long").id("long"));
        same("long 1", next(seen));
        eventually(() -> client.get(pulled, "long") == null);
        control("/stop");
        eventually(() -> logged.has("no jobs are reserved"));
        control("/start");
        client.add(pulled, new NewJob("last"));
        same("last 1", next(seen));
        worker.stop();
        thread.join(20_000);
        isTrue(!thread.isAlive() && seen.isEmpty());
        logged.close();
    }

    void testAWorkerGoesOnAfterRefusalsThatPass() throws Exception {
        Script script = new Script(
            Script.rule("/reserve$", 1, 403, "<h1>Forbidden</h1>"),
            Script.problem("/reserve$", 1, 429, "too_many_failures"),
            Script.rule("/reserve$", 1, 200, "{\"jobs\": [{\"body\": " + "[".repeat(1000) + "]".repeat(1000) + "}]}"),
            Script.rule("/reserve$", 1, 200, Map.of("it", "works")),
            Script.reserved("2"), Script.done(), Script.noJobs());
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        Worker.Handler handler = job -> {
            seen.add(job.id);
            return null;
        };
        Duration wait = Duration.ofMillis(200);
        try (Logged logged = new Logged()) {
            Worker worker = new Worker(script.client(), List.of("t"), handler, wait, Duration.ofMinutes(1));
            whileWorking(worker, () -> !script.keys("/ack").isEmpty());
            same(List.of("2"), List.copyOf(seen));
            same(4L, logged.lines.stream().filter(line -> line.contains("no jobs are reserved")).count());

            // Somebody may change the mode of the topic back. A stop ends this pause, which is longer.
            long started = System.nanoTime();
            whileWorking(new Worker(client, List.of(topic), handler), () -> logged.has("not_pull"));
            isTrue(System.nanoTime() - started < 5_000_000_000L);

            Client wrong = Client.builder().token("dq_wrong").build();
            for (Client refused : List.of(wrong, client)) {
                DqException e = refusal(DqException.class, () -> {
                    new Worker(refused, List.of("no-such-topic"), handler).run();
                    return null;
                });
                same(refused == wrong ? "unauthorized" : "unknown_topic", e.code());
                isTrue(logged.has("SEVERE the worker ends: dq.DqException: " + e.code()));
            }
        }
    }

    void testAWorkerReportsUntilTheLeaseEnds() throws Exception {
        Map<String, Object> cut = Script.rule("/ack$", 1, 0, "");
        Map<String, Object> alwaysCut = Script.rule("/ack$", 1000, 0, "");
        Duration wait = Duration.ofMillis(200);
        Duration minute = Duration.ofMinutes(1);
        try (Logged logged = new Logged()) {
            // An error that passes does not end the reports.
            Script script = new Script(
                Script.reserved("1"), cut, Script.rule("/ack$", 1, 500, "<h1>Error</h1>"), Script.done(),
                Script.noJobs());
            Worker worker = new Worker(script.client(), List.of("t"), job -> "done", wait, minute);
            whileWorking(worker, () -> script.keys("/ack").size() == 3);
            isTrue(!logged.has("was not reported"));

            // While jobs are moved between nodes, no lease ends. Afterwards it does.
            Script moving = new Script(
                Script.reserved("1"), Script.problem("/ack$", 2, 503, "nodes_moving"), Script.done(),
                Script.reserved("2"), alwaysCut, Script.noJobs());
            worker = new Worker(moving.client(), List.of("t"), job -> "done", wait, Duration.ofSeconds(1));
            whileWorking(worker, () -> logged.has("job 2 of t was not reported"));
            same(3, moving.keys("/1/ack").size());
            isTrue(!logged.has("job 1 of t was not reported"));

            // A stop ends the repeats.
            Script away = new Script(Script.reserved("1"), alwaysCut, Script.noJobs());
            worker = new Worker(away.client(), List.of("t"), job -> "done", wait, minute);
            whileWorking(worker, () -> !away.keys("/ack").isEmpty());
        }
    }

    void testNoAnswerOfAHandlerPreventsItsReport() throws Exception {
        String pulled = pulled(Map.of("max_attempts", 1));
        Map<String, Worker.Handler> handlers = new TreeMap<>(Map.of(
            "huge", job -> "\ud83d\ud83d\ude00".repeat(1_000_000),
            "error", job -> {
                throw new ExceptionInInitializerError("no class");
            },
            "deep", job -> endless(job),
            "mute", job -> {
                throw new IllegalStateException() {
                    private static final long serialVersionUID = 1;

                    @Override
                    public String toString() {
                        throw new IllegalStateException("no text");
                    }
                };
            }));
        for (String id : handlers.keySet()) {
            client.add(pulled, new NewJob(1).id(id));
        }
        whileWorking(new Worker(client, List.of(pulled), job -> handlers.get(job.id).handle(job)), () -> {
            for (String id : handlers.keySet()) {
                Job job = client.get(pulled, id);
                if (id.equals("huge") ? job != null : !"dead".equals(job.state)) {
                    return false;
                }
            }
            return true;
        });

        // Without memory, the worker ends, and says so.
        client.add(pulled, new NewJob(1));
        try (Logged logged = new Logged()) {
            Worker worker = new Worker(client, List.of(pulled), job -> {
                throw new OutOfMemoryError("as the test says");
            });
            try {
                worker.run();
                throw new AssertionError("nothing is thrown");
            } catch (OutOfMemoryError e) {
                isTrue(logged.has("SEVERE the worker ends: java.lang.OutOfMemoryError"));
            }
        }
    }

    private static String endless(ReservedJob job) {
        return endless(job) + "!";
    }

    void testAnInterruptLosesNoReportAndEndsTheWorker() throws Exception {
        String pulled = pulled(Map.of("max_attempts", 1));
        Map<String, Worker.Handler> handlers = Map.of(
            "done", job -> {
                Thread.currentThread().interrupt();
                return "done";
            },
            "ended", job -> {
                throw new InterruptedException("as the test says");
            });
        for (String id : handlers.keySet()) {
            client.add(pulled, new NewJob(1).id(id));
            AtomicReference<Boolean> isInterrupted = new AtomicReference<>();
            Thread thread = new Thread(() -> {
                new Worker(client, List.of(pulled), handlers.get(id)).run();
                isInterrupted.set(Thread.currentThread().isInterrupted());
            });
            thread.start();
            thread.join(20_000);
            same(true, isInterrupted.get());
            Job job = client.get(pulled, id);
            same(id.equals("done") ? null : "dead", job == null ? null : job.state);
        }
        // An interrupt during the report.
        Script script = new Script(
            Script.reserved("1"), Script.rule("/ack$", 1, 0, ""), Script.done(), Script.noJobs());
        Thread thread = new Thread(new Worker(script.client(), List.of("t"), job -> "done"));
        thread.start();
        eventually(() -> script.keys("/ack").size() == 1);
        thread.interrupt();    // ends the pause before the second try, or cuts the first one off
        thread.join(20_000);
        same(2, script.keys("/ack").size());
    }

    void testAPostHasAKeyAndOneTryIsOneTry() throws Exception {
        Client lossy = Client.builder().url(System.getenv("DQ_LOSSY_URL")).build();
        Map<String, Object> body = Map.of("id", "1", "body", 1, "delay", "1h");
        same("replaced", lossy.request("POST", "/v1/topics/" + topic + "/jobs", null, body).get("outcome"));

        for (Duration retryFor : List.of(TEN_SECONDS, Duration.ZERO)) {
            int tries = retryFor.isZero() ? 1 : 2;
            Script script = new Script(Script.rule("/run$", 1, 0, ""));
            Client other = Client.builder().url(script.url).retryFor(retryFor).build();
            isTrue(other.get(topic, "1") != null);
            Callable<?> call = () -> other.request("POST", "/v1/topics/" + topic + "/jobs/1/run", null, null);
            if (tries == 1) {
                same("no_answer", refusal(DqException.class, call).code());
            } else {
                call.call();
            }
            List<Object> keys = script.keys("/run");
            same(tries, keys.size());
            isTrue(keys.get(0) != null && keys.get(0).equals(keys.get(tries - 1)));
        }
    }

    void testTheExamplesWork() throws Exception {
        register("orders", Map.of("callback", "http://127.0.0.1:9/hook"));
        try (Program add = new Program(Map.of(), "Add")) {
            same("delayed", next(add.lines));
            isTrue(next(add.lines).length() == 36 && next(add.lines).length() == 36);
            same("unknown_topic 404", next(add.lines));
        }
        register("shipping", Map.of("mode", "pull"));
        client.add("shipping", new NewJob(Map.of("order", 7)).id("7"));
        try (Program worker = new Program(Map.of(), "Ship")) {
            same("shipping 7 {\"order\":7}", next(worker.lines));
            eventually(() -> client.get("shipping", "7") == null);
            worker.process.destroy();
            isTrue(worker.process.waitFor(20, TimeUnit.SECONDS));
        }
    }

    @SuppressWarnings("unchecked")
    void testTheReceiverOfTheExampleRefusesWhatIsNotSigned() throws Exception {
        try (Program hook = new Program(Map.of("DQ_WEBHOOK_SECRETS", NEW + "," + OLD), "Hook", "0")) {
            String url = "http://127.0.0.1:" + next(hook.lines).replaceAll(".* ", "") + "/hook";
            register(topic, Map.of("callback", url, "secrets", List.of(OLD), "retry", List.of("1h")));
            client.add(topic, new NewJob(Map.of("order", 42)).id("42"));
            same("job 42 {\"order\":42}", next(hook.lines));
            register(topic, Map.of("callback", url, "secrets", List.of("another-secret"), "retry", List.of("1h")));
            client.add(topic, new NewJob(1).id("43"));
            eventually(() -> {
                List<Map<String, Object>> log = (List<Map<String, Object>>) client.get(topic, "43").fields.get("log");
                return !log.isEmpty() && Long.valueOf(401).equals(log.get(0).get("status"));
            });
        }
    }
}
