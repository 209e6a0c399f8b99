#include "tests/worker/comm/rank_threads.hpp"

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

// A message that was sent. Its bytes stay where the sender has them until they are taken, as with
// MPI: whoever writes to them too early, or lets them go, fails here as it would there.
struct Letter {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
  bool is_taken = false;
};

class Exchange {
 public:
  void post(const std::shared_ptr<Letter>& letter, int source, int destination, int tag) {
    const std::lock_guard lock(mutex_);
    if (lost_.contains(destination)) throw lost(source, destination);
    mail_[{source, destination, tag}].push_back(letter);
    arrived_.notify_all();
  }

  bool is_taken(const Letter& letter) {
    const std::lock_guard lock(mutex_);
    return letter.is_taken;
  }

  // Gives the sender its memory back without waiting for the receiver: ranks that send to each
  // other and then receive do not wait for each other.
  void buffer(Letter& letter) {
    std::shared_ptr<const void> before;  // given up without the lock
    const std::lock_guard lock(mutex_);
    if (letter.is_taken) return;
    const auto own =
        std::make_shared<const std::vector<std::byte>>(letter.bytes.begin(), letter.bytes.end());
    before = std::exchange(letter.owner, own);
    letter.bytes = *own;
  }

  bool has(int source, int destination, int tag) {
    const std::lock_guard lock(mutex_);
    return !mail_[{source, destination, tag}].empty();
  }

  void take(std::span<std::byte> bytes,
            int source,
            int destination,
            int tag,
            std::chrono::milliseconds deadline,
            const std::function<void()>& interrupt) {
    std::shared_ptr<const void> owner;  // given up without the lock
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
    Letter& letter = *box.front();
    if (letter.bytes.size() != bytes.size()) {
      throw Error(ErrorKind::kInternal,
                  "rank " + std::to_string(destination) + ": message from rank " +
                      std::to_string(source) + ": expected " + std::to_string(bytes.size()) +
                      " bytes, found " + std::to_string(letter.bytes.size()));
    }
    std::ranges::copy(letter.bytes, bytes.begin());
    letter.is_taken = true;
    owner = std::move(letter.owner);
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
  std::map<std::tuple<int, int, int>, std::deque<std::shared_ptr<Letter>>> mail_;
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
  class Posted final : public Message {
   public:
    Posted(Exchange& exchange, std::shared_ptr<Letter> letter)
        : exchange_(exchange), letter_(std::move(letter)) {}
    bool is_done() override { return exchange_.is_taken(*letter_); }
    void wait() override { exchange_.buffer(*letter_); }

   private:
    Exchange& exchange_;
    std::shared_ptr<Letter> letter_;  // the mailbox's too: it may be dropped here
  };
  // Nothing writes to its memory but wait().
  class Expected final : public Message {
   public:
    Expected(ThreadCommunicator& communicator,
             std::span<std::byte> bytes,
             std::shared_ptr<const void> owner,
             int source,
             int tag)
        : communicator_(communicator),
          bytes_(bytes),
          owner_(std::move(owner)),
          source_(source),
          tag_(tag) {}
    bool is_done() override {
      return communicator_.exchange_.has(source_, communicator_.rank_, tag_);
    }
    void wait() override {
      communicator_.check_not_abandoned();
      communicator_.exchange_.take(
          bytes_, source_, communicator_.rank_, tag_, communicator_.deadline_, [this] {
            communicator_.check_interrupt();
          });
    }

   private:
    ThreadCommunicator& communicator_;
    std::span<std::byte> bytes_;
    std::shared_ptr<const void> owner_;
    int source_, tag_;
  };

  std::unique_ptr<Message> post(std::span<const std::byte> bytes,
                                std::shared_ptr<const void> owner,
                                int destination,
                                int tag) override {
    check_not_abandoned();
    auto letter = std::make_shared<Letter>(Letter{bytes, std::move(owner)});
    exchange_.post(letter, rank_, destination, tag);
    return std::make_unique<Posted>(exchange_, std::move(letter));
  }
  std::unique_ptr<Message> expect(std::span<std::byte> bytes,
                                  std::shared_ptr<const void> owner,
                                  int source,
                                  int tag) override {
    check_not_abandoned();
    return std::make_unique<Expected>(*this, bytes, std::move(owner), source, tag);
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

}  // namespace hedgerow::worker
