package dq;

import java.util.List;
import java.util.Map;

/** A job of a pull topic that this client may work on until its lease ends. */
public final class ReservedJob {
    public final String topic;
    public final String id;
    public final Object body;
    public final Map<String, String> headers;
    public final List<String> tags;
    public final int attempt;
    public final long dueMs;
    public final long addedMs;
    /** 0 if the topic says on_reserve = "remove": the job is done then, and nothing is reported. */
    public final long leaseUntilMs;
    final String token;

    @SuppressWarnings("unchecked")
    ReservedJob(Map<String, Object> answer) {
        topic = (String) answer.get("topic");
        id = (String) answer.get("id");
        body = answer.get("body");
        headers = (Map<String, String>) answer.get("headers");
        tags = (List<String>) answer.get("tags");
        attempt = ((Long) answer.get("attempt")).intValue();
        dueMs = (Long) answer.get("due_ms");
        addedMs = (Long) answer.get("added_ms");
        leaseUntilMs = answer.get("lease_until_ms") instanceof Long ? (Long) answer.get("lease_until_ms") : 0;
        token = (String) answer.get("token");
    }

    /** The body as JSON, for a library of your own. */
    public String bodyJson() {
        return Json.write(body);
    }
}
