package dq;

import java.security.SecureRandom;
import java.util.UUID;

final class Uuid {
    private static final SecureRandom RANDOM = new SecureRandom();

    private Uuid() {}

    /** Returns a UUID of version 7: the time in milliseconds, then 74 random bits. */
    static String v7() {
        long high = System.currentTimeMillis() << 16 | 0x7000 | RANDOM.nextInt(0x1000);
        long low = RANDOM.nextLong() & 0x3fffffffffffffffL | 0x8000000000000000L;
        return new UUID(high, low).toString();
    }
}
