// Ranks as threads of one process, for unit tests: a mailbox for each (source, destination, tag).
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "storage/base/error.hpp"
#include "worker/comm/point_to_point.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

constexpr std::chrono::milliseconds kLookEvery{20};

class Exchange {
 public:
  void post(std::span<const std::byte> bytes, int source, int destination, int tag) {
    const std::lock_guard lock(mutex_);
    if (lost_.contains(destination)) throw lost(source, destination);
    mail_[{source, destination, tag}].emplace_back(bytes.begin(), bytes.end());
    arrived_.notify_all();
  }

  void take(std::span<std::byte> bytes,
            int source,
            int destination,
            int tag,
            std::chrono::milliseconds deadline,
            const std::function<void()>& interrupt) {
    std::unique_lock lock(mutex_);
    auto& box = mail_[{source, destination, tag}];
    const auto ready = [&] { return !box.empty() || lost_.contains(source); };
    const auto end = std::chrono::steady_clock::now() + deadline;
    while (!arrived_.wait_for(lock, kLookEvery, ready)) {
      lock.unlock();
      interrupt();
      lock.lock();
      if (std::chrono::steady_clock::now() < end) continue;
      throw Error(ErrorKind::kUnavailable,
                  "rank " + std::to_string(destination) + ": no message from rank " +
                      std::to_string(source) + " within " + std::to_string(deadline.count()) +
                      " ms");
    }
    if (box.empty()) throw lost(destination, source);
    if (box.front().size() != bytes.size()) {
      throw Error(ErrorKind::kInternal,
                  "rank " + std::to_string(destination) + ": message from rank " +
                      std::to_string(source) + ": expected " + std::to_string(bytes.size()) +
                      " bytes, found " + std::to_string(box.front().size()));
    }
    std::ranges::copy(box.front(), bytes.begin());
    box.pop_front();
  }

  void lose(int rank) {
    const std::lock_guard lock(mutex_);
    lost_.insert(rank);
    arrived_.notify_all();
  }

 private:
  static Error lost(int rank, int peer) {
    return Error(ErrorKind::kUnavailable,
                 "rank " + std::to_string(rank) + ": rank " + std::to_string(peer) + " is lost");
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> mail_;
  std::set<int> lost_;
};

class ThreadCommunicator final : public PointToPointCommunicator {
 public:
  ThreadCommunicator(Exchange& exchange,
                     int rank,
                     int world_size,
                     std::chrono::milliseconds deadline)
      : exchange_(exchange), rank_(rank), world_size_(world_size), deadline_(deadline) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return world_size_; }
  [[nodiscard]] std::chrono::milliseconds deadline() const override { return deadline_; }
  std::chrono::milliseconds set_deadline(std::chrono::milliseconds deadline) override {
    return std::exchange(deadline_, deadline);
  }
  void abandon() override {
    is_abandoned_ = true;
    exchange_.lose(rank_);
  }

 private:
  void send_message(std::span<const std::byte> bytes, int destination, int tag) override {
    check_not_abandoned();
    exchange_.post(bytes, rank_, destination, tag);
  }
  void receive_message(std::span<std::byte> bytes, int source, int tag) override {
    check_not_abandoned();
    exchange_.take(bytes, source, rank_, tag, deadline_, [this] { check_interrupt(); });
  }
  void check_not_abandoned() const {
    if (!is_abandoned_) return;
    throw Error(ErrorKind::kUnavailable,
                "rank " + std::to_string(rank_) + ": an earlier call failed");
  }

  Exchange& exchange_;
  const int rank_;
  const int world_size_;
  std::chrono::milliseconds deadline_;
  bool is_abandoned_ = false;
};

}  // namespace

void run_on_threads(int world_size,
                    const std::function<void(Communicator&)>& body,
                    std::chrono::milliseconds deadline) {
  Exchange exchange;
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < world_size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          ThreadCommunicator communicator(exchange, rank, world_size, deadline);
          body(communicator);
        } catch (...) {
          {
            const std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
          }
          exchange.lose(rank);
        }
      });
    }
  }
  if (first) std::rethrow_exception(first);
}

std::unique_ptr<Communicator> make_single_communicator() {
  // It has nobody to send to.
  struct Alone final : PointToPointCommunicator {
    [[nodiscard]] int rank() const override { return 0; }
    [[nodiscard]] int world_size() const override { return 1; }
    [[nodiscard]] std::chrono::milliseconds deadline() const override { return deadline_; }
    std::chrono::milliseconds set_deadline(std::chrono::milliseconds deadline) override {
      return std::exchange(deadline_, deadline);
    }
    void abandon() override {}
    void send_message(std::span<const std::byte> /*bytes*/,
                      int /*destination*/,
                      int /*tag*/) override {}
    void receive_message(std::span<std::byte> /*bytes*/, int /*source*/, int /*tag*/) override {}

    std::chrono::milliseconds deadline_ = kCommDeadline;
  };
  return std::make_unique<Alone>();
}

}  // namespace hedgerow::worker
