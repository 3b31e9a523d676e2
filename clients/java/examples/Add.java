import dq.Added;
import dq.Client;
import dq.DqException;
import dq.Job;
import dq.NewJob;
import java.time.Duration;
import java.util.List;
import java.util.Map;

/** Adds jobs, and shows and removes them. DQ_URL and DQ_TOKEN say where dq is. */
final class Add {
    public static void main(String[] arguments) {
        // docs: add
        Client client = Client.create();    // DQ_URL, or http://127.0.0.1:8088
        NewJob order = new NewJob(Map.of("order", 42)).id("order-42").delay(Duration.ofMinutes(30)).tags("shop:7");
        client.add("orders", order);
        Job job = client.get("orders", "order-42");
        System.out.println(job == null ? "there is no such job" : job.state);
        client.delete("orders", "order-42");

        // The body of the second job is JSON text, for example from a JSON library.
        List<NewJob> jobs = List.of(new NewJob(Map.of("order", 1)), NewJob.ofJson("{\"order\": 2}"));
        for (Added result : client.addMany("orders", jobs)) {
            System.out.println(result.error == null ? result.id : result.error.code());
        }

        try {
            client.add("no-such-topic", new NewJob(1));
        } catch (DqException e) {
            System.out.println(e.code() + " " + e.status());    // unknown_topic 404
        }
        // docs: end of add
    }
}
