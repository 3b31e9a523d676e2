package dq;

import java.util.Map;

/** What became of one add. In a batch, error is set if the job was not stored; then the other fields are null or 0. */
public final class Added {
    public final String topic;
    public final String id;
    /** "new", "replaced", "kept" or "spooled". */
    public final String outcome;
    public final long dueMs;
    public final DqException error;

    Added(Map<String, Object> answer, DqException error) {
        topic = (String) answer.get("topic");
        id = (String) answer.get("id");
        outcome = (String) answer.get("outcome");
        dueMs = answer.get("due_ms") instanceof Long ? (Long) answer.get("due_ms") : 0;
        this.error = error;
    }
}
