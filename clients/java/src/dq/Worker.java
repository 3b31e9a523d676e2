package dq;

import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
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

    /** How long to wait before the next try, and how long if somebody must change the topic first. */
    private static final long PAUSE_MS = 1000;
    private static final long LONG_PAUSE_MS = 10_000;

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
    private final CountDownLatch stopped = new CountDownLatch(1);

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

    /**
     * Works until stop() is called or the thread is interrupted. The job in hand is finished and reported first.
     *
     * @throws DqException if waiting does not help, for example if there is no such topic
     */
    @Override
    public void run() {
        ScheduledExecutorService extender = Executors.newSingleThreadScheduledExecutor(work -> {
            Thread thread = new Thread(work, "dq-extend");
            thread.setDaemon(true);
            return thread;
        });
        try {
            while (!isStopped() && !Thread.currentThread().isInterrupted()) {
                reserve().forEach(job -> workOn(job, extender));
            }
        } catch (RuntimeException | Error e) {
            LOG.log(Level.ERROR, "the worker ends", e);
            throw e;
        } finally {
            extender.shutdownNow();
        }
    }

    /** Ends run() after the job in hand. */
    public void stop() {
        stopped.countDown();
    }

    private boolean isStopped() {
        return stopped.getCount() == 0;
    }

    private List<ReservedJob> reserve() {
        try {
            return client.reserve(topics, 1, wait, lease);
        } catch (DqException e) {
            if (Thread.currentThread().isInterrupted()) {
                return List.of();
            }
            // With not_pull, the topic is held, or somebody has changed its mode.
            boolean isNotPulled = e.code().equals("not_pull");
            if (!isNotPulled && !Lease.isPassing(e)) {
                throw e;
            }
            LOG.log(Level.WARNING, "no jobs are reserved", e);
            if (pause(isNotPulled ? LONG_PAUSE_MS : PAUSE_MS)) {
                Thread.currentThread().interrupt();
            }
            return List.of();
        }
    }

    /** Waits until the worker is told to stop, but not for longer. Returns whether the thread was interrupted. */
    private boolean pause(long ms) {
        try {
            stopped.await(ms, TimeUnit.MILLISECONDS);
            return false;
        } catch (InterruptedException e) {
            return true;
        }
    }

    private void workOn(ReservedJob job, ScheduledExecutorService extender) {
        String place = "job " + job.id + " of " + job.topic;
        Lease held = new Lease(lease);
        long period = Math.max(lease.toMillis() / 3, 1);
        ScheduledFuture<?> extending =
            extender.scheduleAtFixedRate(() -> extend(job, held, place), period, period, TimeUnit.MILLISECONDS);
        Runnable report;
        boolean isInterrupted = false;
        try {
            String answer = handler.handle(job);
            report = () -> client.ack(job, answer);
        } catch (Throwable e) {
            if (e instanceof VirtualMachineError && !(e instanceof StackOverflowError)) {
                throw (VirtualMachineError) e;
            }
            LOG.log(Level.ERROR, place + " failed", e);
            String reason = reason(e);
            report = () -> client.nack(job, reason);
            isInterrupted = e instanceof InterruptedException;
        } finally {
            extending.cancel(false);
        }
        // The report is made without the interrupt, which would end it. The interrupt then ends run().
        isInterrupted |= Thread.interrupted();
        if (reportOutcome(report, held, place, isInterrupted)) {
            Thread.currentThread().interrupt();
        }
    }

    private static String reason(Throwable failure) {
        try {
            return String.valueOf(failure);
        } catch (RuntimeException e) {
            return failure.getClass().getName();
        }
    }

    /**
     * Reports an outcome. It repeats the report while that may help, unless the worker is told to stop.
     *
     * @return whether the thread was interrupted before the report or during it
     */
    private boolean reportOutcome(Runnable report, Lease held, String place, boolean isInterrupted) {
        while (true) {
            try {
                report.run();
                return isInterrupted | Thread.interrupted();
            } catch (DqException e) {
                // An interrupt cuts a try off. So this was not the last one.
                boolean isCutOff = Thread.interrupted();
                boolean isLast = (isStopped() || isInterrupted) && !isCutOff;
                isInterrupted |= isCutOff;
                if (isLast || !held.canHold(e)) {
                    // The lease ends by itself, and the job comes again.
                    LOG.log(Level.WARNING, "the outcome of " + place + " was not reported", e);
                    return isInterrupted;
                }
                LOG.log(Level.WARNING, "the outcome of " + place + " is reported again", e);
                isInterrupted |= !isCutOff && pause(PAUSE_MS);
            }
        }
    }

    private void extend(ReservedJob job, Lease held, String place) {
        try {
            client.extend(job, lease);
            held.renew();
        } catch (DqException e) {
            LOG.log(Level.WARNING, "the lease of " + place + " was not extended", e);
            if (!Lease.isPassing(e)) {
                throw e; // ends the schedule
            }
        }
    }
}
