#include "worker/client/coordinator_link.hpp"

#include "coordinator/wire/coordinator_file.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::worker {

CoordinatorLink::CoordinatorLink(storage::RunLayout layout,
                                 const std::string& endpoint,
                                 std::string key_pair)
    : layout_(std::move(layout)),
      key_pair_(std::move(key_pair)),
      keys_(wire::read_worker_keys(layout_, key_pair_)),
      socket_(endpoint, keys_),
      connected_keys_(keys_) {}

bool CoordinatorLink::finds_new_keys() {
  std::optional<wire::WorkerKeys> found;
  try {
    found = wire::read_worker_keys(layout_, key_pair_);
  } catch (const storage::Error&) {
    return false;  // being made at this moment, or half gone: those in use are as good
  }
  // Keys that have gone are kept: who takes them away must not make us talk without.
  if (!found || found == keys_) return false;
  keys_ = std::move(found);
  return true;
}

void CoordinatorLink::connect(const std::string& endpoint) {
  const bool is_fresh =
      socket_.endpoint() == endpoint && connected_keys_ == keys_ && !socket_.failure();
  if (is_fresh && !wear_.is_used_up()) return;
  socket_.reconnect(endpoint, keys_);
  connected_keys_ = keys_;
  wear_ = {};
}

std::optional<std::string> CoordinatorLink::receive(std::chrono::milliseconds timeout) {
  std::optional<std::string> frame = socket_.receive(timeout);
  if (frame) wear_.note_received();
  return frame;
}

void CoordinatorLink::send(std::string_view frame) {
  socket_.send(frame);
  wear_.note_sent();
}

std::optional<std::string> CoordinatorLink::problem() const {
  const std::optional<HandshakeFailure> failure = socket_.failure();
  // Without keys a closed connection says nothing: the listener may be no coordinator.
  if (!failure || (*failure == HandshakeFailure::kClosed && !connected_keys_)) return std::nullopt;
  const std::string who = "the coordinator at " + socket_.endpoint();
  const std::string run = layout_.root().string();
  const std::string folder = layout_.keys_directory().string();
  // One that does not encrypt may close before its greeting, which says so, is read.
  const auto file = wire::read_coordinator_file(layout_);
  const bool is_open = file && file->endpoint == socket_.endpoint() && file->public_key.empty();
  const bool says_nothing = *failure == HandshakeFailure::kClosed && is_open;
  switch (says_nothing ? HandshakeFailure::kMechanism : *failure) {
    case HandshakeFailure::kKeyRefused:
      return who + " does not let in the public key " + socket_.public_key() + " of " +
             wire::secret_key_file(layout_, key_pair_).string() +
             ", which is not in its keys/allowed; add it there and send the coordinator SIGHUP";
    case HandshakeFailure::kMechanism:
      if (connected_keys_) {
        return who + " does not encrypt its connections, but this worker has keys (" + folder +
               ") and talks to none that it cannot know again; stop the run and start it again, so "
               "that it uses them";
      }
      return who + " lets in holders of keys alone, and this worker sees none (" + folder +
             " is absent); run it where that directory is, or make keys with 'hedgerow keygen "
             "--run " +
             run + "' and start the run again";
    case HandshakeFailure::kClosed:
      break;
  }
  return who + " has not the key that " + wire::public_key_file(layout_, "coordinator").string() +
         " says; it was started before the keys were made anew, or it is another run's: stop the "
         "run and start it again";
}

}  // namespace hedgerow::worker
