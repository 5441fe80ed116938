// Does what scripted_episodes.py does, and prints the same. Arguments: address, token.

#include "muxrl_client.hpp"

#include <sys/wait.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

using muxrl::ByAgent;
using muxrl::Json;
using muxrl::PolicyClient;

static const double PATIENCE_S = 2.4;
static const std::string TEXT = "quotes \" and \\, é, ☃, 😀";

static void show(const Json::Map& record) { std::cout << Json(record).write() << std::endl; }

static ByAgent observe(int episode, int t) {
    using Numbers = std::vector<double>;
    ByAgent seen;
    seen["b"] = std::vector<Numbers>{{t / 7.0, -episode / 3.0}, {0.5, -2.5e-7 * t}};
    if (t < 4) {
        seen["a"] = Json::Map{{"observation", Numbers{0.1 * t, episode / 8.0, 1e-3}},
                              {"action_mask", std::vector<int>{1, 0, 1, t % 2}}};
    }
    if (t % 2 == 1) seen["c"] = (t + episode) % 5;
    return seen;
}

static void play(PolicyClient& client, int episode) {
    const bool is_training = episode % 2 == 0;
    const std::string id =
        client.start_episode("episode-" + std::to_string(episode), is_training);
    for (int t = 0; t < 6; ++t) {
        const ByAgent seen = observe(episode, t);
        if (t == 1) {
            const ByAgent actions{{"a", 2},
                                  {"b", std::vector<float>{0.5f, -0.25f}},
                                  {"c", std::vector<long>{1, 2}}};
            client.log_action(id, seen, actions, {{"a", -0.5}});
        } else {
            show({{"episode", id}, {"t", t}, {"actions", client.get_action(id, seen)}});
        }
        client.log_returns(id, {{"a", 0.1 * t}, {"b", -1.5}});
        std::set<std::string> terminated;
        if (t == 3) terminated = {"a"};
        client.log_returns(id, {{"b", 0.25}}, terminated);
    }
    client.log_returns(id, {}, {}, {"c"}, {{"c", 3}});
    const Json last = std::vector<std::vector<double>>{{1, 2}, {3, 4}};
    const Json metrics = Json::Map{{"win", 1}, {"way", Json::Map{{"a", 2.5}}}};
    const muxrl::Ended ended = client.end_episode(id, {{"b", last}}, is_training, {}, metrics);
    show({{"episode", id}, {"num_steps", ended.num_steps}, {"returns", ended.returns}});
}

// Shows the error of something that fails.
static void show_error(const std::function<void()>& verb) {
    auto shown = [](const char* name, const std::exception& error) {
        return Json::Map{{"error", name}, {"has_message", *error.what() != '\0'}};
    };
    auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
    try {
        verb();
    } catch (const muxrl::RefusedByServer& error) {
        Json::Map record = shown("RefusedByServer", error);
        record["code"] = error.code;
        record["agent_id"] = or_null(error.agent_id);
        record["expected"] = or_null(error.expected);
        record["got"] = or_null(error.got);
        return show(record);
    } catch (const muxrl::EpisodeLost& error) {
        return show(shown("EpisodeLost", error));
    } catch (const muxrl::EpisodeMisuse& error) {
        return show(shown("EpisodeMisuse", error));
    } catch (const muxrl::ServerLost& error) {
        return show(shown("ServerLost", error));
    } catch (const muxrl::ServerUnavailable& error) {
        return show(shown("ServerUnavailable", error));
    }
    show({{"error", nullptr}});
}

// Does what is refused, one thing after the other.
static void fail(PolicyClient& client, const std::string& address, const std::string& token) {
    client.start_episode("refused");
    show_error([&] { client.get_action("refused", {{"b", std::vector<int>{1, 2, 3}}}); });
    show_error([&] { client.get_action("refused", {}); });  // it is over
    client.start_episode("refused-at-its-end");
    show_error([&] { client.end_episode("refused-at-its-end", {{"nobody", 1}}); });
    client.start_episode("misused");
    show_error([&] { client.start_episode("misused"); });
    show_error([&] { client.log_action("misused", observe(0, 0), {{"a", 2}}); });
    const std::vector<std::vector<double>> nan{{std::nan(""), 0}, {0, 0}};
    client.start_episode("nan");
    show_error([&] { client.get_action("nan", {{"b", nan}}); });
    const std::vector<int> too_many(300000, 1);
    show_error([&] { client.get_action("misused", {{"c", too_many}}); });  // over the limit
    show_error([&] { client.start_episode("a/b"); });
    client.start_episode("lost");
    PolicyClient other(address, token);
    other.start_episode("lost");  // repeats the first client's start
    other.abort_episode("lost");
    show_error([&] { client.get_action("lost", observe(0, 0)); });
    show_error([&] { PolicyClient(address, "wrong"); });
    show({{"episode", client.start_episode(TEXT)}});
    client.abort_episode(TEXT, TEXT);
    other.start_episode("left open");
    other.close();
}

// Plays on while the server's side does what the first number of "b" stands for.
static void outlast(PolicyClient& client, PolicyClient& impatient) {
    auto see = [](int cue) {
        return ByAgent{{"b", std::vector<std::vector<int>>{{cue, 0}, {0, 0}}}};
    };
    auto show_end = [&](const std::string& id) {
        const muxrl::Ended ended = client.end_episode(id);
        show({{"num_steps", ended.num_steps}, {"returns", ended.returns}});
    };
    client.start_episode("outlast");
    int t = 0;
    for (const std::string trouble : {"half", "cut", "swallow", "outage", "none", "hold"}) {
        if (trouble == "hold") {
            impatient.start_episode("impatient");
            show_error([&] { impatient.get_action("impatient", {{"c", 1}}); });
        }
        show({{"trouble", trouble}, {"actions", client.get_action("outlast", see(100 + t++))}});
        client.log_returns("outlast", {{"b", 1}});
    }
    std::vector<std::vector<double>> last{{1, 2}, {3, 4}};
    client.log_returns("outlast", {}, {}, {"b"}, {{"b", last}});
    last[0][0] = std::nan("");  // it is refused if the client has kept no copy
    show_end("outlast");
    client.start_episode("long outage");
    show_error([&] { client.get_action("long outage", see(106)); });
    client.start_episode("after it");  // waits
    show_end("after it");
}

static void start(PolicyClient& client) {
    try {
        client.start_episode();
        std::cout << "started" << std::endl;
    } catch (const muxrl::EpisodeMisuse& error) {
        std::cout << error.what() << std::endl;
    }
}

// Uses one client in two threads, and in a fork; prints how each is refused.
static void share(const char* address) {
    PolicyClient client(address);
    std::thread waiting([&] { start(client); });
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    start(client);
    waiting.join();
    start(client);
    const pid_t child = fork();
    start(client);
    if (child != 0) wait(nullptr);
}

int main(int number, char** arguments) {
    if (number == 2) {
        share(arguments[1]);
        return 0;
    }
    PolicyClient client(arguments[1], arguments[2], PATIENCE_S);
    Json::List agents;
    for (const auto& one : client.spec()["agents"].map()) agents.push_back(one.first);
    show({{"agents", agents}, {"is_evaluation", client.is_evaluation()}});
    for (int episode = 0; episode < 4; ++episode) play(client, episode);
    fail(client, arguments[1], arguments[2]);
    PolicyClient impatient(arguments[1], arguments[2], PATIENCE_S, 0.2);
    outlast(client, impatient);
}
