package dq;

import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/**
 * A worker for pull topics (docs/PULL.md). It reserves one job after the other, and calls the handler for each.
 *
 * <p>If the handler returns, the job is done; the text that it returns, which may be null, is kept in the job's record. If
 * it throws, the job is tried again, or becomes a dead letter. The lease is extended while the handler runs. A job may
 * come twice: if this process or dq fails before the report, or if the lease ends. Run several workers in several
 * threads to work on several jobs at a time.
 */
public final class Worker implements Runnable {
    private static final Logger LOG = System.getLogger("dq");

    /** Works on one job. */
    @FunctionalInterface
    public interface Handler {
        String handle(ReservedJob job) throws Exception;
    }

    private final Client client;
    private final List<String> topics;
    private final Handler handler;
    private final Duration wait;
    private final Duration lease;
    private volatile boolean isStopped;

    public Worker(Client client, List<String> topics, Handler handler) {
        this(client, topics, handler, Duration.ofSeconds(10), Duration.ofMinutes(1));
    }

    /** @param wait how long one reserve waits, so how long stop() may take */
    public Worker(Client client, List<String> topics, Handler handler, Duration wait, Duration lease) {
        this.client = client;
        this.topics = topics;
        this.handler = handler;
        this.wait = wait;
        this.lease = lease;
    }

    /** Works until stop() is called or the thread is interrupted. */
    @Override
    public void run() {
        ScheduledExecutorService extender = Executors.newSingleThreadScheduledExecutor(work -> {
            Thread thread = new Thread(work, "dq-extend");
            thread.setDaemon(true);
            return thread;
        });
        try {
            while (!isStopped && !Thread.currentThread().isInterrupted()) {
                reserve().forEach(job -> workOn(job, extender));
            }
        } finally {
            extender.shutdownNow();
        }
    }

    /** Ends run() after the job in hand. */
    public void stop() {
        isStopped = true;
    }

    private List<ReservedJob> reserve() {
        try {
            return client.reserve(topics, 1, wait, lease);
        } catch (DqException e) {
            if (!e.isTransient()) {
                throw e;
            }
            LOG.log(Level.WARNING, "no jobs are reserved", e);
        }
        try {
            Thread.sleep(1000);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        return List.of();
    }

    private void workOn(ReservedJob job, ScheduledExecutorService extender) {
        String place = "job " + job.id + " of " + job.topic;
        long period = Math.max(lease.toMillis() / 3, 1);
        ScheduledFuture<?> extending =
            extender.scheduleAtFixedRate(() -> extend(job, place), period, period, TimeUnit.MILLISECONDS);
        String answer = null;
        Exception failure = null;
        try {
            answer = handler.handle(job);
        } catch (Exception e) {
            LOG.log(Level.ERROR, place + " failed", e);
            failure = e;
        } finally {
            extending.cancel(false);
        }
        try {
            if (failure == null) {
                client.ack(job, answer);
            } else {
                String reason = failure.toString();
                client.nack(job, reason.substring(0, Math.min(reason.length(), 200)));
            }
        } catch (DqException e) {
            // The lease ends by itself, and the job comes again.
            LOG.log(Level.WARNING, "the outcome of " + place + " was not reported", e);
        }
    }

    private void extend(ReservedJob job, String place) {
        try {
            client.extend(job, lease);
        } catch (DqException e) {
            LOG.log(Level.WARNING, "the lease of " + place + " was not extended", e);
            if (!e.isTransient()) {
                throw e; // ends the schedule
            }
        }
    }
}
