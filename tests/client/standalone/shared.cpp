// Uses one client in two threads, and in a fork; prints how each is refused. Argument: address.

#include "muxrl_client.hpp"

#include <sys/wait.h>

#include <iostream>

static void start(muxrl::PolicyClient& client) {
    try {
        client.start_episode();
        std::cout << "started" << std::endl;
    } catch (const muxrl::EpisodeMisuse& error) {
        std::cout << error.what() << std::endl;
    }
}

int main(int, char** arguments) {
    muxrl::PolicyClient client(arguments[1]);
    std::thread waiting([&] { start(client); });
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    start(client);
    waiting.join();
    start(client);
    const pid_t child = fork();
    start(client);
    if (child != 0) wait(nullptr);
}
