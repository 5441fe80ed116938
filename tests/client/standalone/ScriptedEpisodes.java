package muxrl;

import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/** Does what scripted_episodes.py does, and prints the same. Arguments: address, token. */
final class ScriptedEpisodes {
    private static final double PATIENCE_S = 2.4;
    private static final String TEXT = "quotes \" and \\, é, ☃, 😀";

    private static void show(Object... namesAndValues) {
        Map<String, Object> record = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            record.put((String) namesAndValues[i], namesAndValues[i + 1]);
        }
        System.out.println(Json.write(record));
    }

    private static Map<String, Object> observe(int episode, int t) {
        Map<String, Object> seen = new HashMap<>();
        seen.put("b", new double[][] {{t / 7.0, -episode / 3.0}, {0.5, -2.5e-7 * t}});
        if (t < 4) {
            double[] observation = {0.1 * t, episode / 8.0, 1e-3};
            int[] mask = {1, 0, 1, t % 2};
            seen.put("a", Map.of("observation", observation, "action_mask", mask));
        }
        if (t % 2 == 1) {
            seen.put("c", (t + episode) % 5);
        }
        return seen;
    }

    private static void play(PolicyClient client, int episode) {
        boolean isTraining = episode % 2 == 0;
        String id = client.startEpisode("episode-" + episode, isTraining, null);
        for (int t = 0; t < 6; t++) {
            Map<String, Object> seen = observe(episode, t);
            if (t == 1) {
                Map<String, Object> actions =
                        Map.of("a", 2, "b", List.of(0.5, -0.25), "c", new long[] {1, 2});
                client.logAction(id, seen, actions, Map.of("a", -0.5), null);
            } else {
                show("episode", id, "t", t, "actions", client.getAction(id, seen));
            }
            client.logReturns(id, Map.of("a", 0.1 * t, "b", -1.5));
            Set<String> terminated = t == 3 ? Set.of("a") : Set.of();
            client.logReturns(id, Map.of("b", 0.25f), terminated, Set.of(), Map.of());
        }
        client.logReturns(id, Map.of(), Set.of(), Set.of("c"), Map.of("c", 3));
        Map<String, ?> last = Map.of("b", List.of(List.of(1.0, 2.0), List.of(3.0, 4.0)));
        Map<String, Object> metrics = Map.of("win", 1, "way", Map.of("a", 2.5));
        Map<String, Object> ended = client.endEpisode(id, last, isTraining, null, metrics);
        show("episode", id, "num_steps", ended.get("num_steps"), "returns", ended.get("returns"));
    }

    /** Shows the error of something that fails. */
    private static void showError(Runnable verb) {
        try {
            verb.run();
        } catch (PolicyClient.RefusedByServer error) {
            show("error", "RefusedByServer", "has_message", !error.getMessage().isEmpty(),
                    "code", error.code, "agent_id", error.agentId, "expected", error.expected,
                    "got", error.got);
            return;
        } catch (PolicyClient.ClientError error) {
            show("error", error.getClass().getSimpleName(),
                    "has_message", !error.getMessage().isEmpty());
            return;
        }
        show("error", null);
    }

    /** Does what is refused, one thing after the other. */
    private static void fail(PolicyClient client, String address, String token) {
        client.startEpisode("refused", true, null);
        showError(() -> client.getAction("refused", Map.of("b", new int[] {1, 2, 3})));
        showError(() -> client.getAction("refused", Map.of())); // it is over
        client.startEpisode("refused-at-its-end", true, null);
        showError(() -> client.endEpisode("refused-at-its-end", Map.of("nobody", 1), false));
        client.startEpisode("misused", true, null);
        showError(() -> client.startEpisode("misused", true, null));
        showError(() -> client.logAction("misused", observe(0, 0), Map.of("a", 2), Map.of(), null));
        double[][] nan = {{Double.NaN, 0}, {0, 0}};
        client.startEpisode("nan", true, null);
        showError(() -> client.getAction("nan", Map.of("b", nan)));
        int[] tooMany = new int[300_000];
        Arrays.fill(tooMany, 1);
        showError(() -> client.getAction("misused", Map.of("c", tooMany))); // over the limit
        showError(() -> client.startEpisode("a/b", true, null));
        client.startEpisode("lost", true, null);
        PolicyClient other = new PolicyClient(address, token, 30, 600);
        other.startEpisode("lost", true, null); // repeats the first client's start
        other.abortEpisode("lost", "");
        showError(() -> client.getAction("lost", observe(0, 0)));
        showError(() -> new PolicyClient(address, "wrong", 30, 600));
        show("episode", client.startEpisode(TEXT, true, null));
        client.abortEpisode(TEXT, TEXT);
        other.startEpisode("left open", true, null);
        other.close();
    }

    /** Plays on while the server's side does what the first number of "b" stands for. */
    private static void outlast(PolicyClient client, PolicyClient impatient) {
        client.startEpisode("outlast", true, null);
        int t = 0;
        for (String trouble : List.of("half", "cut", "swallow", "outage", "none", "hold")) {
            double[][] seen = {{100 + t++, 0}, {0, 0}};
            if (trouble.equals("hold")) {
                impatient.startEpisode("impatient", true, null);
                showError(() -> impatient.getAction("impatient", Map.of("c", 1)));
            }
            show("trouble", trouble, "actions", client.getAction("outlast", Map.of("b", seen)));
            client.logReturns("outlast", Map.of("b", 1));
        }
        double[][] last = {{1, 2}, {3, 4}};
        client.logReturns("outlast", Map.of(), Set.of(), Set.of("b"), Map.of("b", last));
        last[0][0] = Double.NaN; // it is refused if the client has kept no copy
        Map<String, Object> ended = client.endEpisode("outlast");
        show("num_steps", ended.get("num_steps"), "returns", ended.get("returns"));
        client.startEpisode("long outage", true, null);
        double[][] seen = {{106, 0}, {0, 0}};
        showError(() -> client.getAction("long outage", Map.of("b", seen)));
        client.startEpisode("after it", true, null); // waits
        ended = client.endEpisode("after it");
        show("num_steps", ended.get("num_steps"), "returns", ended.get("returns"));
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(new java.io.PrintStream(System.out, true, "UTF-8"));
        try (PolicyClient client = new PolicyClient(arguments[0], arguments[1], PATIENCE_S, 600)) {
            Map<?, ?> agents = (Map<?, ?>) client.spec().get("agents");
            show("agents", new TreeSet<>(agents.keySet()), "is_evaluation", client.isEvaluation());
            for (int episode = 0; episode < 4; episode++) {
                play(client, episode);
            }
            fail(client, arguments[0], arguments[1]);
            outlast(client, new PolicyClient(arguments[0], arguments[1], PATIENCE_S, 0.2));
        }
    }
}
