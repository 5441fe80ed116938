package muxrl;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpTimeoutException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicReference;

/**
 * A client of a muxrl server or gateway: copy it and Json.java to where your simulation runs.
 *
 * <p>JDK 11 or newer, and nothing beyond it. Observations are numbers, arrays of any depth, Lists,
 * or Maps of them. Actions are Longs, or Lists of Longs or Doubles. Whatever answer is lost is
 * asked for again, which records nothing twice. Of two threads that use a client at a time, the
 * second is refused.
 *
 * <pre>{@code
 * try (PolicyClient client = new PolicyClient("127.0.0.1:9900")) {
 *     String episode = client.startEpisode();
 *     Map<String, ?> actions = client.getAction(episode, Map.of("a", new double[] {0.1, 0.2}));
 *     client.logReturns(episode, Map.of("a", 1.0));
 *     client.endEpisode(episode, Map.of("a", new double[] {0.3, 0.4}), true);
 * }
 * }</pre>
 */
@SuppressWarnings("serial") // of errors, which nobody serializes
public final class PolicyClient implements AutoCloseable {
    private static final long PROTOCOL_VERSION = 1;
    private static final byte[] NO_BODY = {};

    private final String url;
    private double patienceS;
    private final double updateTimeoutS;
    private final HttpClient http;
    private final Duration silence;
    private final HttpRequest.Builder requests; // copied for each request
    private final Map<String, Object> spec;
    private final Map<String, Episode> episodes = new LinkedHashMap<>();
    private Map<String, Object> parameters = Map.of();
    private boolean isEvaluation;
    private final AtomicReference<Thread> user = new AtomicReference<>(); // that waits for an answer

    /** Waits 30 s for a server that is away, and 600 s for one that learns; sends no token. */
    public PolicyClient(String address) {
        this(address, "", 30.0, 600.0);
    }

    /**
     * @param address "host:port", "http://host:port" or "https://host:port"
     * @param token bearer token, "" for none
     * @param patienceS how many seconds the server may be away, refusing, cutting or ignoring what
     *     is sent
     * @param updateTimeoutS how many it may hold an answer back while it learns
     * @throws ServerUnavailable it cannot be reached, or does not let this client in
     * @throws IllegalArgumentException the address is none
     */
    public PolicyClient(String address, String token, double patienceS, double updateTimeoutS) {
        URI uri = URI.create(address.contains("//") ? address : "http://" + address);
        if (uri.getHost() == null || uri.getPort() < 0 || !uri.getScheme().startsWith("http")) {
            throw new IllegalArgumentException(
                    "an address is HOST:PORT or http://HOST:PORT, got '" + address + "'");
        }
        this.url = uri.getScheme() + "://" + uri.getRawAuthority();
        this.patienceS = patienceS;
        this.updateTimeoutS = updateTimeoutS;
        this.silence =
                Duration.ofMillis((long) (1000 * Math.min(3, Math.max(0.3, patienceS / 3))));
        this.http =
                HttpClient.newBuilder()
                        .version(HttpClient.Version.HTTP_1_1) // no offer of HTTP/2 beside the body
                        .proxy(HttpClient.Builder.NO_PROXY)
                        .connectTimeout(silence)
                        .build();
        this.requests = HttpRequest.newBuilder();
        requests.header("Content-Type", "application/json");
        if (!token.isEmpty()) {
            requests.header("Authorization", "Bearer " + token);
        }
        this.spec = exchange("GET", "/v1/spec", NO_BODY, false);
        Object version = spec.get("protocol_version");
        if (!Long.valueOf(PROTOCOL_VERSION).equals(version)) {
            throw new ServerUnavailable(
                    "server " + url + " speaks protocol version " + version + ", this client "
                            + PROTOCOL_VERSION + "; copy it from the server's muxrl");
        }
    }

    /** The server's agents with their spaces, and its limits; docs/protocol.md shows one. */
    public Map<String, Object> spec() {
        return spec;
    }

    /** Opens a training episode; see the longer form. */
    public String startEpisode() {
        return startEpisode(null, true, null);
    }

    /**
     * Opens an episode and returns its id; waits for a server that is away.
     *
     * @param episodeId unique; null makes one
     * @param trainingEnabled false: the episode is measured, and never trained on
     * @param shouldExplore null: explore if training is enabled
     */
    public String startEpisode(String episodeId, boolean trainingEnabled, Boolean shouldExplore) {
        String id = episodeId == null ? UUID.randomUUID().toString() : episodeId;
        if (episodes.containsKey(id)) {
            throw new EpisodeMisuse("episode " + id + " is open already");
        }
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("mode", trainingEnabled ? "train" : "eval");
        fields.put("should_explore", shouldExplore);
        Map<String, Object> started = tell("start", id, fields);
        isEvaluation = Boolean.TRUE.equals(started.get("is_evaluation"));
        Object given = started.get("parameters");
        parameters = given == null ? Map.of() : asMap(given);
        episodes.put(id, new Episode());
        return id;
    }

    /** With which the episode that was started last is to be played, where a run gives any. */
    public Map<String, Object> parameters() {
        return parameters;
    }

    /** Whether a run plays the episode that was started last as an evaluation: log no action then. */
    public boolean isEvaluation() {
        return isEvaluation;
    }

    /** As the longer form, for servers that do not ask for the global state. */
    public Map<String, Object> getAction(String episodeId, Map<String, ?> observations) {
        return getAction(episodeId, observations, null);
    }

    /**
     * Returns the actions of exactly the agents that observe.
     *
     * @param observations by agent id
     * @param state the global state, numbers, if "state_size" of the spec asks for it; or null
     */
    public Map<String, Object> getAction(
            String episodeId, Map<String, ?> observations, Object state) {
        return step(episodeId, observations, state, Map.of(), Map.of());
    }

    /**
     * Records an action of each agent that observes, chosen elsewhere, to learn from.
     *
     * @param logProbs logarithms of the probabilities (Box: densities) with which they were chosen;
     *     may be empty
     */
    public void logAction(
            String episodeId,
            Map<String, ?> observations,
            Map<String, ?> actions,
            Map<String, ? extends Number> logProbs,
            Object state) {
        if (!actions.keySet().equals(observations.keySet())) {
            throw new EpisodeMisuse(
                    "logAction needs an action of each agent that observes, "
                            + observations.keySet() + ", but got actions of " + actions.keySet());
        }
        step(episodeId, observations, state, actions, logProbs);
    }

    /** Keeps rewards only; see the longer form. */
    public void logReturns(String episodeId, Map<String, ? extends Number> rewards) {
        logReturns(episodeId, rewards, Set.of(), Set.of(), Map.of());
    }

    /**
     * Keeps what followed from the last actions; it is sent with the next message.
     *
     * @param rewards by agent id; they add up until then
     * @param terminated agents that have terminated
     * @param truncated agents that were truncated; each needs a final observation
     * @param finalObservations by agent id
     */
    public void logReturns(
            String episodeId,
            Map<String, ? extends Number> rewards,
            Collection<String> terminated,
            Collection<String> truncated,
            Map<String, ?> finalObservations) {
        Episode episode = find(episodeId);
        rewards.forEach((a, reward) -> episode.rewards.merge(a, reward.doubleValue(), Double::sum));
        terminated.forEach(agent -> episode.terminations.put(agent, true));
        truncated.forEach(agent -> episode.truncations.put(agent, true));
        // As text: a simulation may write its next observation into the same array.
        finalObservations.forEach((a, seen) -> episode.finalObservations.put(a, Json.of(seen)));
    }

    /** Closes an episode in which every agent that is not done yet terminates. */
    public Map<String, Object> endEpisode(String episodeId) {
        return endEpisode(episodeId, Map.of(), false, null);
    }

    /** As the longer form, for servers that do not ask for the global state. */
    public Map<String, Object> endEpisode(
            String episodeId, Map<String, ?> observations, boolean truncated) {
        return endEpisode(episodeId, observations, truncated, null);
    }

    /** As the longer form, for simulations without metrics. */
    public Map<String, Object> endEpisode(
            String episodeId, Map<String, ?> observations, boolean truncated, Object state) {
        return endEpisode(episodeId, observations, truncated, state, Map.of());
    }

    /**
     * Closes an episode; returns the server's counts, "num_steps" and "returns" by agent.
     *
     * @param observations the last ones, of agents that are not done yet
     * @param truncated whether those were truncated (a time limit, say) rather than terminated
     * @param metrics what only the simulation knows: name to a number, or to a map by agent
     */
    public Map<String, Object> endEpisode(
            String episodeId,
            Map<String, ?> observations,
            boolean truncated,
            Object state,
            Map<String, ?> metrics) {
        Episode episode = find(episodeId);
        episode.finalObservations.putAll(observations);
        Map<String, Object> fields = episode.pending();
        fields.put("t", episode.t);
        fields.put("is_truncated", truncated);
        fields.put("state", state);
        fields.put("metrics", metrics);
        Map<String, Object> reply = tell("end", episodeId, fields);
        episodes.remove(episodeId);
        if (!reply.get("type").equals("ended")) { // it was aborted before
            throw new EpisodeLost(
                    "the server had already closed episode " + episodeId + " when the client "
                            + "ended it, so its last steps are not recorded; was it silent for "
                            + "limits.episode_timeout_s, or is training over?",
                    episodeId);
        }
        return Map.of(
                "num_steps", reply.get("num_steps"),
                "returns", reply.getOrDefault("returns", Map.of()));
    }

    /** Closes an episode early; what was recorded counts as truncated. */
    public void abortEpisode(String episodeId, String reason) {
        find(episodeId);
        tell("abort", episodeId, Map.of("reason", reason));
        episodes.remove(episodeId);
    }

    /** Aborts open episodes; throws nothing. */
    @Override
    public void close() {
        patienceS = Math.min(patienceS, 5);
        try {
            for (String episodeId : List.copyOf(episodes.keySet())) {
                abortEpisode(episodeId, "the client closed");
            }
        } catch (ClientError error) { // the server closes them, after limits.episode_timeout_s
            episodes.clear();
        }
    }

    // --- items ---------------------------------------------------------------------------

    /** Its next step, and what the server is to be told with it. */
    private static final class Episode {
        long t = 0;
        final Map<String, Double> rewards = new HashMap<>();
        final Map<String, Boolean> terminations = new HashMap<>();
        final Map<String, Boolean> truncations = new HashMap<>();
        final Map<String, Object> finalObservations = new HashMap<>();

        Map<String, Object> pending() {
            Map<String, Object> fields = new LinkedHashMap<>();
            fields.put("rewards", rewards);
            fields.put("terminations", terminations);
            fields.put("truncations", truncations);
            fields.put("final_observations", finalObservations);
            return fields;
        }

        void clear() {
            List.of(rewards, terminations, truncations, finalObservations).forEach(Map::clear);
        }
    }

    private Episode find(String episodeId) {
        Episode episode = episodes.get(episodeId);
        if (episode == null) {
            throw new EpisodeMisuse(
                    "episode " + episodeId + " is not open in this client; it was never started, "
                            + "or it has ended or was aborted");
        }
        return episode;
    }

    private Map<String, Object> step(
            String episodeId,
            Map<String, ?> observations,
            Object state,
            Map<String, ?> actions,
            Map<String, ?> logProbs) {
        Episode episode = find(episodeId);
        Map<String, Object> fields = episode.pending();
        fields.put("t", episode.t);
        fields.put("observations", observations);
        fields.put("state", state);
        fields.put("logged_actions", actions);
        fields.put("logged_log_probs", logProbs);
        Map<String, Object> reply = tell("step", episodeId, fields);
        episode.t++;
        episode.clear();
        return asMap(reply.get("actions"));
    }

    /** Returns the reply to one item; if there is none, or a refusal, the episode is over. */
    private Map<String, Object> tell(String kind, String episodeId, Map<String, Object> fields) {
        Map<String, Object> item = new LinkedHashMap<>(fields);
        item.put("type", kind);
        item.put("episode_id", episodeId);
        byte[] body;
        try {
            body = Json.write(Map.of("items", List.of(item))).getBytes(StandardCharsets.UTF_8);
        } catch (IllegalArgumentException error) {
            throw new EpisodeMisuse(
                    kind + " of episode " + episodeId + " holds a value that JSON cannot have: "
                            + error.getMessage());
        }
        Map<String, Object> reply;
        long limit = (Long) spec.getOrDefault("max_message_bytes", 0L);
        if (0 < limit && limit < body.length) { // the server would close the connection on it
            String story = kind + " of episode " + episodeId + ": " + body.length
                    + " bytes are over the limit of " + limit + " (limits.max_message_bytes)";
            reply = Map.of("type", "refused", "code", 413L, "message", story);
        } else {
            try {
                reply = firstReply(exchange("POST", "/v1/step", body, kind.equals("start")));
            } catch (ServerUnavailable error) {
                episodes.remove(episodeId);
                throw error;
            }
        }
        if (!reply.get("type").equals("refused")) {
            boolean isActions = reply.get("type").equals("actions");
            if (!episodeId.equals(reply.get("episode_id"))
                    || (isActions && !item.get("t").equals(reply.get("t")))) {
                episodes.remove(episodeId);
                throw new ServerUnavailable(
                        "server " + url + " answered " + kind + " of episode " + episodeId
                                + " with a reply that belongs to another episode or step: "
                                + reply);
            }
            return reply;
        }
        long code = (Long) reply.get("code");
        String message = (String) reply.get("message");
        if (code != 410 && code != 423 && (kind.equals("step") || kind.equals("end"))) {
            tell("abort", episodeId,
                    Map.of("reason", message.substring(0, Math.min(500, message.length()))));
        }
        episodes.remove(episodeId);
        throw code == 410 ? new EpisodeLost(message, episodeId)
                : code == 423 ? new RunIsOver(message, episodeId)
                : new RefusedByServer(reply, episodeId);
    }

    private static Map<String, Object> firstReply(Map<String, Object> answer) {
        List<?> replies = (List<?>) answer.get("replies");
        return replies == null ? answer : asMap(replies.get(0));
    }

    // --- the connection ------------------------------------------------------------------

    /** Sends a request until it is answered; throws ServerUnavailable if it never is. */
    private Map<String, Object> exchange(
            String method, String path, byte[] body, boolean isStart) {
        Thread other = user.compareAndExchange(null, Thread.currentThread());
        if (other != null) {
            throw new EpisodeMisuse(
                    "thread '" + Thread.currentThread().getName() + "' uses this client while "
                            + "thread '" + other.getName() + "' waits for an answer; make a client "
                            + "in each thread");
        }
        try {
            return exchangeUntilAnswered(method, path, body, isStart);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new ClientError("interrupted while waiting for server " + url);
        } finally {
            user.set(null);
        }
    }

    private Map<String, Object> exchangeUntilAnswered(
            String method, String path, byte[] body, boolean isStart)
            throws InterruptedException {
        long beganAt = System.nanoTime();
        long heardAt = beganAt;
        double pauseS = 0;
        while (true) {
            IOException trouble;
            try {
                Map<String, Object> answer = request(method, path, body);
                if (isStart && Long.valueOf(503).equals(firstReply(answer).get("code"))) {
                    // It stops; another process may follow.
                    throw new IOException((String) firstReply(answer).get("message"));
                }
                return answer;
            } catch (IOException error) {
                trouble = error;
            }
            if (trouble instanceof HttpTimeoutException && isLearning(beganAt)) {
                heardAt = System.nanoTime();
                continue;
            }
            double awayS = secondsSince(heardAt);
            if (awayS >= patienceS && pauseS > 0) { // tried twice at least
                throw new ServerLost(
                        String.format("server %s is lost: no answer for %.1f s (patienceS is %.1f);"
                                + " %s; is it running?", url, awayS, patienceS, trouble));
            }
            Thread.sleep((long) (1000 * Math.min(pauseS, Math.max(0, patienceS - awayS))));
            pauseS = Math.min(2, Math.max(0.05, 2 * pauseS));
        }
    }

    /** Whether a silent server holds its answer back while it learns, as its status says. */
    private boolean isLearning(long beganAt) throws InterruptedException {
        Map<String, Object> status;
        try {
            status = request("GET", "/v1/status", NO_BODY);
        } catch (IOException error) {
            return false;
        }
        boolean isLearning = Boolean.TRUE.equals(status.get("is_waiting_for_learner"));
        double waitedS = secondsSince(beganAt);
        String problem = (String) status.getOrDefault("problem", "");
        if (isLearning && (!problem.isEmpty() || waitedS >= updateTimeoutS)) {
            throw new ServerUnavailable(
                    String.format("server %s is learning, and has not answered for %.0f s "
                            + "(updateTimeoutS is %.1f) %s", url, waitedS, updateTimeoutS, problem));
        }
        return isLearning;
    }

    /** Returns the answer to one request, sent once; IOException: another try may help. */
    private Map<String, Object> request(String method, String path, byte[] body)
            throws IOException, InterruptedException {
        HttpRequest request =
                requests.copy()
                        .uri(URI.create(url + path))
                        // A slow link takes a second for a megabyte.
                        .timeout(silence.plusSeconds(body.length / 1_000_000))
                        .method(method, HttpRequest.BodyPublishers.ofByteArray(body))
                        .build();
        HttpResponse<String> response = http.send(request, HttpResponse.BodyHandlers.ofString());
        int code = response.statusCode();
        String said = response.body().substring(0, Math.min(200, response.body().length()));
        if (code >= 502 && code <= 504) { // too many connections, or a proxy without a server
            throw new IOException("it answered " + code + ": " + said);
        }
        if (code == 200 || code == 400 || code == 413) { // the last two are refusals of an item
            try {
                return asMap(Json.read(response.body()));
            } catch (IllegalArgumentException | ClassCastException error) {
                said = "a body that is no answer: " + said;
            }
        }
        throw new ServerUnavailable(
                "server " + url + " answered " + code + " to " + method + " " + path + ": " + said);
    }

    private static double secondsSince(long nanoTime) {
        return (System.nanoTime() - nanoTime) / 1e9;
    }

    @SuppressWarnings("unchecked") // JSON's objects have strings as keys
    private static Map<String, Object> asMap(Object value) {
        return (Map<String, Object>) value;
    }

    // --- errors: the class says what the caller can do now -------------------------------

    /** Base of the errors below. */
    public static class ClientError extends RuntimeException {
        ClientError(String message) { super(message); }
    }

    /** Fix the code: a verb, an episode or a value that makes no sense now; nothing was sent. */
    public static final class EpisodeMisuse extends ClientError {
        EpisodeMisuse(String message) { super(message); }
    }

    /** The episode is closed; another one may be started. */
    public static class EpisodeAborted extends ClientError {
        public final String episodeId;

        EpisodeAborted(String message, String episodeId) {
            super(message);
            this.episodeId = episodeId;
        }
    }

    /** The server does not know the episode (any more): it was started again, say. */
    public static final class EpisodeLost extends EpisodeAborted {
        EpisodeLost(String message, String episodeId) { super(message, episodeId); }
    }

    /** Stop: the run behind the gateway has ended as it should. */
    public static final class RunIsOver extends EpisodeAborted {
        RunIsOver(String message, String episodeId) { super(message, episodeId); }
    }

    /** Fix what the sentence says. The code is an HTTP status; docs/protocol.md has them all. */
    public static final class RefusedByServer extends EpisodeAborted {
        public final int code;
        public final String agentId; // null, as the next two, where the refusal does not say
        public final String expected;
        public final String got;

        RefusedByServer(Map<String, Object> refusal, String episodeId) {
            super((String) refusal.get("message"), episodeId);
            code = ((Number) refusal.get("code")).intValue();
            agentId = (String) refusal.get("agent_id");
            expected = (String) refusal.get("expected");
            got = (String) refusal.get("got");
        }
    }

    /** Give up: the server lets nobody in, speaks another protocol, or learns for too long. */
    public static class ServerUnavailable extends ClientError {
        ServerUnavailable(String message) { super(message); }
    }

    /** No answer for patienceS; the next startEpisode waits for the server again. */
    public static final class ServerLost extends ServerUnavailable {
        ServerLost(String message) { super(message); }
    }
}
