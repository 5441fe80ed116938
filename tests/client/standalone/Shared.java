import muxrl.PolicyClient;

/** Uses one client in two threads; prints how the second is refused. Argument: address. */
public final class Shared {
    private static void start(PolicyClient client) {
        try {
            client.startEpisode();
            System.out.println("started");
        } catch (PolicyClient.EpisodeMisuse error) {
            System.out.println(error.getMessage());
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        PolicyClient client = new PolicyClient(arguments[0]);
        Thread waiting = new Thread(() -> start(client), "waiting");
        waiting.start();
        Thread.sleep(500);
        start(client);
        waiting.join();
        start(client);
    }
}
