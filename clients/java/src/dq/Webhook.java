package dq;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.function.UnaryOperator;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * Verifies callbacks with the secrets of a topic: signatures of Standard Webhooks (docs/CALLBACKS.md, "Signatures"). A
 * secret that dq itself would refuse is an IllegalArgumentException.
 *
 * <p>While a secret is rotated, give the new one and the old one: a signature of either is enough. A request whose
 * timestamp differs by more than five minutes from this host's clock is refused.
 */
public final class Webhook {
    private final List<byte[]> keys;
    private final Duration tolerance;

    public Webhook(String... secrets) {
        this(Duration.ofMinutes(5), secrets);
    }

    public Webhook(Duration tolerance, String... secrets) {
        if (secrets.length == 0) {
            throw new IllegalArgumentException("a webhook needs a secret");
        }
        this.tolerance = tolerance;
        keys = new ArrayList<>();
        for (String secret : secrets) {
            keys.add(key(secret, "secret " + (keys.size() + 1)));
        }
    }

    /**
     * Returns the webhook-id, by which to recognize repeats.
     *
     * @param header returns the value of a header or null, such as request::getHeader of a servlet
     * @param body the body as it came; it is empty if the method of the topic is GET
     */
    public String verify(UnaryOperator<String> header, byte[] body) throws WebhookException {
        return verify(header, body, Instant.now());
    }

    /** The same at a given time. */
    public String verify(UnaryOperator<String> header, byte[] body, Instant now) throws WebhookException {
        String id = header.apply("webhook-id");
        String timestamp = header.apply("webhook-timestamp");
        String signatures = header.apply("webhook-signature");
        if (id == null || id.isEmpty() || signatures == null || signatures.isEmpty()) {
            throw new WebhookException("the request is not signed");
        }
        if (timestamp == null || !timestamp.matches("[0-9]{1,15}")) {
            throw new WebhookException("webhook-timestamp is not a time");
        }
        if (Math.abs(now.getEpochSecond() - Long.parseLong(timestamp)) > tolerance.getSeconds()) {
            throw new WebhookException("webhook-timestamp is too far from the clock of this host");
        }
        boolean isValid = false;
        for (byte[] key : keys) {
            byte[] wanted = bytes("v1," + Base64.getEncoder().encodeToString(mac(key, id + "." + timestamp + ".", body)));
            for (String given : signatures.split(" ")) {
                isValid |= MessageDigest.isEqual(wanted, bytes(given));
            }
        }
        if (!isValid) {
            throw new WebhookException("no signature is valid");
        }
        return id;
    }

    /** Returns the key of a secret. An error names the secret, and does not show it. */
    private static byte[] key(String secret, String name) {
        if (secret.startsWith("whsk_") || secret.startsWith("whpk_")) {
            throw new IllegalArgumentException(name + " is a key of an asymmetric signature, which dq does not use");
        }
        if (!secret.startsWith("whsec_")) {
            byte[] key = bytes(secret);
            if (key.length < 8) {
                throw new IllegalArgumentException(name + " has " + key.length + " bytes, and needs at least 8");
            }
            return key;
        }
        String encoded = secret.substring("whsec_".length()).replaceAll("=+$", "");
        if (!encoded.matches("[A-Za-z0-9+/]*") || encoded.length() % 4 == 1) {
            throw new IllegalArgumentException(name + " has no base64 after whsec_");
        }
        byte[] key = Base64.getDecoder().decode(encoded);
        if (key.length < 24 || key.length > 64) {
            throw new IllegalArgumentException(name + " has " + key.length + " bytes after whsec_, and needs 24 to 64");
        }
        return key;
    }

    private static byte[] mac(byte[] key, String head, byte[] body) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            mac.update(bytes(head));
            return mac.doFinal(body);
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("every Java has HmacSHA256", e);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
