#include "tests/kernels/emulation/threadblock.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <boost/context/fiber.hpp>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace hedgerow::kernels::cuda::emulation {
namespace {

constexpr int kLanes = 32;
constexpr std::size_t kStackBytes = std::size_t{64} << 10;

enum class State { kReady, kAtWarp, kAtThreadblock, kDone };

struct Thread {
  boost::context::fiber fiber;
  boost::context::fiber* launcher = nullptr;
  State state = State::kReady;
  const char* at = nullptr;
  void* slot = nullptr;
  std::vector<PendingCopy> open;                // not yet committed
  std::deque<std::vector<PendingCopy>> groups;  // committed, oldest first
};

// Shared memory that ends where a page begins which nobody may touch.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes) : bytes_(bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (bytes + page - 1) / page * page + page;
    base_ = static_cast<char*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + mapped_ - page, page, PROT_NONE) != 0) {
      throw std::runtime_error("emulation: no memory for a threadblock");
    }
    start_ = base_ + mapped_ - page - (bytes + 127) / 128 * 128;
  }
  ~SharedMemory() { munmap(base_, mapped_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void* fresh() {
    std::memset(start_, 0xff, bytes_);  // NaN, as fp32 and as bf16
    return start_;
  }

 private:
  std::size_t bytes_, mapped_ = 0;
  char* base_ = nullptr;
  char* start_ = nullptr;
};

class Threadblock {
 public:
  Threadblock(int threads, Grid index, void* shared, const Kernel& kernel, std::mt19937_64& random)
      : threads_(static_cast<std::size_t>(threads)),
        arrived_(threads_.size() / kLanes),
        random_(random) {
    for (Thread& thread : threads_) {
      thread.fiber = boost::context::fiber(
          std::allocator_arg,
          boost::context::fixedsize_stack(kStackBytes),
          [this, &thread, &kernel, index, shared](boost::context::fiber&& launcher) {
            thread.launcher = &launcher;
            try {
              kernel(index, shared);
            } catch (const boost::context::detail::forced_unwind&) {
              throw;  // another thread failed, and this one is taken down
            } catch (...) {
              error_ = std::current_exception();
            }
            thread.state = State::kDone;
            return std::move(launcher);
          });
    }
  }

  void run() {
    std::vector<int> order(threads_.size() / kLanes);
    std::iota(order.begin(), order.end(), 0);
    while (!all(State::kDone)) {
      std::shuffle(order.begin(), order.end(), random_);
      for (const int warp : order) {
        run_warp(warp);
      }
      for (Thread& thread : threads_) {
        if (thread.state == State::kDone) {
          continue;
        }
        if (thread.state != State::kAtThreadblock || any(State::kDone)) {
          throw std::logic_error("a barrier of the threadblock that not every thread reaches");
        }
      }
      for (Thread& thread : threads_) {
        thread.state = thread.state == State::kDone ? State::kDone : State::kReady;
      }
    }
  }

  [[nodiscard]] int current() const { return current_; }
  [[nodiscard]] Thread& thread() { return threads_[static_cast<std::size_t>(current_)]; }

  void suspend(State state) {
    Thread& self = thread();
    self.state = state;
    *self.launcher = std::move(*self.launcher).resume();
  }

  void arrive_at_warp(const char* name, void* slot, void (*combine)(void* const*)) {
    Thread& self = thread();
    self.at = name;
    self.slot = slot;
    const auto warp = static_cast<std::size_t>(current_ / kLanes);
    const std::size_t first = warp * kLanes;
    if (++arrived_[warp] < kLanes) {
      suspend(State::kAtWarp);
      return;
    }
    arrived_[warp] = 0;
    std::array<void*, kLanes> slots{};
    for (std::size_t i = 0; i < kLanes; ++i) {
      Thread& other = threads_[first + i];
      if (std::strcmp(other.at, name) != 0) {
        throw std::logic_error(std::string("lanes of one warp in ") + other.at + " and " + name);
      }
      slots[i] = other.slot;
    }
    if (combine != nullptr) {
      combine(slots.data());
    }
    for (std::size_t i = first; i < first + kLanes; ++i) {
      threads_[i].state = State::kReady;
    }
  }

 private:
  [[nodiscard]] bool all(State state) const {
    return std::all_of(
        threads_.begin(), threads_.end(), [&](const Thread& t) { return t.state == state; });
  }
  [[nodiscard]] bool any(State state) const {
    return std::any_of(
        threads_.begin(), threads_.end(), [&](const Thread& t) { return t.state == state; });
  }

  // Until no lane can go on.
  void run_warp(int warp) {
    const int first = warp * kLanes;
    const int turn = static_cast<int>(random_() % kLanes);
    for (bool moved = true; moved;) {
      moved = false;
      for (int i = 0; i < kLanes; ++i) {
        current_ = first + (i + turn) % kLanes;
        Thread& next = thread();
        if (next.state == State::kReady) {
          next.fiber = std::move(next.fiber).resume();
          moved = true;
        }
        if (error_) {
          std::rethrow_exception(error_);
        }
      }
    }
    for (int i = first; i < first + kLanes; ++i) {
      if (threads_[static_cast<std::size_t>(i)].state == State::kAtWarp) {
        throw std::logic_error(std::string("not every lane of a warp reaches ") +
                               threads_[static_cast<std::size_t>(i)].at);
      }
    }
  }

  std::vector<Thread> threads_;
  std::vector<int> arrived_;  // lanes of each warp at its collective function
  std::mt19937_64& random_;
  int current_ = 0;
  std::exception_ptr error_;
};

thread_local Threadblock* running = nullptr;

}  // namespace

void launch(
    Grid grid, int threads, std::size_t shared_bytes, std::uint64_t seed, const Kernel& kernel) {
  std::mt19937_64 random(seed);
  SharedMemory shared(shared_bytes);
  std::vector<int> order(static_cast<std::size_t>(grid.x) * static_cast<std::size_t>(grid.y) *
                         static_cast<std::size_t>(grid.z));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  for (const int i : order) {
    const Grid index{i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
    Threadblock threadblock(threads, index, shared.fresh(), kernel, random);
    running = &threadblock;
    threadblock.run();
  }
  running = nullptr;
}

int current_thread() { return running->current(); }
void wait_for_threadblock() { running->suspend(State::kAtThreadblock); }
void wait_for_warp(const char* name, void* slot, void (*combine)(void* const*)) {
  running->arrive_at_warp(name, slot, combine);
}
void fail(const char* what) { throw std::logic_error(what); }

void add_copy(PendingCopy copy) { running->thread().open.push_back(copy); }
void commit_copies() {
  Thread& self = running->thread();
  self.groups.push_back(std::move(self.open));
  self.open.clear();
}
void finish_copies(int pending_groups) {
  Thread& self = running->thread();
  while (self.groups.size() > static_cast<std::size_t>(pending_groups)) {
    for (const PendingCopy& copy : self.groups.front()) {
      if (copy.inside) {
        std::memcpy(copy.to, copy.from, 16);
      } else {
        std::memset(copy.to, 0, 16);
      }
    }
    self.groups.pop_front();
  }
}

}  // namespace hedgerow::kernels::cuda::emulation
