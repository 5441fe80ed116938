package muxrl;

import java.lang.reflect.Array;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * As much JSON as the protocol needs: objects are Maps, arrays are Lists; numbers are Longs, or
 * Doubles if they have a fraction.
 */
public final class Json {
    private final String text;
    private int at = 0;

    private Json(String text) {
        this.text = text;
    }

    /** Returns a value as it is now, to be written later. */
    static Json of(Object value) {
        return new Json(write(value));
    }

    /** Returns the text of numbers, strings, booleans, nulls, arrays, Collections and Maps. */
    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Json) {
            out.append(((Json) value).text);
        } else if (value instanceof String) {
            writeString((String) value, out);
        } else if (value instanceof Map) {
            out.append('{');
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                writeString((String) entry.getKey(), out);
                out.append(':');
                write(entry.getValue(), out);
                out.append(',');
            }
            close('}', out);
        } else if (value instanceof Collection) {
            out.append('[');
            for (Object element : (Collection<?>) value) {
                write(element, out);
                out.append(',');
            }
            close(']', out);
        } else if (value != null && value.getClass().isArray()) {
            out.append('[');
            for (int i = 0; i < Array.getLength(value); i++) {
                write(Array.get(value, i), out);
                out.append(',');
            }
            close(']', out);
        } else if (value instanceof Number && !Double.isFinite(((Number) value).doubleValue())) {
            out.append("null"); // JSON has no NaN; the server refuses it, and says where it is
        } else if (value == null || value instanceof Boolean || value instanceof Number) {
            out.append(value);
        } else {
            throw new IllegalArgumentException(value + " is no number, array or map");
        }
    }

    private static void close(char bracket, StringBuilder out) {
        if (out.charAt(out.length() - 1) == ',') {
            out.setLength(out.length() - 1);
        }
        out.append(bracket);
    }

    private static void writeString(String value, StringBuilder out) {
        out.append('"');
        for (char c : value.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }

    /** Throws IllegalArgumentException if the text is not JSON. */
    public static Object read(String text) {
        Json json = new Json(text);
        Object value = json.value();
        if (json.next() != '\0') {
            throw json.unexpected();
        }
        return value;
    }

    private Object value() {
        char first = next();
        if (first == '{') {
            Map<String, Object> map = new LinkedHashMap<>();
            for (boolean more = open('}'); more; more = isMore('}')) {
                String key = string();
                take(':');
                map.put(key, value());
            }
            return map;
        }
        if (first == '[') {
            List<Object> list = new ArrayList<>();
            for (boolean more = open(']'); more; more = isMore(']')) {
                list.add(value());
            }
            return list;
        }
        if (first == '"') {
            return string();
        }
        int from = at;
        while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        String word = text.substring(from, at);
        switch (word) {
            case "null":
                return null;
            case "true":
                return true;
            case "false":
                return false;
            default: // NumberFormatException is an IllegalArgumentException
                return word.matches("-?[0-9]{1,18}")
                        ? (Object) Long.valueOf(word)
                        : (Object) Double.valueOf(word);
        }
    }

    private String string() {
        take('"');
        StringBuilder out = new StringBuilder();
        while (at < text.length() && text.charAt(at) != '"') {
            char c = text.charAt(at++);
            if (c == '\\' && at < text.length()) {
                char escaped = text.charAt(at++);
                int known = "bfnrt".indexOf(escaped);
                if (escaped == 'u' && at + 4 <= text.length()) {
                    c = (char) Integer.parseInt(text.substring(at, at += 4), 16);
                } else {
                    c = known < 0 ? escaped : "\b\f\n\r\t".charAt(known);
                }
            }
            out.append(c);
        }
        take('"');
        return out.toString();
    }

    /** Skips blanks; returns the character there, or NUL at the end. */
    private char next() {
        while (at < text.length() && Character.isWhitespace(text.charAt(at))) {
            at++;
        }
        return at < text.length() ? text.charAt(at) : '\0';
    }

    private void take(char expected) {
        if (next() != expected) {
            throw unexpected();
        }
        at++;
    }

    private boolean open(char close) {
        at++;
        if (next() != close) {
            return true;
        }
        at++;
        return false;
    }

    private boolean isMore(char close) {
        char c = next();
        if (c != ',' && c != close) {
            throw unexpected();
        }
        at++;
        return c == ',';
    }

    private IllegalArgumentException unexpected() {
        return new IllegalArgumentException("not JSON at character " + at);
    }
}
