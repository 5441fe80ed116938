// A client of a muxrl server or gateway: copy it and muxrl_json.hpp to where your simulation is
// built.
//
// C++17 and POSIX sockets, nothing else. Observations are numbers, vectors of any depth, or maps of
// them. Whatever answer is lost is asked for again, which records nothing twice. A client is for
// one thread, of the process that made it; others are refused. There is no TLS: reach a server on another machine through a tunnel.
//
//     muxrl::PolicyClient client("127.0.0.1:9900");
//     std::string episode = client.start_episode();
//     muxrl::ByAgent actions = client.get_action(episode, {{"a", std::vector{0.1, 0.2}}});
//     long long turn = actions["a"].integer();
//     client.log_returns(episode, {{"a", 1.0}});
//     client.end_episode(episode, {{"a", std::vector{0.3, 0.4}}}, true);

#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "muxrl_json.hpp"

namespace muxrl {

// --- errors: the class says what the caller can do now ------------------------------------------

// Base of the errors below.
struct ClientError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Fix the code: a verb, an episode or a value that makes no sense now; nothing was sent.
struct EpisodeMisuse : ClientError { using ClientError::ClientError; };

// The episode is closed; another one may be started.
struct EpisodeAborted : ClientError {
    EpisodeAborted(const std::string& message, std::string id)
        : ClientError(message), episode_id(std::move(id)) {}
    std::string episode_id;
};

// The server does not know the episode (any more): it was started again, say.
struct EpisodeLost : EpisodeAborted { using EpisodeAborted::EpisodeAborted; };

// Stop: the run behind the gateway has ended as it should.
struct RunIsOver : EpisodeAborted { using EpisodeAborted::EpisodeAborted; };

// Fix what the sentence says. `code` is an HTTP status; docs/protocol.md has them all.
struct RefusedByServer : EpisodeAborted {
    using EpisodeAborted::EpisodeAborted;
    int code = 0;
    std::string agent_id, expected, got;  // "" where the refusal does not say
};

// Give up: the server lets nobody in, speaks another protocol, or learns for too long.
struct ServerUnavailable : ClientError { using ClientError::ClientError; };

// No answer for patience_s; the next start_episode waits for the server again.
struct ServerLost : ServerUnavailable { using ServerUnavailable::ServerUnavailable; };

using ByAgent = Json::Map;

// --- the client ----------------------------------------------------------------------------------

// The server's counts of an episode.
struct Ended {
    long long num_steps = 0;
    std::map<std::string, double> returns;  // by agent
};

// Plays episodes with one server, or with a gateway.
class PolicyClient {
public:
    // `address` is "host:port" or "http://host:port", `token` the bearer token, "" for none. The
    // server may be away, refusing, cutting or ignoring what is sent, for `patience_s`; and hold an
    // answer back while it learns for `update_timeout_s`.
    // Raises ServerUnavailable: it cannot be reached, or does not let this client in;
    // std::invalid_argument: the address is none.
    explicit PolicyClient(const std::string& address, std::string token = "",
                          double patience_s = 30, double update_timeout_s = 600)
        : token_(std::move(token)),
          patience_s_(patience_s),
          update_timeout_s_(update_timeout_s),
          silence_s_(std::min(3.0, std::max(0.3, patience_s / 3))) {
        std::string rest = address.compare(0, 7, "http://") == 0 ? address.substr(7) : address;
        while (!rest.empty() && rest.back() == '/') rest.pop_back();
        std::size_t colon = rest.rfind(':');
        authority_ = rest;
        host_ = rest.substr(0, colon);
        port_ = colon == std::string::npos ? "" : rest.substr(colon + 1);
        if (host_.empty() || host_.find('/') != std::string::npos || port_.empty() ||
            port_.find_first_not_of("0123456789") != std::string::npos) {
            throw std::invalid_argument(
                "an address is HOST:PORT or http://HOST:PORT (there is no TLS), got " + address);
        }
        if (host_.front() == '[') host_ = host_.substr(1, host_.size() - 2);  // IPv6
        spec_ = exchange("GET", "/v1/spec", "", false);
        const std::string version = spec_["protocol_version"].write();
        if (version != "1") {
            throw ServerUnavailable(name() + " speaks protocol version " + version +
                                    ", this client 1; copy it from the server's muxrl");
        }
    }

    ~PolicyClient() { close(); }
    PolicyClient(const PolicyClient&) = delete;

    // The server's agents with their spaces, and its limits; docs/protocol.md shows one.
    const Json& spec() const { return spec_; }

    // Opens an episode and returns its id; waits for a server that is away. An empty id makes one.
    // Without `training_enabled` it is measured, and never trained on. `should_explore` is what
    // `training_enabled` is unless given.
    std::string start_episode(const std::string& episode_id = "", bool training_enabled = true,
                              std::optional<bool> should_explore = {}) {
        std::string id = episode_id.empty() ? new_id() : episode_id;
        if (episodes_.count(id)) throw EpisodeMisuse("episode " + id + " is open already");
        Json::Map fields{{"mode", training_enabled ? "train" : "eval"}};
        if (should_explore) fields["should_explore"] = *should_explore;
        Json started = tell("start", id, std::move(fields));
        parameters_ = started["parameters"];
        const Json& told = started["is_evaluation"];
        is_evaluation_ = !told.is_null() && told.boolean();
        episodes_[id] = {};
        return id;
    }

    // With which the episode that was started last is to be played, where a run gives any.
    const Json& parameters() const { return parameters_; }

    // Whether a run plays the episode that was started last as an evaluation: log no action then.
    bool is_evaluation() const { return is_evaluation_; }

    // Returns the actions of exactly the agents that observe. `state` is the global state, numbers,
    // if "state_size" of the spec asks for it.
    ByAgent get_action(const std::string& episode_id, const ByAgent& observations,
                       const Json& state = {}) {
        return step(episode_id, {{"observations", observations}, {"state", state}});
    }

    // Records an action of each agent that observes, chosen elsewhere, to learn from; `log_probs`
    // are logarithms of the probabilities (Box: densities) with which they were chosen.
    void log_action(const std::string& episode_id, const ByAgent& observations,
                    const ByAgent& actions, const std::map<std::string, double>& log_probs = {},
                    const Json& state = {}) {
        bool is_complete = actions.size() == observations.size();
        for (const auto& one : actions) is_complete &= observations.count(one.first) == 1;
        if (!is_complete) {
            throw EpisodeMisuse("log_action needs an action of each agent that observes, " +
                                Json(observations).write() + ", but got " + Json(actions).write());
        }
        step(episode_id, {{"observations", observations},
                          {"state", state},
                          {"logged_actions", actions},
                          {"logged_log_probs", log_probs}});
    }

    // Keeps what followed from the last actions; it is sent with the next message. Rewards add up
    // until then. A truncated agent needs a final observation.
    void log_returns(const std::string& episode_id, const std::map<std::string, double>& rewards,
                     const std::set<std::string>& terminated = {},
                     const std::set<std::string>& truncated = {},
                     const ByAgent& final_observations = {}) {
        Episode& episode = find(episode_id);
        for (const auto& [agent, reward] : rewards) episode.rewards[agent] += reward;
        for (const std::string& agent : terminated) episode.terminations[agent] = true;
        for (const std::string& agent : truncated) episode.truncations[agent] = true;
        for (const auto& [agent, seen] : final_observations) {
            episode.final_observations[agent] = seen;
        }
    }

    // Closes an episode. `observations` are the last ones of agents that are not done yet; with
    // `truncated` these were truncated (a time limit, say) rather than terminated. `metrics` are
    // what only the simulation knows: name to a number, or to a map by agent.
    Ended end_episode(const std::string& episode_id, const ByAgent& observations = {},
                      bool truncated = false, const Json& state = {},
                      const Json& metrics = {}) {
        log_returns(episode_id, {}, {}, {}, observations);
        Json::Map fields = find(episode_id).pending();
        fields["is_truncated"] = truncated;
        fields["state"] = state;
        if (!metrics.is_null()) fields["metrics"] = metrics;
        Json reply = tell("end", episode_id, std::move(fields));
        episodes_.erase(episode_id);
        if (reply["type"].text() != "ended") {  // it was aborted before
            throw EpisodeLost("the server had already closed episode " + episode_id +
                                  " when the client ended it, so its last steps are not "
                                  "recorded; was it silent for limits.episode_timeout_s, or is training over?",
                              episode_id);
        }
        Ended ended{reply["num_steps"].integer(), {}};
        if (!reply["returns"].is_null()) {
            for (const auto& [agent, sum] : reply["returns"].map()) {
                ended.returns[agent] = sum.number();
            }
        }
        return ended;
    }

    // Closes an episode early; what was recorded counts as truncated.
    void abort_episode(const std::string& episode_id, const std::string& reason = "") {
        find(episode_id);
        tell("abort", episode_id, {{"reason", reason}});
        episodes_.erase(episode_id);
    }

    // Aborts open episodes, and closes the connection; raises nothing.
    void close() noexcept {
        patience_s_ = std::min(patience_s_, 5.0);
        try {
            while (!episodes_.empty()) {
                abort_episode(std::string(episodes_.begin()->first), "the client closed");
            }
        } catch (const std::exception&) {  // the server closes them itself, in time
            episodes_.clear();
        }
        connection_.reset();
    }

private:
    // Its next step, and what the server is to be told with it.
    struct Episode {
        long long t = 0;
        std::map<std::string, double> rewards;
        std::map<std::string, bool> terminations, truncations;
        ByAgent final_observations;

        Json::Map pending() const {
            return {{"t", t},
                    {"rewards", rewards},
                    {"terminations", terminations},
                    {"truncations", truncations},
                    {"final_observations", final_observations}};
        }
    };

    // The connection is gone, cannot be opened, or is silent; another try may help.
    struct Broken : std::runtime_error {
        Broken(const std::string& story, bool silent) : runtime_error(story), is_silent(silent) {}
        bool is_silent;
    };

    static double now_s() {
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        return std::chrono::duration<double>(now).count();
    }

    // --- items ---

    Episode& find(const std::string& episode_id) {
        auto found = episodes_.find(episode_id);
        if (found != episodes_.end()) return found->second;
        throw EpisodeMisuse("episode " + episode_id +
                            " is not open in this client; it was never started, or it has ended "
                            "or was aborted");
    }

    static std::string new_id() {
        std::random_device random;
        std::string id = "cpp";
        for (int i = 0; i < 4; ++i) id += "-" + std::to_string(random());
        return id;
    }

    ByAgent step(const std::string& episode_id, Json::Map fields) {
        Episode& episode = find(episode_id);
        fields.merge(episode.pending());
        ByAgent actions = tell("step", episode_id, std::move(fields))["actions"].map();
        Episode next;
        next.t = episode.t + 1;
        episode = next;
        return actions;
    }

    // Returns the reply to one item; if there is none, or a refusal, the episode is over.
    Json tell(const std::string& kind, const std::string& episode_id, Json::Map fields) {
        fields["type"] = kind;
        fields["episode_id"] = episode_id;
        const std::string what = kind + " of episode " + episode_id;
        const std::string t = fields.count("t") ? fields["t"].write() : "";
        const std::string body = Json(Json::Map{{"items", Json::List{std::move(fields)}}}).write();
        const Json& limit = spec_["max_message_bytes"];
        Json reply;
        if (!limit.is_null() && limit.number() < static_cast<double>(body.size())) {
            // The server would close the connection on it.
            const std::string story = what + ": " + std::to_string(body.size()) +
                                      " bytes are over the limit of " + limit.write() +
                                      " (limits.max_message_bytes)";
            reply = Json::Map{{"type", "refused"}, {"code", 413}, {"message", story}};
        } else {
            try {
                reply = first_reply(exchange("POST", "/v1/step", body, kind == "start"));
            } catch (const ServerUnavailable&) {
                episodes_.erase(episode_id);
                throw;
            }
        }
        const std::string type = reply["type"].text();
        if (type != "refused") {
            const bool is_right_step = type != "actions" || reply["t"].write() == t;
            if (is_right_step && reply["episode_id"].text() == episode_id) return reply;
            episodes_.erase(episode_id);
            connection_.reset();
            throw ServerUnavailable(name() + " answered " + what +
                                    " with a reply that belongs to another episode or step: " +
                                    reply.write());
        }
        const std::string message = reply["message"].text();
        const int code = static_cast<int>(reply["code"].integer());
        if (code != 410 && code != 423 && (kind == "step" || kind == "end")) {
            tell("abort", episode_id, {{"reason", "refused: " + std::to_string(code)}});
        }
        episodes_.erase(episode_id);
        if (code == 410) throw EpisodeLost(message, episode_id);
        if (code == 423) throw RunIsOver(message, episode_id);
        RefusedByServer refusal(message, episode_id);
        refusal.code = code;
        for (auto [key, field] : {std::pair("agent_id", &refusal.agent_id),
                                  std::pair("expected", &refusal.expected),
                                  std::pair("got", &refusal.got)}) {
            if (!reply[key].is_null()) *field = reply[key].text();
        }
        throw refusal;
    }

    static Json first_reply(const Json& answer) {
        return answer["replies"].is_null() ? answer : answer["replies"].list().at(0);
    }

    // --- the connection ---

    // A TCP connection that closes with its object.
    class Connection {
    public:
        Connection(const std::string& host, const std::string& port, double silence_s) {
            addrinfo hints{}, *found = nullptr;
            hints.ai_socktype = SOCK_STREAM;
            if (int problem = getaddrinfo(host.c_str(), port.c_str(), &hints, &found)) {
                throw Broken(host + ": " + gai_strerror(problem), false);
            }
            std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
            for (const addrinfo* one = found; one && fd_ < 0; one = one->ai_next) {
                fd_ = socket(one->ai_family, one->ai_socktype, one->ai_protocol);
                if (fd_ < 0) continue;
                configure(silence_s);
                if (connect(fd_, one->ai_addr, one->ai_addrlen) == 0) return;
                int problem = errno;
                ::close(std::exchange(fd_, -1));
                errno = problem;
            }
            throw Broken(std::string("no connection: ") + std::strerror(errno), false);
        }
        ~Connection() { ::close(fd_); }
        Connection(const Connection&) = delete;

        void send_all(const std::string& bytes) const {
            for (std::size_t sent = 0; sent < bytes.size();) {
                ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
                if (n < 0 && errno != EINTR) fail();
                if (n > 0) sent += static_cast<std::size_t>(n);
            }
        }

        // Appends what comes next.
        void receive(std::string& bytes) const {
            char part[65536];
            ssize_t n = recv(fd_, part, sizeof part, 0);
            while (n < 0 && errno == EINTR) n = recv(fd_, part, sizeof part, 0);
            if (n == 0) throw Broken("the connection was closed", false);
            if (n < 0) fail();
            bytes.append(part, static_cast<std::size_t>(n));
        }

        void configure(double silence_s) const {
            timeval silence{};
            silence.tv_sec = static_cast<time_t>(silence_s);
            silence.tv_usec = static_cast<suseconds_t>(1e6 * (silence_s - std::floor(silence_s)));
            const int on = 1;
            setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence);
            setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &silence, sizeof silence);
            setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        }

    private:
        [[noreturn]] static void fail() {
            bool is_silent = errno == EAGAIN || errno == EWOULDBLOCK;
            throw Broken(is_silent ? "no answer" : std::strerror(errno), is_silent);
        }

        int fd_ = -1;
    };

    std::string name() const { return "server " + authority_; }

    // Held while the connection is used.
    class SoleUse {
    public:
        explicit SoleUse(PolicyClient& client) : user_(client.user_) {
            if (getpid() != client.process_id_) {
                throw EpisodeMisuse("this client belongs to process " +
                                    std::to_string(client.process_id_) + ", and process " +
                                    std::to_string(getpid()) +
                                    ", a fork of it, uses its connection; make a client in each "
                                    "process, after the fork");
            }
            std::thread::id nobody;
            if (!user_.compare_exchange_strong(nobody, std::this_thread::get_id())) {
                throw EpisodeMisuse("a thread uses this client while another one waits for an "
                                    "answer; make a client in each thread");
            }
        }
        ~SoleUse() { user_.store(std::thread::id()); }
        SoleUse(const SoleUse&) = delete;

    private:
        std::atomic<std::thread::id>& user_;
    };

    // Sends a request until it is answered; raises ServerUnavailable if it never is.
    Json exchange(const std::string& method, const std::string& path, const std::string& body,
                  bool is_start) {
        const SoleUse sole_use(*this);
        const double began_at = now_s();
        double heard_at = began_at, pause_s = 0;
        while (true) {
            std::string trouble;
            bool is_silent = false;
            try {
                Json answer = request(connection_, method, path, body);
                const Json reply = is_start ? first_reply(answer) : Json::Map{};
                if (reply["code"].write() != "503") return answer;
                trouble = reply["message"].text();  // it stops; another process may follow
            } catch (const Broken& broken) {
                trouble = broken.what();
                is_silent = broken.is_silent;
            }
            connection_.reset();
            if (is_silent && is_learning(began_at)) {
                heard_at = now_s();
                continue;
            }
            const double away_s = now_s() - heard_at;
            if (away_s >= patience_s_ && pause_s > 0) {  // tried twice at least
                throw ServerLost(name() + " is lost: no answer for " + std::to_string(away_s) +
                                 " s (patience_s); " + trouble + "; is it running?");
            }
            std::this_thread::sleep_for(std::chrono::duration<double>(
                std::min(pause_s, std::max(0.0, patience_s_ - away_s))));
            pause_s = std::min(2.0, std::max(0.05, 2 * pause_s));
        }
    }

    // Whether a silent server holds its answer back while it learns, as its status says.
    bool is_learning(double began_at) const {
        Json status;
        try {
            std::unique_ptr<Connection> own;
            status = request(own, "GET", "/v1/status", "");
        } catch (const Broken&) {
            return false;
        }
        if (status["is_waiting_for_learner"].is_null()) return false;
        const Json& problem = status["problem"];
        const double waited_s = now_s() - began_at;
        if (!problem.is_null() || waited_s >= update_timeout_s_) {
            throw ServerUnavailable(name() + " is learning, and has not answered for " +
                                    std::to_string(waited_s) + " s (update_timeout_s) " +
                                    (problem.is_null() ? "" : problem.text()));
        }
        return true;
    }

    // Returns the answer to one request, sent once, on a new connection if there is none.
    Json request(std::unique_ptr<Connection>& connection, const std::string& method,
                 const std::string& path, const std::string& body) const {
        if (!connection) connection = std::make_unique<Connection>(host_, port_, silence_s_);
        // A slow link takes a second for a megabyte.
        connection->configure(silence_s_ + static_cast<double>(body.size()) / 1e6);
        std::string head = method + " " + path + " HTTP/1.1\r\nHost: " + authority_ +
                           "\r\nContent-Type: application/json\r\nContent-Length: " +
                           std::to_string(body.size()) + "\r\n";
        if (!token_.empty()) head += "Authorization: Bearer " + token_ + "\r\n";
        connection->send_all(head + "\r\n" + body);
        std::string said;
        std::size_t end = std::string::npos;
        while ((end = said.find("\r\n\r\n")) == std::string::npos) connection->receive(said);
        std::string their_head = said.substr(0, end);
        std::transform(their_head.begin(), their_head.end(), their_head.begin(),
                       [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        const std::size_t length_at = their_head.find("\r\ncontent-length:");
        said.erase(0, end + 4);
        if (length_at != std::string::npos) {
            const std::size_t length = std::strtoul(&their_head[length_at + 17], nullptr, 10);
            while (said.size() < length) connection->receive(said);
        }
        const std::string code = their_head.size() < 12 ? "no HTTP" : their_head.substr(9, 3);
        const std::string shown = "answered " + code + " to " + method + " " + path + ": ";
        if (code == "502" || code == "503" || code == "504") {
            throw Broken(shown + said.substr(0, 200), false);  // it is full, or a proxy's
        }
        if (code == "200" || code == "400" || code == "413") {  // the last two refuse an item
            try {
                Json answer = Json::read(said);
                if (answer.is_map()) return answer;
            } catch (const std::invalid_argument&) {
            }
        }
        throw ServerUnavailable(name() + " " + shown + said.substr(0, 200));
    }

    const pid_t process_id_ = getpid();
    std::atomic<std::thread::id> user_{std::thread::id()};
    std::string token_, authority_, host_, port_;
    double patience_s_, update_timeout_s_, silence_s_;
    std::unique_ptr<Connection> connection_;
    Json spec_ = Json::Map{};
    std::map<std::string, Episode> episodes_;
    Json parameters_;
    bool is_evaluation_ = false;
};

}  // namespace muxrl
