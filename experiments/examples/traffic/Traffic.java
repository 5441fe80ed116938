import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import muxrl.PolicyClient;

/**
 * Drivers choose routes, morning after morning, on Pigou's or Braess's network; an operator, if a
 * server has one, sets the toll of Braess's bridge before they do.
 *
 * <p>Arguments: pigou or braess, the address of a gateway or of a server that has everybody, and
 * how many episodes to play; without a number, until the run is over.
 */
public final class Traffic {
    static final int MORNINGS = 10; // of an episode
    static final int BLOCK = 50; // episodes between two reports
    static final double[] TOLLS = {0, 2.5, 5, 7.5, 10};
    static final String OPERATOR = "operator";

    /** Travel times, given how many of n drivers take each route. */
    enum Network {
        /** A road that always takes 1, and one that takes the share of drivers on it. */
        PIGOU(2, 1) {
            @Override
            double[] times(int[] loads, double n) {
                return new double[] {1, loads[1] / n};
            }
        },
        /** North and south, each a narrow and a wide road, and a bridge between the narrow ones. */
        BRAESS(3, 20) {
            @Override
            double[] times(int[] loads, double n) {
                double first = 10 * (loads[0] + loads[2]) / n;
                double last = 10 * (loads[1] + loads[2]) / n;
                return new double[] {first + 10, 10 + last, first + last};
            }
        };

        final int numRoutes;
        final double longest;

        Network(int numRoutes, double longest) {
            this.numRoutes = numRoutes;
            this.longest = longest;
        }

        abstract double[] times(int[] loads, double n);
    }

    private final Network network;
    private final PolicyClient client;
    private final List<String> drivers = new ArrayList<>();
    private final boolean hasOperator;

    // Over the mornings since the last report:
    private final int[] total; // drivers on each route
    private double sumOfTimes;
    private double sumOfTolls;

    Traffic(Network network, PolicyClient client) {
        this.network = network;
        this.client = client;
        total = new int[network.numRoutes];
        Map<?, ?> agents = (Map<?, ?>) client.spec().get("agents");
        agents.keySet().forEach(agent -> drivers.add((String) agent));
        hasOperator = drivers.remove(OPERATOR);
    }

    /** What everybody sees: the toll, and the shares of the routes yesterday. */
    private double[] see(double toll, int[] loads) {
        double[] seen = new double[1 + network.numRoutes];
        seen[0] = toll / TOLLS[TOLLS.length - 1];
        for (int route = 0; route < network.numRoutes; route++) {
            seen[1 + route] = loads[route] / (double) drivers.size();
        }
        return seen;
    }

    private Map<String, double[]> seenByDrivers(double toll, int[] loads) {
        Map<String, double[]> seen = new HashMap<>();
        drivers.forEach(driver -> seen.put(driver, see(toll, loads)));
        return seen;
    }

    void play() {
        String episode = client.startEpisode();
        int[] loads = new int[network.numRoutes];
        double toll = 0;
        for (int morning = 0; morning < MORNINGS; morning++) {
            if (hasOperator) { // the drivers' servers are not asked
                Object choice = client.getAction(episode, Map.of(OPERATOR, see(0, loads)))
                        .get(OPERATOR);
                toll = TOLLS[((Number) choice).intValue()];
                sumOfTolls += toll;
            }
            Map<String, Object> routes = client.getAction(episode, seenByDrivers(toll, loads));
            Arrays.fill(loads, 0);
            routes.values().forEach(route -> loads[((Number) route).intValue()]++);
            double[] times = network.times(loads, drivers.size());
            Map<String, Double> rewards = new HashMap<>();
            double meanTime = 0;
            for (String driver : drivers) {
                int route = ((Number) routes.get(driver)).intValue();
                total[route]++;
                meanTime += times[route] / drivers.size();
                rewards.put(driver, -(times[route] + (route == 2 ? toll : 0)) / network.longest);
            }
            if (hasOperator) {
                rewards.put(OPERATOR, -meanTime / network.longest);
            }
            client.logReturns(episode, rewards);
            sumOfTimes += meanTime;
        }
        Map<String, double[]> last = seenByDrivers(toll, loads);
        if (hasOperator) {
            last.put(OPERATOR, see(0, loads));
        }
        client.endEpisode(episode, last, true);
    }

    /** Prints what a driver needed on average since the last report. */
    void report(int numEpisodes) {
        int numMornings = Arrays.stream(total).sum() / drivers.size();
        System.out.printf(
                Locale.ROOT,
                "{\"episodes\": %d, \"mean_time\": %.4f, \"mean_toll\": %.2f, \"routes\": %s}%n",
                numEpisodes, sumOfTimes / numMornings, sumOfTolls / numMornings,
                Arrays.toString(total));
        Arrays.fill(total, 0);
        sumOfTimes = 0;
        sumOfTolls = 0;
    }

    public static void main(String[] arguments) {
        Network network = Network.valueOf(arguments[0].toUpperCase(Locale.ROOT));
        int most = arguments.length > 2 ? Integer.parseInt(arguments[2]) : Integer.MAX_VALUE;
        try (PolicyClient client = new PolicyClient(arguments[1])) {
            Traffic traffic = new Traffic(network, client);
            for (int episode = 1; episode <= most; episode++) {
                try {
                    traffic.play();
                } catch (PolicyClient.EpisodeLost error) {
                    System.out.println(error); // the next episode can start at once
                }
                if (episode % BLOCK == 0 || episode == most) {
                    traffic.report(episode);
                }
            }
        } catch (PolicyClient.RunIsOver over) {
            System.out.println(over.getMessage());
        }
    }
}
