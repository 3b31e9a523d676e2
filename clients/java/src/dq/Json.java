package dq;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/**
 * Reads and writes JSON: Map, List, String, Long, BigDecimal, Boolean and null. A client that has a library of its own
 * gives bodies as text (NewJob.ofJson), and gets them as text (bodyJson).
 */
public final class Json {
    /** Deeper JSON is refused, so that it cannot use up the stack. */
    private static final int DEEPEST = 500;
    private static final Pattern NUMBER = Pattern.compile("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?");

    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** JSON that is written already. */
    static final class Raw {
        final String text;

        Raw(String text) {
            this.text = text;
        }
    }

    /** Reads a text. Throws IllegalArgumentException if it is not JSON. */
    public static Object read(String text) {
        Json json = new Json(text);
        Object value = json.value(0);
        json.skipSpace();
        if (json.at < text.length()) {
            throw json.error();
        }
        return value;
    }

    /** Writes a Map, Iterable, CharSequence, Number, Boolean, or null. */
    public static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private Object value(int depth) {
        skipSpace();
        if (depth > DEEPEST) {
            throw error();
        }
        switch (peek()) {
            case '{':
                return object(depth);
            case '[':
                return list(depth);
            case '"':
                return string();
            case 't':
                return word("true", true);
            case 'f':
                return word("false", false);
            case 'n':
                return word("null", null);
            default:
                return number();
        }
    }

    private Map<String, Object> object(int depth) {
        Map<String, Object> object = new LinkedHashMap<>();
        at++;
        if (isNext('}')) {
            return object;
        }
        do {
            skipSpace();
            String name = string();
            expect(':');
            object.put(name, value(depth + 1));
        } while (isNext(','));
        expect('}');
        return object;
    }

    private List<Object> list(int depth) {
        List<Object> list = new ArrayList<>();
        at++;
        if (isNext(']')) {
            return list;
        }
        do {
            list.add(value(depth + 1));
        } while (isNext(','));
        expect(']');
        return list;
    }

    private String string() {
        if (peek() != '"') {
            throw error();
        }
        StringBuilder out = new StringBuilder();
        for (at++; peek() != '"'; at++) {
            if (peek() < ' ') {
                throw error();
            }
            out.append(peek() == '\\' ? escaped() : peek());
        }
        at++;
        return out.toString();
    }

    private char escaped() {
        at++;
        int simple = "\"\\/bfnrt".indexOf(peek());
        if (simple >= 0) {
            return "\"\\/\b\f\n\r\t".charAt(simple);
        }
        if (peek() != 'u' || at + 5 > text.length() || !text.substring(at + 1, at + 5).matches("[0-9a-fA-F]{4}")) {
            throw error();
        }
        at += 4;
        return (char) Integer.parseInt(text.substring(at - 3, at + 1), 16);
    }

    private Object number() {
        int start = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String number = text.substring(start, at);
        if (!NUMBER.matcher(number).matches()) {
            throw error();
        }
        try {
            return number.matches("-?\\d{1,18}") ? (Object) Long.valueOf(number) : new BigDecimal(number);
        } catch (NumberFormatException e) {
            throw error();
        }
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw error();
        }
        at += word.length();
        return value;
    }

    private char peek() {
        if (at >= text.length()) {
            throw error();
        }
        return text.charAt(at);
    }

    private boolean isNext(char wanted) {
        skipSpace();
        if (peek() != wanted) {
            return false;
        }
        at++;
        return true;
    }

    private void expect(char wanted) {
        if (!isNext(wanted)) {
            throw error();
        }
    }

    private void skipSpace() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private IllegalArgumentException error() {
        return new IllegalArgumentException("not JSON at character " + at);
    }

    private static void write(Object value, StringBuilder out) {
        if (value == null || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof Raw) {
            out.append(((Raw) value).text);
        } else if (value instanceof Number) {
            if (!Double.isFinite(((Number) value).doubleValue()) && !(value instanceof BigDecimal)) {
                throw new IllegalArgumentException(value + " is not a number of JSON");
            }
            out.append(value);
        } else if (value instanceof CharSequence) {
            writeString((CharSequence) value, out);
        } else if (value instanceof Map<?, ?>) {
            char before = '{';
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                writeString(String.valueOf(entry.getKey()), out.append(before));
                write(entry.getValue(), out.append(':'));
                before = ',';
            }
            out.append(before == '{' ? "{}" : "}");
        } else if (value instanceof Iterable<?>) {
            char before = '[';
            for (Object one : (Iterable<?>) value) {
                write(one, out.append(before));
                before = ',';
            }
            out.append(before == '[' ? "[]" : "]");
        } else {
            throw new IllegalArgumentException("no JSON can be made of " + value.getClass().getName());
        }
    }

    private static void writeString(CharSequence string, StringBuilder out) {
        out.append('"');
        string.chars().forEach(c -> {
            if (c == '"' || c == '\\') {
                out.append('\\').append((char) c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", c));
            } else {
                out.append((char) c);
            }
        });
        out.append('"');
    }
}
