#include "storage/faults/fault_point.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>

#include "storage/base/error.hpp"
#include "storage/faults/fault_beacon.hpp"

namespace hedgerow::storage {
namespace {

enum class Action { kKill, kStop, kHang };

struct Request {
  std::string place;
  long visit = 0;  // 0: no request
  int block = -1;  // -1: any
  Action action = Action::kKill;
};

Action read_action() {
  const char* value = std::getenv("HEDGEROW_FAULT_ACTION");
  const std::string_view word = value == nullptr ? "" : value;
  if (word.empty() || word == "kill") return Action::kKill;
  if (word == "stop") return Action::kStop;
  if (word == "hang") return Action::kHang;
  throw Error(ErrorKind::kUsage,
              "HEDGEROW_FAULT_ACTION=" + std::string(word) + ": expected kill, stop or hang");
}

Request read_request() {
  const char* value = std::getenv("HEDGEROW_FAULT");
  if (value == nullptr || *value == '\0') return {};
  const std::string text(value);
  const std::size_t colon = text.rfind(':');
  Request request{text.substr(0, colon), 1, -1, read_action()};
  if (colon != std::string::npos)
    request.visit = std::strtol(text.c_str() + colon + 1, nullptr, 10);
  if (request.visit < 1) {
    throw Error(ErrorKind::kUsage,
                "HEDGEROW_FAULT=" + text +
                    ": expected PLACE[@BLOCK] or PLACE[@BLOCK]:VISIT with VISIT >= 1");
  }
  if (const std::size_t at = request.place.find('@'); at != std::string::npos) {
    request.block = std::atoi(request.place.c_str() + at + 1);
    request.place.resize(at);
  }
  return request;
}

// True when no other process has died here before.
bool claim_once() {
  const char* path = std::getenv("HEDGEROW_FAULT_ONCE");
  if (path == nullptr || *path == '\0') return true;
  const int descriptor = ::open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
  if (descriptor < 0) return false;
  ::close(descriptor);
  return true;
}

FaultBeacon* beacon() {
  static FaultBeacon* const opened = open_beacon();
  return opened;
}

// Where the working thread is; a literal.
std::string_view current;

}  // namespace

void fault_point(std::string_view place, int block) {
  if (FaultBeacon* shown = beacon()) {
    current = place;
    show_place(*shown, place);
  }
  static const Request request = read_request();
  if (request.visit == 0 || request.place != place) return;
  if (request.block >= 0 && request.block != block) return;
  static std::atomic<long> visits{0};
  if (visits.fetch_add(1) + 1 != request.visit) return;
  if (!claim_once()) return;
  if (request.action == Action::kHang) {
    while (true) ::pause();
  }
  std::raise(request.action == Action::kStop ? SIGSTOP : SIGKILL);
}

FaultScope::FaultScope(std::string_view place) : outer_(current) { fault_point(place); }

FaultScope::~FaultScope() {
  FaultBeacon* shown = beacon();
  if (shown == nullptr) return;
  current = outer_;
  show_return(*shown, outer_);
}

void fault_step(std::int64_t step) {
  if (FaultBeacon* shown = beacon()) show_step(*shown, step);
}

}  // namespace hedgerow::storage
