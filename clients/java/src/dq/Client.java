package dq;

import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import javax.net.ssl.SSLContext;

/** A client of dq over HTTP, for any number of threads. It keeps its connections. */
public final class Client {
    /** The pause before the second try, and the longest one. Each pause is twice as long as the one before it. */
    private static final long FIRST_PAUSE_MS = 100;
    private static final long LONGEST_PAUSE_MS = 2000;
    /** How many characters of an answer or a reason dq keeps. */
    private static final long TEXT_MAX = 200;

    private final String url;
    private final String token;
    private final Duration timeout;
    private final Duration retryFor;
    private final HttpClient http;

    private Client(Builder builder) {
        url = builder.url.replaceAll("/+$", "");
        token = builder.token;
        timeout = builder.timeout;
        retryFor = builder.retryFor;
        if (!url.matches("https?://[^/].*")) {
            throw new IllegalArgumentException("the URL of dq must be http://… or https://…, not " + url);
        }
        HttpClient.Builder client = HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1).proxy(HttpClient.Builder.NO_PROXY).connectTimeout(timeout);
        if (builder.tls != null) {
            client.sslContext(builder.tls);
        }
        http = client.build();
    }

    /** Returns a client with all defaults. */
    public static Client create() {
        return builder().build();
    }

    public static Builder builder() {
        return new Builder();
    }

    public static final class Builder {
        private String url = fromEnvironment("DQ_URL", "http://127.0.0.1:8088");
        private String token = fromEnvironment("DQ_TOKEN", null);
        private Duration timeout = Duration.ofSeconds(5);
        private Duration retryFor = Duration.ofSeconds(10);
        private SSLContext tls;

        /** Default: the variable DQ_URL of the environment, then http://127.0.0.1:8088. */
        public Builder url(String url) {
            this.url = url;
            return this;
        }

        /** Default: the variable DQ_TOKEN of the environment. */
        public Builder token(String token) {
            this.token = token;
            return this;
        }

        /** How long one try may take. Default: 5 s. */
        public Builder timeout(Duration timeout) {
            this.timeout = timeout;
            return this;
        }

        /**
         * How long a request is tried again while dq cannot be reached or cannot do it now. Default: 10 s. Zero: one
         * try. (The HttpClient of Java sends a GET once more if a connection that was kept breaks.)
         */
        public Builder retryFor(Duration retryFor) {
            this.retryFor = retryFor;
            return this;
        }

        /** Whom to trust, and as whom to come. */
        public Builder tls(SSLContext tls) {
            this.tls = tls;
            return this;
        }

        public Client build() {
            return new Client(this);
        }

        private static String fromEnvironment(String name, String otherwise) {
            String value = System.getenv(name);
            return value == null || value.isEmpty() ? otherwise : value;
        }
    }

    /** Stores a job. */
    public Added add(String topic, NewJob job) {
        Map<String, Object> answer = request("POST", jobsPath(topic), null, job.written());
        field("outcome", String.class, answer);
        return new Added(answer, null);
    }

    /** Stores up to 10,000 jobs, and returns for each of them how it was stored, or why not. */
    public List<Added> addMany(String topic, List<NewJob> jobs) {
        List<Object> written = jobs.stream().map(NewJob::written).collect(Collectors.toList());
        Map<String, Object> answer = request("POST", jobsPath(topic) + "/batch", null, Map.of("jobs", written));
        List<Added> results = new ArrayList<>();
        for (Map<String, Object> result : objects(field("results", List.class, answer))) {
            int status = ((Long) result.get("status")).intValue();
            results.add(status < 400 ? new Added(result, null) : new Added(Map.of(), DqException.of(status, result)));
        }
        return results;
    }

    /** Returns a pending job or the latest dead letter of this id, or null. */
    public Job get(String topic, String id) {
        Map<String, Object> answer = unlessMissing("GET", jobPath(topic, id));
        return answer == null ? null : new Job(answer);
    }

    /** Changes fields of a job: delay, run_at, body, priority, max_attempts, ttr, headers, tags, path, url. */
    public Map<String, Object> change(String topic, String id, Map<String, Object> fields) {
        return request("PATCH", jobPath(topic, id), null, fields);
    }

    /** Removes a job, in any state. False: there is none (any more), also if the answer to an earlier try was lost. */
    public boolean delete(String topic, String id) {
        return unlessMissing("DELETE", jobPath(topic, id)) != null;
    }

    /** Delivers a delayed job now. */
    public void run(String topic, String id) {
        request("POST", jobPath(topic, id) + "/run", null, null);
    }

    /**
     * Reserves up to max due jobs of pull topics, and waits for the first one, at most a minute.
     *
     * @param lease how long the leases hold; null: as the topic says
     */
    public List<ReservedJob> reserve(List<String> topics, int max, Duration wait, Duration lease) {
        Map<String, Object> wanted = new LinkedHashMap<>(Map.of("topics", topics, "max", max, "wait", NewJob.span(wait)));
        if (lease != null) {
            wanted.put("lease", NewJob.span(lease));
        }
        // The request has no Idempotency-Key. With a key, the reserve would continue after the client has gone away,
        // and take a job.
        Map<String, Object> answer = send("POST", "/v1/reserve", null, wanted, timeout.plus(wait));
        return objects(field("jobs", List.class, answer)).stream().map(ReservedJob::new).collect(Collectors.toList());
    }

    /** Reports that a reserved job is done. The first 200 characters of the answer, or null, are kept in its record. */
    public void ack(ReservedJob job, String answer) {
        report(job, "ack", "answer", cut(answer));
    }

    /** Reports that a reserved job could not be done. It is tried again as its topic says, or becomes a dead letter. */
    public void nack(ReservedJob job, String reason) {
        report(job, "nack", "reason", cut(reason));
    }

    /** The same with the time until the next attempt. */
    public void nack(ReservedJob job, String reason, Duration delay) {
        report(job, "nack", "reason", cut(reason), "delay", NewJob.span(delay));
    }

    /** Takes more time for a reserved job, and returns until when, in Unix milliseconds. */
    public long extend(ReservedJob job, Duration lease) {
        return field("until_ms", Long.class, report(job, "extend", "lease", NewJob.span(lease)));
    }

    /**
     * Makes any request of the API, such as request("PUT", "/v1/topics/orders", null, settings). The request may be
     * sent again. So a POST without a key (Idempotency-Key) gets one.
     */
    public Map<String, Object> request(String method, String path, String key, Object body) {
        return send(method, path, key == null && method.equals("POST") ? Uuid.v7() : key, body, timeout);
    }

    /** Makes a request, and adds no key. A reserve needs none, and dq knows a repeated report by its token. */
    private Map<String, Object> send(String method, String path, String key, Object body, Duration timeout) {
        // Before Java 16, only a timeout of the request itself ends a try.
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + path)).timeout(timeout)
            .header("accept", "application/json").header("user-agent", "dq-java/0.1");
        if (body == null) {
            request.method(method, BodyPublishers.noBody());
        } else {
            request.header("content-type", "application/json").method(method, BodyPublishers.ofString(Json.write(body)));
        }
        if (key != null) {
            request.header("idempotency-key", key);
        }
        if (token != null) {
            request.header("authorization", "Bearer " + token);
        }
        long deadline = System.nanoTime() + retryFor.toNanos();
        for (long pause = FIRST_PAUSE_MS;; pause = Math.min(pause * 2, LONGEST_PAUSE_MS)) {
            long wait = ThreadLocalRandom.current().nextLong(pause / 2, pause);
            DqException error;
            try {
                HttpResponse<String> response = exchange(request.build(), timeout);
                Object answer = answerOf(response);
                if (response.statusCode() < 300 && answer instanceof Map<?, ?>) {
                    return object(answer);
                }
                error = DqException.of(response.statusCode(), answer);
                wait = Math.max(wait, retryAfterMs(response));
            } catch (DqException e) {
                error = e;
            }
            boolean isTooLate = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(wait) > deadline;
            if (!error.isTransient() || isTooLate || Thread.currentThread().isInterrupted()) {
                throw error;
            }
            pause(wait);
        }
    }

    private HttpResponse<String> exchange(HttpRequest request, Duration timeout) {
        CompletableFuture<HttpResponse<String>> response = http.sendAsync(request, BodyHandlers.ofString());
        String what = request.method() + " " + request.uri() + ": ";
        try {
            return response.get(timeout.toMillis(), TimeUnit.MILLISECONDS);
        } catch (ExecutionException e) {
            throw DqException.noAnswer(what + e.getCause(), e.getCause());
        } catch (TimeoutException e) {
            response.cancel(true);
            throw DqException.noAnswer(what + "no answer within " + timeout, e);
        } catch (InterruptedException e) {
            response.cancel(true);
            Thread.currentThread().interrupt();
            throw DqException.noAnswer(what + "interrupted", e);
        }
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw DqException.noAnswer("interrupted", e);
        }
    }

    private static Object answerOf(HttpResponse<String> response) {
        try {
            return response.body().isEmpty() ? Map.of() : Json.read(response.body());
        } catch (IllegalArgumentException e) {
            return null;
        }
    }

    private static long retryAfterMs(HttpResponse<?> response) {
        String seconds = response.headers().firstValue("retry-after").orElse("");
        return seconds.matches("\\d{1,6}") ? Long.parseLong(seconds) * 1000 : 0;
    }

    private Map<String, Object> unlessMissing(String method, String path) {
        try {
            return request(method, path, null, null);
        } catch (DqException e) {
            if (e.code().equals("not_found")) {
                return null;
            }
            throw e;
        }
    }

    private Map<String, Object> report(ReservedJob job, String report, String... fields) {
        if (job.token == null) {
            return Map.of("until_ms", 0L);
        }
        Map<String, Object> wanted = new LinkedHashMap<>(Map.of("token", job.token));
        for (int i = 0; i < fields.length; i += 2) {
            if (fields[i + 1] != null) {
                wanted.put(fields[i], fields[i + 1]);
            }
        }
        Map<String, Object> answer = send("POST", jobPath(job.topic, job.id) + "/" + report, null, wanted, timeout);
        field("outcome", String.class, answer);
        return answer;
    }

    /** Returns the field of an answer. An answer without it is not one of dq. */
    private static <T> T field(String name, Class<T> kind, Map<String, Object> answer) {
        if (!kind.isInstance(answer.get(name))) {
            throw new DqException("bad_answer", "the answer has no field " + name, 200, null, null);
        }
        return kind.cast(answer.get(name));
    }

    /** Returns the part of a text that dq keeps. Half of a surrogate pair becomes a question mark when it is sent. */
    private static String cut(String text) {
        return text == null ? null : text.codePoints().limit(TEXT_MAX)
            .collect(StringBuilder::new, StringBuilder::appendCodePoint, StringBuilder::append).toString();
    }

    private static String jobsPath(String topic) {
        return "/v1/topics/" + encoded(topic) + "/jobs";
    }

    private static String jobPath(String topic, String id) {
        return jobsPath(topic) + "/" + encoded(id);
    }

    private static String encoded(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> object(Object answer) {
        return (Map<String, Object>) answer;
    }

    @SuppressWarnings("unchecked")
    private static List<Map<String, Object>> objects(Object answer) {
        return (List<Map<String, Object>>) answer;
    }
}
