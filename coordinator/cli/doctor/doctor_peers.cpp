#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "coordinator/cli/doctor/doctor.hpp"
#include "coordinator/cli/doctor/doctor_sockets.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "storage/base/error.hpp"
#include "storage/base/random.hpp"
#include "storage/base/utc.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr double kForgottenSeconds = 600.0;  // a file of a doctor that was killed
constexpr std::chrono::seconds kGrace{10};   // for the others to see that all have met
constexpr std::uint64_t kMaxBytes = 1U << 20;

// By the file server's clock, which all nodes share; 0: no such file.
double modified(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return 0.0;
  return static_cast<double>(status.st_mtim.tv_sec) +
         static_cast<double>(status.st_mtim.tv_nsec) * 1e-9;
}

// A process, as far as its file tells.
struct Peer {
  std::string host, address;
  int port = 0;
  double clock_ahead = 0.0;  // of the file server's
  bool done = false;         // it has seen all others
  bool reached = false;
};

class Meeting {
 public:
  Meeting(const fs::path& directory, const PeerOptions& options)
      : options_(options), folder_(directory / ".hedgerow-doctor-peers") {
    fs::create_directories(folder_);
    own_ = folder_ / (options.host + "-" + std::to_string(::getpid()) + "-" +
                      storage::random_hex(4) + ".json");
    if (!options.address.empty()) socket_.emplace(options.address, 0);
    publish(false);
  }
  ~Meeting() {
    std::error_code ignored;
    fs::remove(own_, ignored);
    fs::remove(folder_, ignored);  // goes with the last one
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Until all have seen all: a process that has seen all others says so in its file and waits until
  // their files say so too.
  void hold() {
    auto deadline = Clock::now() + options_.timeout;
    for (bool have_met = false; Clock::now() < deadline;) {
      look();
      if (!have_met && static_cast<int>(peers_.size()) >= options_.num_processes - 1) {
        have_met = true;
        for (auto& [name, peer] : peers_)
          peer.reached = peer.port > 0 && can_connect(peer.address, peer.port);
        publish(true);
        deadline = Clock::now() + kGrace;
      }
      if (have_met && all_are_done()) return;
      std::this_thread::sleep_for(options_.look_every);
    }
  }

  [[nodiscard]] std::vector<Peer> peers() const {
    std::vector<Peer> all;
    for (const auto& [name, peer] : peers_) all.push_back(peer);
    return all;
  }
  [[nodiscard]] double clock_ahead() const { return clock_ahead_; }
  [[nodiscard]] int num_torn() const { return num_torn_; }

 private:
  // The last to leave may find the others gone, who only go when all are done.
  [[nodiscard]] bool all_are_done() const {
    return std::ranges::all_of(peers_, [](const auto& entry) {
      std::error_code ignored;
      return entry.second.done || !fs::exists(entry.first, ignored);
    });
  }

  void publish(bool done) {
    const double now = storage::wall_seconds();
    storage::write_atomically(own_,
                              json{{"host", options_.host},
                                   {"address", options_.address},
                                   {"port", socket_ ? socket_->port() : 0},
                                   {"clock", now},
                                   {"done", done}}
                                  .dump());
    clock_ahead_ = now - modified(own_);
  }

  void look() {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
      const fs::path path = entry.path();
      const double written = modified(path);
      if (path == own_ || path.extension() != ".json" || written == 0.0) continue;
      if (modified(own_) - written > kForgottenSeconds) {
        fs::remove(path, ignored);
        continue;
      }
      std::string text;
      try {
        text = storage::read_text(path, kMaxBytes);
      } catch (const storage::Error&) {  // gone meanwhile
        continue;
      }
      // It was renamed into place, so it must be whole.
      const json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (file.is_object() && file.contains("clock")) {
        hear(peers_[path], file, written);
      } else {
        ++num_torn_;
      }
    }
  }

  static void hear(Peer& peer, const json& file, double written) {
    peer.host = one_line(file.value("host", "?"));
    peer.address = file.value("address", "");
    peer.port = file.value("port", 0);
    peer.done = file.value("done", false);
    peer.clock_ahead = file.value("clock", 0.0) - written;
  }

  PeerOptions options_;
  fs::path folder_, own_;
  double clock_ahead_ = 0.0;
  std::map<fs::path, Peer> peers_;
  std::optional<ListeningSocket> socket_;
  int num_torn_ = 0;
};

std::string hosts_of(const std::vector<Peer>& peers) {
  std::string text;
  for (const Peer& peer : peers) text += (text.empty() ? "" : ", ") + peer.host;
  return text;
}

Outcome judge_visibility(const Meeting& meeting, const PeerOptions& options) {
  const std::vector<Peer> peers = meeting.peers();
  const std::size_t wanted = static_cast<std::size_t>(options.num_processes) - 1;
  if (peers.size() < wanted) {
    return {Level::kFail,
            std::to_string(peers.size()) + " of " + std::to_string(wanted) +
                " others were seen within " +
                duration_text(std::chrono::duration<double>(options.timeout).count()) +
                (peers.empty() ? "" : ": " + hosts_of(peers))};
  }
  if (meeting.num_torn() > 0) {
    return {Level::kFail,
            "files were there before their content was",
            "put the run on a POSIX file system (no object store)"};
  }
  return {Level::kOk, "files of " + hosts_of(peers) + " show here"};
}

Outcome judge_clocks(const Meeting& meeting) {
  for (const Peer& peer : meeting.peers()) {
    const double ahead = peer.clock_ahead - meeting.clock_ahead();
    if (std::abs(ahead) <= kSkewSeconds) continue;
    return {
        Level::kWarn,
        peer.host + " is " + duration_text(std::abs(ahead)) + (ahead > 0 ? " ahead" : " behind")};
  }
  return {Level::kOk, "agree"};
}

Outcome judge_connections(std::vector<Peer> peers) {
  std::erase_if(peers, [](const Peer& peer) { return peer.reached; });
  if (peers.empty()) return {Level::kOk, "each answers at its address"};
  return {Level::kWarn, hosts_of(peers) + " cannot be connected to"};
}

}  // namespace

std::vector<Finding> meet_peers(const fs::path& directory, const PeerOptions& options) {
  std::optional<Meeting> meeting;
  std::vector<Finding> findings = run_checks(
      {{"visibility between nodes",
        "start 'hedgerow doctor --peers " + std::to_string(options.num_processes) +
            "' on that many nodes at once, with the same --dir, which all may write; if you did, "
            "it is not one file system on all of them, or it caches longer than readers wait",
        [&] {
          meeting.emplace(directory, options);
          meeting->hold();
          return judge_visibility(*meeting, options);
        }}});
  if (!meeting || meeting->peers().empty()) return findings;
  std::vector<Check> checks = {
      {"clocks of the nodes",
       "no decision depends on it, but times in logs will not line up; run NTP",
       [&] { return judge_clocks(*meeting); }}};
  if (!options.address.empty()) {
    checks.push_back(
        {"connections between nodes",
         "a firewall, or a name that means another interface: set workers.advertise, and open the "
         "port of workers.port and those of MPI",
         [&] { return judge_connections(meeting->peers()); }});
  }
  for (const Finding& finding : run_checks(checks)) findings.push_back(finding);
  return findings;
}

}  // namespace hedgerow::coordinator::cli
