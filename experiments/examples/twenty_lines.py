"""A simulation that knows nothing of its two learners: PPO has the predators, A2C the prey."""

from mpe2 import simple_tag_v3

from muxrl.client import EpisodeLost, PolicyClient, RunIsOver

simulation = simple_tag_v3.parallel_env(max_cycles=25)


def play(client: PolicyClient) -> None:
    """Plays one episode."""
    episode_id = client.start_episode()  # on both servers, or on none
    observations, _ = simulation.reset()
    while simulation.agents:
        actions = client.get_action(episode_id, observations)  # of both servers, merged
        observations, rewards, _, _, _ = simulation.step(actions)
        client.log_returns(episode_id, rewards)  # travels with the next message
    client.end_episode(episode_id, observations, truncated=True)  # a time limit, not an end


with PolicyClient("127.0.0.1:9900") as client:
    while True:
        try:
            play(client)
        except EpisodeLost as error:
            print(error)  # a server was lost, or training is over; the next one can begin
        except RunIsOver:
            break
