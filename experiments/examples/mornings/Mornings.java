import java.util.HashMap;
import java.util.List;
import java.util.Map;
import muxrl.PolicyClient;

public final class Mornings {
    static final List<String> DRIVERS = List.of("driver_0", "driver_1");

    static Map<String, double[]> observe(int morning, int[] loads) {
        Map<String, double[]> observations = new HashMap<>();
        DRIVERS.forEach(d -> observations.put(d, new double[] {morning / 20.0, loads[0] / 2.0}));
        return observations;
    }

    static Map<String, Object> play(PolicyClient client) {
        String episode = client.startEpisode();
        int[] loads = new int[3]; // drivers on each road
        for (int morning = 0; morning < 20; morning++) {
            Map<String, Object> roads = client.getAction(episode, observe(morning, loads));
            int[] now = new int[3];
            roads.values().forEach(road -> now[((Number) road).intValue()]++);
            Map<String, Integer> rewards = new HashMap<>();
            roads.forEach((driver, road) -> rewards.put(driver, -now[((Number) road).intValue()]));
            client.logReturns(episode, rewards);
            loads = now;
        }
        return client.endEpisode(episode, observe(20, loads), true);
    }

    public static void main(String[] arguments) {
        try (PolicyClient client = new PolicyClient("127.0.0.1:9900")) {
            while (true) {
                try {
                    System.out.println(play(client));
                } catch (PolicyClient.RunIsOver over) {
                    break;
                } catch (PolicyClient.EpisodeLost error) {
                    System.out.println(error); // the next episode can start at once
                }
            }
        }
    }
}
