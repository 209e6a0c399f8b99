#include "coordinator/cli/doctor/doctor_peers.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "coordinator/cli/doctor/doctor_sockets.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "storage/base/error.hpp"
#include "storage/base/file.hpp"
#include "storage/base/random.hpp"
#include "storage/base/utc.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr const char* kFolder = ".hedgerow-doctor-peers";
constexpr double kForgottenSeconds = 600.0;  // a file of a doctor that was killed
constexpr double kSlowSeconds = 30.0;        // of the 90 s that readers wait
constexpr std::chrono::seconds kFarewell{10};
constexpr std::chrono::seconds kConnect{5};
constexpr std::uint64_t kMaxBytes = 1U << 20;

std::string drawn_name(const std::string& host) {
  constexpr std::size_t kRandomBytes = 4;
  return host + "-" + std::to_string(::getpid()) + "-" + storage::random_hex(kRandomBytes) +
         ".json";
}

// By the file server's clock, which all nodes share; 0: no such file.
double modified(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return 0.0;
  return static_cast<double>(status.st_mtim.tv_sec) +
         static_cast<double>(status.st_mtim.tv_nsec) * 1e-9;
}

// Another process, as far as its file told.
struct Peer {
  std::string host;
  bool answered = false;  // it has seen our file, and we have seen that
  bool done = false;
  // Seconds from when both files were written to when its answer showed here.
  double round_trip = 0.0;
  double clock_ahead = 0.0;  // of ours, give or take half the round trip
  bool reached = false;
};

class Meeting {
 public:
  Meeting(const fs::path& directory, const PeerOptions& options)
      : options_(options),
        folder_(directory / kFolder),
        own_(drawn_name(options.host)),
        begin_(Clock::now()) {
    fs::create_directories(folder_);
    if (!options.address.empty()) socket_.emplace(options.address, 0);
    written_ = storage::wall_seconds();
    publish(false);
    created_ = modified(folder_ / own_);
    publish(false);
    sweep();
  }

  ~Meeting() {
    std::error_code ignored;
    fs::remove(folder_ / own_, ignored);
    fs::remove(folder_, ignored);  // goes with the last one
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  void hold() {
    const auto deadline = begin_ + options_.timeout;
    std::optional<Clock::time_point> farewell;
    while (Clock::now() < farewell.value_or(deadline)) {
      if (look()) publish(farewell.has_value());
      if (!farewell && num_answered() >= options_.num_processes - 1) {
        connect_to_all();
        farewell = Clock::now() + kFarewell;
        publish(true);
      }
      if (farewell && all_are_done()) return;
      std::this_thread::sleep_for(options_.look_every);
    }
  }

  [[nodiscard]] int num_answered() const {
    return static_cast<int>(
        std::ranges::count_if(peers_, [](const auto& entry) { return entry.second.answered; }));
  }
  [[nodiscard]] std::vector<Peer> answered() const {
    std::vector<Peer> all;
    for (const auto& [name, peer] : peers_) {
      if (peer.answered) all.push_back(peer);
    }
    return all;
  }
  [[nodiscard]] int num_torn() const { return num_torn_; }

 private:
  // The last to leave may find the others gone, who only go when all are done.
  [[nodiscard]] bool all_are_done() const {
    return std::ranges::all_of(peers_, [this](const auto& entry) {
      std::error_code ignored;
      return !entry.second.answered || entry.second.done ||
             !fs::exists(folder_ / entry.first, ignored);
    });
  }

  void publish(bool done) {
    const json file = {{"host", options_.host},
                       {"address", options_.address},
                       {"port", socket_ ? socket_->port() : 0},
                       {"created", created_},
                       {"seen", seen_},
                       {"done", done}};
    storage::write_atomically(folder_ / own_, file.dump());
  }

  void sweep() {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
      const double modified_at = modified(entry.path());
      if (modified_at > 0 && created_ - modified_at > kForgottenSeconds)
        fs::remove(entry.path(), ignored);
    }
  }

  // True if a peer was seen for the first time.
  bool look() {
    bool is_news = false;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
      const std::string name = entry.path().filename();
      if (name == own_ || entry.path().extension() != ".json") continue;
      const std::optional<json> file = read(entry.path());
      if (!file || file->value("created", 0.0) <= 0) continue;  // its first words, more are coming
      is_news = seen_.try_emplace(name, storage::wall_seconds()).second || is_news;
      hear(name, *file);
    }
    return is_news;
  }

  // Gone meanwhile is no error; there and not whole is, because it was renamed into place.
  std::optional<json> read(const fs::path& path) {
    try {
      json file = json::parse(storage::read_text(path, kMaxBytes), nullptr, false);
      if (file.is_object() && file.contains("seen") && file["seen"].is_object()) return file;
      ++num_torn_;
    } catch (const storage::Error&) {
      return std::nullopt;
    }
    return std::nullopt;
  }

  void hear(const std::string& name, const json& file) {
    Peer& peer = peers_[name];
    peer.host = file.value("host", "?");
    peer.done = peer.done || file.value("done", false);
    addresses_[name] = {file.value("address", ""), file.value("port", 0)};
    const auto& seen = file["seen"];
    if (peer.answered || !seen.contains(own_) || !seen[own_].is_number()) return;
    peer.answered = true;
    // A peer that began later could not answer before.
    const double later = std::max(0.0, file.value("created", 0.0) - created_);
    const double elapsed = std::chrono::duration<double>(Clock::now() - begin_).count();
    peer.round_trip = std::max(0.0, elapsed - later);
    peer.clock_ahead = seen[own_].get<double>() - (written_ + later + peer.round_trip / 2);
  }

  void connect_to_all() {
    for (auto& [name, peer] : peers_) {
      const auto& [address, port] = addresses_[name];
      peer.reached = port > 0 && can_connect(address, port, kConnect);
    }
  }

  PeerOptions options_;
  fs::path folder_;
  std::string own_;
  Clock::time_point begin_;
  double written_ = 0.0;                // by the wall clock
  double created_ = 0.0;                // by the file server's
  std::map<std::string, double> seen_;  // when, by the wall clock
  std::map<std::string, Peer> peers_;   // by their files
  std::map<std::string, std::pair<std::string, int>> addresses_;
  std::optional<ListeningSocket> socket_;
  int num_torn_ = 0;
};

std::string hosts_of(const std::vector<Peer>& peers) {
  std::set<std::string> hosts;
  for (const Peer& peer : peers) hosts.insert(one_line(peer.host));
  std::string text;
  for (const std::string& host : hosts) text += (text.empty() ? "" : ", ") + host;
  return text;
}

Finding judge_visibility(const std::vector<Peer>& peers, const PeerOptions& options, int num_torn) {
  const std::string check = "visibility between nodes";
  const int wanted = options.num_processes - 1;
  if (static_cast<int>(peers.size()) < wanted) {
    return {check,
            Level::kFail,
            std::to_string(peers.size()) + " of " + std::to_string(wanted) +
                " others answered within " +
                duration_text(std::chrono::duration<double>(options.timeout).count()) +
                (peers.empty() ? "" : ": " + hosts_of(peers)),
            "start 'hedgerow doctor --peers " + std::to_string(options.num_processes) +
                "' on that many nodes at once, with the same --dir; if you did, it is not one file "
                "system on all of them, or it caches longer than readers wait"};
  }
  if (num_torn > 0) {
    return {check,
            Level::kFail,
            std::to_string(num_torn) + " files were there before their content was",
            "a rename must show whole files: put the run on a POSIX file system (no object store)"};
  }
  double slowest = 0.0;
  for (const Peer& peer : peers) slowest = std::max(slowest, peer.round_trip);
  const bool is_alone = std::ranges::all_of(
      peers, [&options](const Peer& peer) { return peer.host == options.host; });
  const std::string found = "a file shows on " +
                            (is_alone ? "this host, where all of them run" : hosts_of(peers)) +
                            ", and the answer here, within " + duration_text(slowest);
  if (slowest < kSlowSeconds) return {check, Level::kOk, found, ""};
  return {check,
          Level::kWarn,
          found,
          "every commit is waited for so long: mount with shorter caches (NFS: actimeo=3, "
          "lookupcache=positive)"};
}

Finding judge_clocks(const std::vector<Peer>& peers) {
  const Peer* worst = nullptr;
  double worst_skew = 0.0;
  for (const Peer& peer : peers) {
    // What the round trip itself may explain is no skew.
    const double skew = std::abs(peer.clock_ahead) - peer.round_trip / 2;
    if (worst != nullptr && skew <= worst_skew) continue;
    worst = &peer;
    worst_skew = skew;
  }
  if (worst_skew <= kSkewSeconds) return {"clocks of the nodes", Level::kOk, "agree", ""};
  return {"clocks of the nodes",
          Level::kWarn,
          worst->host + " is " + duration_text(std::abs(worst->clock_ahead)) +
              (worst->clock_ahead > 0 ? " ahead" : " behind"),
          "no decision depends on it, but times in logs will not line up; run NTP"};
}

Finding judge_connections(const std::vector<Peer>& peers) {
  std::vector<Peer> unreached;
  std::ranges::copy_if(
      peers, std::back_inserter(unreached), [](const Peer& peer) { return !peer.reached; });
  if (unreached.empty()) {
    return {"connections between nodes", Level::kOk, "each answers at its address", ""};
  }
  return {"connections between nodes",
          Level::kWarn,
          hosts_of(unreached) + " cannot be connected to",
          "a firewall, or a name that means another interface: set workers.advertise, and open the "
          "port of workers.port and those of MPI"};
}

}  // namespace

std::vector<Finding> meet_peers(const fs::path& directory, const PeerOptions& options) {
  try {
    Meeting meeting(directory, options);
    meeting.hold();
    const std::vector<Peer> peers = meeting.answered();
    std::vector<Finding> findings = {judge_visibility(peers, options, meeting.num_torn())};
    if (peers.empty()) return findings;
    findings.push_back(judge_clocks(peers));
    if (!options.address.empty()) findings.push_back(judge_connections(peers));
    return findings;
  } catch (const std::exception& error) {
    return {{"visibility between nodes",
             Level::kFail,
             error.what(),
             "choose a directory that this user may write, on every node"}};
  }
}

}  // namespace hedgerow::coordinator::cli
