// A communicator of one rank, and one of some of another's ranks.
#include <algorithm>
#include <utility>

#include "storage/base/error.hpp"
#include "worker/comm/point_to_point.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

class Group final : public PointToPointCommunicator {
 public:
  Group(Communicator& whole, std::vector<int> ranks) : whole_(whole), ranks_(std::move(ranks)) {
    const auto own = std::ranges::find(ranks_, whole_.rank());
    if (own == ranks_.end()) {
      throw Error(ErrorKind::kInternal,
                  "rank " + std::to_string(whole_.rank()) + " is none of its group's");
    }
    rank_ = static_cast<int>(own - ranks_.begin());
  }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] std::chrono::milliseconds deadline() const override { return whole_.deadline(); }
  std::chrono::milliseconds set_deadline(std::chrono::milliseconds deadline) override {
    return whole_.set_deadline(deadline);
  }
  void abandon() override { whole_.abandon(); }

 private:
  // The collectives' tags lie above what `whole` takes of its callers.
  static int tag_of(int tag) { return tag > kMaxTag ? kFirstGroupTag + tag - kMaxTag - 1 : tag; }
  [[nodiscard]] int whole_rank(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  std::unique_ptr<Message> post(std::span<const std::byte> bytes,
                                std::shared_ptr<const void> owner,
                                int destination,
                                int tag) override {
    return whole_.start_send(bytes, std::move(owner), whole_rank(destination), tag_of(tag));
  }
  std::unique_ptr<Message> expect(std::span<std::byte> bytes,
                                  std::shared_ptr<const void> owner,
                                  int source,
                                  int tag) override {
    return whole_.start_receive(bytes, std::move(owner), whole_rank(source), tag_of(tag));
  }

  Communicator& whole_;
  std::vector<int> ranks_;
  int rank_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
  // There is no other rank to send to.
  struct Alone final : PointToPointCommunicator {
    [[nodiscard]] int rank() const override { return 0; }
    [[nodiscard]] int world_size() const override { return 1; }
    [[nodiscard]] std::chrono::milliseconds deadline() const override { return deadline_; }
    std::chrono::milliseconds set_deadline(std::chrono::milliseconds deadline) override {
      return std::exchange(deadline_, deadline);
    }
    void abandon() override {}
    std::unique_ptr<Message> post(std::span<const std::byte> /*bytes*/,
                                  std::shared_ptr<const void> /*owner*/,
                                  int /*destination*/,
                                  int /*tag*/) override {
      return nullptr;
    }
    std::unique_ptr<Message> expect(std::span<std::byte> /*bytes*/,
                                    std::shared_ptr<const void> /*owner*/,
                                    int /*source*/,
                                    int /*tag*/) override {
      return nullptr;
    }

    std::chrono::milliseconds deadline_ = kCommDeadline;
  };
  return std::make_unique<Alone>();
}

std::unique_ptr<Communicator> make_group(Communicator& whole, std::vector<int> ranks) {
  return std::make_unique<Group>(whole, std::move(ranks));
}

}  // namespace hedgerow::worker
