import dq.Client;
import dq.Worker;
import java.util.List;

/** A worker for the pull topic `shipping`. SIGTERM ends it after the job in hand. */
final class Ship {
    // docs: work
    public static void main(String[] arguments) {
        Worker worker = new Worker(Client.create(), List.of("shipping"), job -> {
            System.out.println("shipping " + job.id + " " + job.bodyJson());
            return "shipped";    // kept in the job's record; an exception means: try again later
        });
        Thread working = new Thread(worker);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            worker.stop();
            try {
                working.join();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));
        working.start();
    }
    // docs: end of work
}
