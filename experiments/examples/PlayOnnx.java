import ai.onnxruntime.NodeInfo;
import ai.onnxruntime.OnnxJavaType;
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OnnxValue;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import ai.onnxruntime.TensorInfo;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import muxrl.Json;

/**
 * Plays a game with policies that {@code muxrl export} wrote: ONNX Runtime acts, and nothing else.
 *
 * <p>The game is that of experiments/simulations/locked_doors.py: ten times each of two agents goes
 * through one of four doors and is paid 0, 1/3, 2/3 or 1, and a mask says which of them are open.
 * Here they are open by a timetable instead of at random: over the fifteen episodes each agent finds
 * each of the fifteen possible sets of open doors once at every step.
 *
 * <p>Argument: the folder of the files.
 */
public final class PlayOnnx {
    /** One agent in one episode. */
    static final class Player {
        private final OrtSession session;
        private final Map<String, double[]> known = new HashMap<>();

        /**
         * @param session its policy's file, which other agents may share
         * @param agentId the agent
         */
        Player(OrtSession session, String agentId) throws OrtException {
            this.session = session;
            Object number = ((Map<?, ?>) agents(session).get(agentId)).get("agent_id");
            if (number != null) {
                known.put("agent_id", new double[] {((Number) number).doubleValue()});
            }
            known.put("last_action", new double[] {-1});
            for (NodeInfo input : session.getInputInfo().values()) {
                if (input.getName().startsWith("state_in")) {
                    known.put(input.getName(), new double[size(shape(input))]);
                }
            }
        }

        /**
         * Returns the greedy action for an observation.
         *
         * @param seen the observation: its parts by their path, as in "position.x", each flat;
         *     "observation" if it is not made of parts
         * @param isAsked in a team with a GRU, call it with false and any observation where others
         *     of the team act and this agent does not
         */
        double[] act(Map<String, double[]> seen, boolean isAsked) throws OrtException {
            Map<String, double[]> given = new HashMap<>(known);
            given.put("alive", new double[] {isAsked ? 1 : 0});
            given.putAll(seen);
            Map<String, OnnxTensor> inputs = new HashMap<>();
            try {
                for (NodeInfo input : session.getInputInfo().values()) {
                    inputs.put(input.getName(), tensor(input, given.get(input.getName())));
                }
                try (OrtSession.Result outputs = session.run(inputs)) {
                    for (Map.Entry<String, OnnxValue> output : outputs) {
                        if (output.getKey().startsWith("state_out")) {
                            String next = output.getKey().replace("state_out", "state_in");
                            known.put(next, numbers((OnnxTensor) output.getValue()));
                        }
                    }
                    double[] action = numbers((OnnxTensor) outputs.get("action").get());
                    if (isAsked) {
                        known.put("last_action", action);
                    }
                    return action;
                }
            } finally {
                inputs.values().forEach(OnnxTensor::close);
            }
        }
    }

    /** Returns what a file says of its agents: spaces, and their numbers if these are an input. */
    static Map<?, ?> agents(OrtSession session) throws OrtException {
        return (Map<?, ?>) Json.read(session.getMetadata().getCustomMetadata().get("muxrl.agents"));
    }

    /** Returns an input's shape, of a batch of one. */
    private static long[] shape(NodeInfo input) {
        long[] shape = ((TensorInfo) input.getInfo()).getShape();
        shape[0] = 1;
        return shape;
    }

    private static int size(long[] shape) {
        return (int) Arrays.stream(shape).reduce(1, (a, b) -> a * b);
    }

    /** Makes a tensor of the dtype and shape that an input has; the caller closes it. */
    private static OnnxTensor tensor(NodeInfo input, double[] values) throws OrtException {
        long[] shape = shape(input);
        if (values == null || values.length != size(shape)) {
            throw new IllegalArgumentException(String.format(
                    "the policy reads %d numbers as \"%s\"; the observation has %s",
                    size(shape), input.getName(), values == null ? "none" : values.length));
        }
        OnnxJavaType type = ((TensorInfo) input.getInfo()).type;
        ByteBuffer bytes = ByteBuffer.allocateDirect(values.length * type.size);
        bytes.order(ByteOrder.nativeOrder());
        for (double value : values) {
            switch (type) {
                case FLOAT: bytes.putFloat((float) value); break;
                case DOUBLE: bytes.putDouble(value); break;
                case INT64: bytes.putLong((long) value); break;
                case INT32: bytes.putInt((int) value); break;
                case INT16: bytes.putShort((short) value); break;
                default: bytes.put((byte) value); // INT8, UINT8, BOOL
            }
        }
        bytes.rewind();
        return OnnxTensor.createTensor(OrtEnvironment.getEnvironment(), bytes, shape, type);
    }

    /** Returns a tensor's numbers in the order of its rows. */
    private static double[] numbers(OnnxTensor tensor) {
        ByteBuffer bytes = tensor.getByteBuffer().order(ByteOrder.nativeOrder());
        OnnxJavaType type = tensor.getInfo().type;
        double[] values = new double[bytes.remaining() / type.size];
        for (int i = 0; i < values.length; i++) {
            switch (type) {
                case FLOAT: values[i] = bytes.getFloat(); break;
                case DOUBLE: values[i] = bytes.getDouble(); break;
                case INT64: values[i] = bytes.getLong(); break;
                case INT32: values[i] = bytes.getInt(); break;
                case INT16: values[i] = bytes.getShort(); break;
                case UINT8: values[i] = bytes.get() & 0xff; break;
                default: values[i] = bytes.get(); // INT8, BOOL
            }
        }
        return values;
    }

    // The game.
    static final int STEPS = 10;
    static final int DOORS = 4;
    static final int EPISODES = (1 << DOORS) - 1; // as many as there are sets of open doors
    static final String[] AGENTS = {"agent_0", "agent_1"};

    /** What an agent sees: which of the agents it is, and which doors are open. */
    private static Map<String, double[]> see(int agent, int step, int episode) {
        double[] oneHot = new double[AGENTS.length];
        oneHot[agent] = 1;
        int open = 1 + (7 * episode + 3 * step + 5 * agent) % EPISODES; // a bit for each door
        double[] mask = new double[DOORS];
        for (int door = 0; door < DOORS; door++) {
            mask[door] = open >> door & 1;
        }
        return Map.of("observation", oneHot, "action_mask", mask);
    }

    /** Returns what each agent earned in one episode. */
    private static Map<String, Double> play(Map<String, OrtSession> policies, int episode)
            throws OrtException {
        Map<String, Double> returns = new TreeMap<>();
        for (int agent = 0; agent < AGENTS.length; agent++) { // they do not get in each other's way
            Player player = new Player(policies.get(AGENTS[agent]), AGENTS[agent]);
            for (int step = 0; step < STEPS; step++) {
                Map<String, double[]> seen = see(agent, step, episode);
                int door = (int) player.act(seen, true)[0];
                if (seen.get("action_mask")[door] == 0) {
                    throw new IllegalStateException(AGENTS[agent] + " chose a locked door");
                }
                returns.merge(AGENTS[agent], door / (DOORS - 1.0), Double::sum);
            }
        }
        return returns;
    }

    public static void main(String[] arguments) throws IOException, OrtException {
        List<Path> files;
        try (Stream<Path> found = Files.walk(Paths.get(arguments[0]))) {
            files = found.filter(path -> path.toString().endsWith(".onnx")).sorted()
                    .collect(Collectors.toList());
        }
        Map<String, OrtSession> policies = new TreeMap<>(); // open until the program ends
        for (Path file : files) {
            OrtSession session = OrtEnvironment.getEnvironment().createSession(file.toString());
            Map<String, String> said = session.getMetadata().getCustomMetadata();
            System.out.printf("%s acts for %s%n", said.get("muxrl.algorithm"), agents(session));
            agents(session).keySet().forEach(agent -> policies.put((String) agent, session));
        }
        if (!policies.keySet().containsAll(Arrays.asList(AGENTS))) {
            throw new IllegalArgumentException(String.format(
                    "the files in %s act for %s; this game has %s",
                    arguments[0], policies.keySet(), Arrays.toString(AGENTS)));
        }
        Map<String, Double> sums = new TreeMap<>();
        for (int episode = 0; episode < EPISODES; episode++) {
            Map<String, Double> returns = play(policies, episode);
            System.out.println(episode + " " + returns);
            returns.forEach((agent, earned) -> sums.merge(agent, earned, Double::sum));
        }
        System.out.println("mean return: " + sums.entrySet().stream()
                .map(sum -> sum.getKey() + " " + sum.getValue() / EPISODES)
                .collect(Collectors.joining(", ")));
    }
}
