package dq;

import java.util.Map;

/** A job or its latest dead letter. */
public final class Job {
    public final String topic;
    public final String id;
    /** "delayed", "ready", "leased" or "dead". */
    public final String state;
    public final Object body;
    /** All fields that dq shows, such as due_ms, attempts, log and tags. */
    public final Map<String, Object> fields;

    Job(Map<String, Object> answer) {
        topic = (String) answer.get("topic");
        id = (String) answer.get("id");
        state = (String) answer.get("state");
        body = answer.get("body");
        fields = answer;
    }
}
