#include "storage/faults/fault_beacon.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <new>
#include <string>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::storage {
namespace {

constexpr std::size_t kPage = 4096;
static_assert(sizeof(FaultBeacon) <= kPage);

std::mutex mutex;  // visits are rare: a few a training step

std::array<char, kPlaceBytes> padded(std::string_view place) {
  std::array<char, kPlaceBytes> text{};
  std::copy_n(place.begin(), std::min(place.size(), kPlaceBytes - 1), text.begin());
  return text;
}

void write_place(FaultBeacon& beacon, std::string_view place) {
  beacon.changes.fetch_add(1);
  beacon.place = padded(place);
  beacon.changes.fetch_add(1);
}

// The kernel's own SIGKILL: it hits whatever the process does then.
void die_after(std::uint32_t microseconds) {
  if (microseconds == 0) std::raise(SIGKILL);
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
    throw system_error("make a timer", "for HEDGEROW_STORM", errno);
  itimerspec when{};
  when.it_value.tv_sec = microseconds / 1'000'000;
  when.it_value.tv_nsec = static_cast<long>(microseconds % 1'000'000) * 1000;
  if (::timer_settime(timer, 0, &when, nullptr) != 0)
    throw system_error("set a timer", "for HEDGEROW_STORM", errno);
}

}  // namespace

FaultBeacon* open_beacon() {
  const char* directory = std::getenv("HEDGEROW_STORM");
  if (directory == nullptr || *directory == '\0') return nullptr;
  const std::string path = std::string(directory) + "/" + std::to_string(::getpid()) + ".beacon";
  // Made whole before it has its name: the test looks at any moment.
  const std::string made = path + ".new";
  const int descriptor = ::open(made.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0644);
  if (descriptor < 0) throw system_error("make", made, errno);
  if (::ftruncate(descriptor, kPage) != 0) throw system_error("size", made, errno);
  void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (page == MAP_FAILED) throw system_error("map", made, errno);
  ::close(descriptor);
  auto* beacon = new (page) FaultBeacon();
  beacon->pid = static_cast<std::uint32_t>(::getpid());
  if (::rename(made.c_str(), path.c_str()) != 0) throw system_error("rename", made, errno);
  return beacon;
}

void show_place(FaultBeacon& beacon, std::string_view place) {
  const std::lock_guard lock(mutex);
  write_place(beacon, place);
  ++beacon.visits;
  if (beacon.armed.load() != 1) return;
  const std::array<char, kPlaceBytes> text = padded(place);
  const std::size_t count = std::min<std::size_t>(beacon.num_wishes, kMaxWishes);
  for (std::size_t i = 0; i < count; ++i) {
    FaultWish& wish = beacon.wishes[i];
    if (wish.place != text || wish.skip-- > 0) continue;
    beacon.armed.store(2);
    die_after(wish.delay_us);
    return;
  }
}

void show_return(FaultBeacon& beacon, std::string_view place) {
  const std::lock_guard lock(mutex);
  write_place(beacon, place);
}

void show_step(FaultBeacon& beacon, std::int64_t step) {
  const std::lock_guard lock(mutex);
  beacon.step = step;
}

}  // namespace hedgerow::storage
