"""One simulation and two policy servers, by hand: PPO has the predators, A2C the prey."""

from mpe2 import simple_tag_v3

from muxrl.client import MultiplexingClient

simulation = simple_tag_v3.parallel_env(max_cycles=25)
with MultiplexingClient({"ppo": "127.0.0.1:9900", "a2c": "127.0.0.1:9910"}) as client:
    for episode in range(100):
        observations, _ = simulation.reset(seed=episode)
        returns = dict.fromkeys(observations, 0.0)
        episode_id = client.start_episode()  # on both servers, or on none
        while simulation.agents:
            actions = client.get_action(episode_id, observations)  # asks both, merges
            observations, rewards, _, _, _ = simulation.step(actions)
            client.log_returns(episode_id, rewards)  # travels with the next message
            returns = {agent: returns[agent] + reward for agent, reward in rewards.items()}
        client.end_episode(episode_id, observations, truncated=True)  # a time limit, not an end
        print(episode, {agent: round(value, 1) for agent, value in returns.items()})
