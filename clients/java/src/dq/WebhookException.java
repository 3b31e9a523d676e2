package dq;

/** A request is not a callback of dq, or is too old. Answer it with 401. */
public final class WebhookException extends Exception {
    private static final long serialVersionUID = 1;

    WebhookException(String message) {
        super(message);
    }
}
