package dq;

import java.time.Duration;

/** The lease of a job, as far as this process knows it. */
final class Lease {
    /** How long after a move of jobs between nodes no lease ends (docs/PULL.md). */
    private static final Duration MOVE_GRACE = Duration.ofSeconds(10);

    private final Duration length;
    private volatile long end;

    Lease(Duration length) {
        this.length = length;
        renew();
    }

    void renew() {
        end = System.nanoTime() + length.toNanos();
    }

    /** Whether a request about the job that failed with this error should be repeated. */
    boolean canHold(DqException error) {
        long now = System.nanoTime();
        if (error.code().equals("nodes_moving") && end - now < MOVE_GRACE.toNanos()) {
            end = now + MOVE_GRACE.toNanos();
        }
        return isPassing(error) && end - now > 0;
    }

    /** Whether the same request may succeed later. Errors that a proxy before dq can cause are passing. */
    static boolean isPassing(DqException error) {
        return error.isTransient() || error.code().equals("bad_answer")
            || error.status() == 429 || error.status() >= 500;
    }
}
