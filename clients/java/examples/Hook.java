// docs: receive
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import dq.Webhook;
import dq.WebhookException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

final class Hook {
    // DQ_WEBHOOK_SECRETS has the secret; during a rotation, it has the new secret, a comma and the old secret.
    private static final Webhook WEBHOOK = new Webhook(
        Objects.requireNonNull(System.getenv("DQ_WEBHOOK_SECRETS"), "DQ_WEBHOOK_SECRETS is not set").split(","));
    // In real life: a unique key in the database, written together with the effects of the job.
    private static final Set<String> SEEN = ConcurrentHashMap.newKeySet();

    public static void main(String[] arguments) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])), 0);
        server.createContext("/hook", Hook::handle);
        server.start();
        System.out.println("listens on " + server.getAddress().getPort());
    }

    private static void handle(HttpExchange exchange) throws IOException {
        byte[] body = exchange.getRequestBody().readAllBytes();
        int status = 204;
        try {
            String webhookId = WEBHOOK.verify(exchange.getRequestHeaders()::getFirst, body);
            if (SEEN.add(webhookId)) {
                String id = exchange.getRequestHeaders().getFirst("dq-job-id");
                System.out.println("job " + id + " " + new String(body, StandardCharsets.UTF_8));
            }
        } catch (WebhookException e) {
            status = 401;
        }
        exchange.sendResponseHeaders(status, -1);
        exchange.close();
    }
}
// docs: end of receive
