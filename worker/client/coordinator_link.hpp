// The way from a worker to its run's coordinator: the socket and the keys that it uses. keys/ alone
// says whom to trust, and only the run's owner may write there. Invariant: a worker that has keys
// sends nothing to a coordinator that has none, and the other way round. Of CoordinatorClient's
// thread; wake() of any.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/wire/run_keys.hpp"
#include "storage/files/run_layout.hpp"
#include "worker/client/dealer_socket.hpp"

namespace hedgerow::worker {

// libzmq keeps the entries of a connection's pipes in blocks of 256 (16 KB), two for each direction
// once the first are used up: 64 KB for each of a coordinator's workers. One that begins anew after
// these stays within the first page of each. A heartbeat every 5 s makes that five minutes.
inline constexpr int kFramesPerConnection = 60;

// How much went over a connection, and whether it still owes an answer.
class ConnectionWear {
 public:
  void note_sent() {
    ++num_sent_;
    awaits_answer_ = true;
  }
  void note_received() { awaits_answer_ = false; }
  // Time to begin anew, and nothing would be lost by it.
  [[nodiscard]] bool is_used_up() const {
    return num_sent_ >= kFramesPerConnection && !awaits_answer_;
  }

 private:
  int num_sent_ = 0;
  bool awaits_answer_ = false;
};

class CoordinatorLink {
 public:
  // `key_pair`: the worker's, in keys/. Throws kUsage (keys that are incomplete or that others may
  // touch), kUnavailable.
  CoordinatorLink(storage::RunLayout layout, const std::string& endpoint, std::string key_pair);

  [[nodiscard]] std::optional<std::string> receive(std::chrono::milliseconds timeout);
  void send(std::string_view frame);
  void wake() { socket_.wake(); }

  // To be called before anything is sent: connects anew where the endpoint or the keys changed, the
  // last handshake failed for good, or the connection is used up and nothing is being answered.
  // Throws kUnavailable.
  void connect(const std::string& endpoint);
  // Reads keys/ again; true if others are there than those in use, which the next connect() takes.
  [[nodiscard]] bool finds_new_keys();

  // Why the coordinator and this worker cannot talk, as the last handshake showed, and what to do,
  // in one sentence; nullopt while nothing speaks against it.
  [[nodiscard]] std::optional<std::string> problem() const;
  [[nodiscard]] bool take_reconnected() { return socket_.take_reconnected(); }

 private:
  storage::RunLayout layout_;
  std::string key_pair_;
  std::optional<wire::WorkerKeys> keys_;
  DealerSocket socket_;
  std::optional<wire::WorkerKeys> connected_keys_;  // the socket's
  ConnectionWear wear_;
};

}  // namespace hedgerow::worker
