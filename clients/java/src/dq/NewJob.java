package dq;

import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A job to add. docs/HTTP.md ("Jobs") says what each field means; only those that are set are sent. */
public final class NewJob {
    private final Map<String, Object> fields = new LinkedHashMap<>();

    /** @param body what Json.write takes */
    public NewJob(Object body) {
        fields.put("body", body);
    }

    /** A job whose body is JSON that is written already. Anything else is an IllegalArgumentException. */
    public static NewJob ofJson(String json) {
        Json.read(json);
        return new NewJob(new Json.Raw(json));
    }

    /** Without an id, the client makes one before its first try, so that a retry does not add a second job. */
    public NewJob id(String id) {
        return set("id", id);
    }

    public NewJob delay(Duration delay) {
        return set("delay", span(delay));
    }

    public NewJob runAt(Instant at) {
        return set("run_at", at.toString());
    }

    /** "high", "normal" or "low". */
    public NewJob priority(String level) {
        return set("priority", level);
    }

    /** From 0 to 4294967295, the lowest first. */
    public NewJob priority(long number) {
        return set("priority", number);
    }

    /** "replace", "reject" or "keep". */
    public NewJob onConflict(String policy) {
        return set("on_conflict", policy);
    }

    public NewJob maxAttempts(int count) {
        return set("max_attempts", count);
    }

    public NewJob ttr(Duration ttr) {
        return set("ttr", span(ttr));
    }

    public NewJob headers(Map<String, String> headers) {
        return set("headers", headers);
    }

    public NewJob tags(String... tags) {
        return set("tags", List.of(tags));
    }

    public NewJob path(String path) {
        return set("path", path);
    }

    public NewJob url(String url) {
        return set("url", url);
    }

    /** What dq adds when this job is accepted: a Map or a List of Maps. */
    public NewJob then(Object jobs) {
        return set("then", jobs);
    }

    private NewJob set(String name, Object value) {
        fields.put(name, value);
        return this;
    }

    /** Returns the job as the API takes it, with an id. */
    Map<String, Object> written() {
        Map<String, Object> written = new LinkedHashMap<>(fields);
        if (written.get("id") == null) {
            // Nobody else has this id. So a job with this id was added by an earlier try.
            written.put("id", Uuid.v7());
            written.putIfAbsent("on_conflict", "keep");
        }
        return written;
    }

    /** Returns a duration as dq reads it. */
    static String span(Duration duration) {
        return duration.toMillis() + "ms";
    }
}
