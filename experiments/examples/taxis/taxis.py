"""Taxis that choose a stand when they are free: a simulation of events, without a step().

muxrl launch experiments/examples/taxis/taxis.yaml
"""

import heapq
import itertools
import sys
from typing import Any

from muxrl.client import EpisodeLost, PolicyClient, RunIsOver

TAXIS = ["taxi_0", "taxi_1", "taxi_2"]
DAY_MIN = 120.0
STATION, AIRPORT = 0, 1


def play(client: PolicyClient, first_plane_min: float) -> tuple[int, dict[str, float]]:
    """Plays a day; returns how often anyone was asked, and what each taxi earned."""
    events: list[tuple[float, str]] = [(0.0, taxi) for taxi in TAXIS]  # when, and who is free
    events.append((first_plane_min, "plane"))
    heapq.heapify(events)
    waiting, earned, num_asked = 0, dict.fromkeys(TAXIS, 0.0), 0
    episode_id = client.start_episode()
    while events[0][0] < DAY_MIN:
        now, who = heapq.heappop(events)
        if who == "plane":  # no taxi acts, so no server is asked
            waiting += 2
            heapq.heappush(events, (now + 15.0, "plane"))
            continue
        free = [who]
        while events[0][0] == now and events[0][1] in TAXIS:
            free.append(heapq.heappop(events)[1])  # taxis free at one moment act together
        stands = client.get_action(episode_id, {taxi: observe(now, waiting) for taxi in free})
        num_asked += 1
        for taxi, stand in stands.items():
            if stand == STATION:
                fare, ride_min = 4.0, 6.0
            else:
                fare, ride_min = (20.0, 20.0) if waiting else (0.0, 10.0)
                waiting = max(0, waiting - 1)
            earned[taxi] += fare
            client.log_returns(episode_id, {taxi: fare})  # sent when the next taxi is asked
            heapq.heappush(events, (now + ride_min, taxi))
    last = {taxi: observe(DAY_MIN, waiting) for taxi in TAXIS}  # also of taxis on their way
    client.end_episode(episode_id, last, truncated=True)
    return num_asked, earned


def observe(now_min: float, waiting: int) -> list[Any]:
    """Returns what a taxi knows: the time of the day, and who waits at the airport."""
    return [now_min / DAY_MIN, waiting / 4]


if __name__ == "__main__":
    with PolicyClient(sys.argv[1]) as taxis:
        for day in itertools.count():
            try:
                print(day, *play(taxis, first_plane_min=day % 15))
            except EpisodeLost as error:
                print(error)  # the next day can begin
            except RunIsOver:
                break
