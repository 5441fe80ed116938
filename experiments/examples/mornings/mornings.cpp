#include "muxrl_client.hpp"

#include <array>
#include <iostream>

using Loads = std::array<int, 3>;  // drivers on each road

muxrl::ByAgent observe(int morning, const Loads& loads) {
    const std::vector<double> seen{morning / 20.0, loads[0] / 2.0};
    return {{"driver_0", seen}, {"driver_1", seen}};
}

muxrl::Ended play(muxrl::PolicyClient& client) {
    const std::string episode = client.start_episode();
    Loads loads{};
    for (int morning = 0; morning < 20; ++morning) {
        muxrl::ByAgent roads = client.get_action(episode, observe(morning, loads));
        loads = {};
        for (const auto& [driver, road] : roads) ++loads[road.integer()];
        std::map<std::string, double> rewards;
        for (const auto& [driver, road] : roads) rewards[driver] = -loads[road.integer()];
        client.log_returns(episode, rewards);
    }
    return client.end_episode(episode, observe(20, loads), true);
}

int main() {
    muxrl::PolicyClient client("127.0.0.1:9900");
    while (true) {
        try {
            const muxrl::Ended ended = play(client);
            std::cout << ended.num_steps << " steps, " << ended.returns.at("driver_0") << std::endl;
        } catch (const muxrl::RunIsOver&) {
            return 0;
        } catch (const muxrl::EpisodeLost& error) {
            std::cout << error.what() << std::endl;  // the next episode can start at once
        } catch (const muxrl::ServerLost& error) {
            std::cout << error.what() << std::endl;  // the next start_episode waits for the server
        }
    }
}
