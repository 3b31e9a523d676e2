package dq;

import java.security.cert.CertificateException;
import java.util.Map;
import java.util.Set;

/** A request was refused, or no answer came. */
public final class DqException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final String code;
    private final String detail;
    private final int status;
    private final String field;

    DqException(String code, String detail, int status, String field, Throwable cause) {
        super(code + ": " + detail, cause);
        this.code = code;
        this.detail = detail;
        this.status = status;
        this.field = field;
    }

    static DqException noAnswer(String detail, Throwable cause) {
        return new DqException(isUntrusted(cause) ? "untrusted" : "no_answer", detail, 0, null, cause);
    }

    /** A handshake also fails if the connection ends. Waiting helps then, but not against a wrong certificate. */
    private static boolean isUntrusted(Throwable cause) {
        return cause != null && (cause instanceof CertificateException || isUntrusted(cause.getCause()));
    }

    static DqException of(int status, Object answer) {
        if (answer instanceof Map<?, ?>) {
            Map<?, ?> problem = (Map<?, ?>) answer;
            if (problem.get("code") instanceof String) {
                String detail = String.valueOf(problem.get("detail"));
                return new DqException((String) problem.get("code"), detail, status, (String) problem.get("field"), null);
            }
        }
        return new DqException("bad_answer", "status " + status + " without a problem of dq", status, null, null);
    }

    /**
     * One of docs/HTTP.md ("Errors"), or one of the client's own: "no_answer" (after all tries there was no complete
     * answer, so the change may or may not have happened), "bad_answer" (something that is not dq answered, or the
     * answer cannot be read) and "untrusted" (the certificate of the server is not trusted).
     */
    public String code() {
        return code;
    }

    public String detail() {
        return detail;
    }

    /** The HTTP status, 0 without an answer. */
    public int status() {
        return status;
    }

    /** The field that is wrong, or null. */
    public String field() {
        return field;
    }

    /** Whether the same request may succeed later. */
    public boolean isTransient() {
        return Set.of("no_answer", "in_progress").contains(code) || Set.of(408, 502, 503, 504).contains(status);
    }
}
