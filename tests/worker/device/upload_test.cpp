// The order in which sequences go to a device, on the CPU: the engine of these tests copies as late
// as a device may, so that a buffer which is overwritten too early shows.
#include "worker/device/upload.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <thread>

#include "storage/base/error.hpp"
#include "tests/support/shard_fixture.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::worker {
namespace {

using ::testing::ElementsAre;

// Notes what it is told, and copies only when the host waits for it.
class LateEngine final : public CopyEngine {
 public:
  std::shared_ptr<std::byte[]> host_buffer(std::size_t bytes) override {
    return std::make_shared<std::byte[]>(bytes);
  }
  at::Tensor begin_copy(const at::Tensor& host, int slot) override {
    EXPECT_FALSE(pending_.contains(slot)) << "slot " << slot << " is begun again before its end";
    const at::Tensor on_device = at::empty_like(host);
    pending_[slot] = {host, on_device};
    note("copy", slot);
    return on_device;
  }
  void let_compute_wait(const at::Tensor& /*on_device*/, int slot) override {
    note("compute behind", slot);
    if (before_looking_ahead) before_looking_ahead();
  }
  void wait(int slot) override {
    note("host behind", slot);
    const auto found = pending_.find(slot);
    if (found == pending_.end()) return;
    found->second.on_device.copy_(found->second.host);
    pending_.erase(found);
  }

  std::vector<std::string> log;
  std::function<void()> before_looking_ahead;

 private:
  struct Copy {
    at::Tensor host, on_device;
  };
  void note(const char* what, int slot) {
    log.push_back(std::string(what) + " " + std::to_string(slot));
  }
  std::map<int, Copy> pending_;
};

class UploadTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kNumSequences = 40;

  void SetUp() override {
    info_ = tests::shard_info(kNumSequences, 8, 16);
    const std::string name =
        storage::RunLayout::hidden_shard(info_.boundary, info_.shard, info_.fencing_token);
    std::filesystem::create_directories(layout_.resolve(name).parent_path());
    record_ = tests::write_shard(layout_.resolve(name), info_, name);
    reader_.emplace(layout_, std::vector{record_});
  }

  [[nodiscard]] bool equals(const at::Tensor& found, std::int64_t sequence) const {
    const auto expected = tests::sequence_bytes(info_, sequence);
    const auto* bytes = static_cast<const std::byte*>(found.const_data_ptr());
    return found.nbytes() == expected.size() && std::equal(expected.begin(), expected.end(), bytes);
  }

  tests::TemporaryDirectory directory_;
  storage::RunLayout layout_{directory_.path()};
  storage::ShardInfo info_;
  storage::FileRecord record_;
  LateEngine engine_;  // outlives the reader
  std::optional<storage::BoundaryReader> reader_;
};

TEST_F(UploadTest, NoBufferIsReadIntoBeforeItsCopyIsOverHoweverLateThatIs) {
  std::vector<std::int64_t> order(kNumSequences);
  std::iota(order.rbegin(), order.rend(), 0);
  std::vector<at::Tensor> delivered;
  {
    Uploader uploader(*reader_, engine_);
    uploader.plan(order);
    for (std::int64_t i = 0; i < kNumSequences; ++i) delivered.push_back(uploader.next());
  }
  for (std::size_t i = 0; i < order.size(); ++i)
    EXPECT_TRUE(equals(delivered[i], order[i])) << "sequence " << order[i];
}

// The host may wait for the copy before the last, never for the one that it has just begun.
TEST_F(UploadTest, TheNextCopyIsBegunBeforeTheDeviceComputesAndTheHostNeverWaitsForIt) {
  int given = 0;
  engine_.before_looking_ahead = [&] {
    while (++given < 3 && !reader_->is_ready()) {
      --given;
      std::this_thread::yield();
    }
  };
  Uploader uploader(*reader_, engine_);
  uploader.plan({5, 6, 7});
  engine_.log.clear();  // plan() drained what was before
  static_cast<void>(uploader.next());
  EXPECT_THAT(engine_.log,
              ElementsAre("host behind 0",  // nothing was begun there: returns at once
                          "copy 0",
                          "compute behind 0",
                          "host behind 1",
                          "copy 1"));
  engine_.log.clear();
  static_cast<void>(uploader.next());
  EXPECT_THAT(engine_.log, ElementsAre("compute behind 1", "host behind 0", "copy 0"));
  engine_.log.clear();
  static_cast<void>(uploader.next());
  EXPECT_THAT(engine_.log, ElementsAre("compute behind 0")) << "nothing is left to read ahead";
  EXPECT_THROW(static_cast<void>(uploader.next()), storage::Error);
}

TEST_F(UploadTest, ANewPlanForgetsWhatWasAheadAndWaitsForItsBuffers) {
  Uploader uploader(*reader_, engine_);
  uploader.plan({1, 2, 3, 4});
  const at::Tensor first = uploader.next();
  uploader.plan({30, 31});
  EXPECT_TRUE(equals(first, 1)) << "its copy was over before the reader gave its buffer up";
  const at::Tensor other = uploader.next();
  uploader.plan({});
  EXPECT_TRUE(equals(other, 30));
}

}  // namespace
}  // namespace hedgerow::worker
