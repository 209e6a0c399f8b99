#include "coordinator/serve/workers_awaited.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "coordinator/wire/coordinator_file.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator {
namespace {

// Hands out frames one by one, and then nothing.
class ScriptedMailbox final : public Mailbox {
 public:
  explicit ScriptedMailbox(std::deque<std::string> frames) : frames_(std::move(frames)) {}
  [[nodiscard]] const std::string& endpoint() const override { return endpoint_; }
  [[nodiscard]] std::optional<Incoming> receive(std::chrono::milliseconds timeout) override {
    if (frames_.empty()) {
      std::this_thread::sleep_for(std::min(timeout, std::chrono::milliseconds(1)));
      return std::nullopt;
    }
    Incoming incoming{"peer", frames_.front()};
    frames_.pop_front();
    return incoming;
  }
  bool send(const std::string& /*peer*/, std::string_view /*frame*/) override {
    ++num_sent_;
    return true;
  }
  [[nodiscard]] int num_sent() const { return num_sent_; }

 private:
  std::string endpoint_ = "tcp://127.0.0.1:40123";
  std::deque<std::string> frames_;
  int num_sent_ = 0;
};

std::string hello_of(const std::string& uuid, const std::string& dtype) {
  wire::Hello hello;
  hello.worker = {uuid, 1};
  hello.auto_dtype = dtype;
  return wire::encode(hello);
}

TEST(WorkersAwaited, TakesEachWorkerOnceAndAnswersNobody) {
  const tests::TemporaryDirectory directory;
  const storage::RunLayout layout(directory.path());
  std::filesystem::create_directories(layout.logs());
  ScriptedMailbox mailbox({hello_of("a", "bf16"),
                           "no frame of ours",
                           wire::encode(wire::Request{{"a", 1}, -1}),
                           hello_of("b", "fp32"),
                           hello_of("a", "bf16")});
  std::string state;
  const std::vector<wire::Hello> workers =
      await_workers({.layout = layout,
                     .mailbox = mailbox,
                     .settle = std::chrono::milliseconds(20),
                     .on_status = [&state](const RunStatus& status) { state = status.state; }});
  ASSERT_EQ(workers.size(), 2U);
  EXPECT_EQ(workers[0].worker.uuid, "a");
  EXPECT_EQ(workers[1].worker.uuid, "b");
  EXPECT_EQ(mailbox.num_sent(), 0);
  EXPECT_EQ(state, "running");
  EXPECT_EQ(find_opening(layout).kind, Opening::Kind::kWelcome) << "workers look there";
  EXPECT_EQ(common_dtype(workers), "fp32") << "one of them multiplies no faster in bf16";
  EXPECT_EQ(common_dtype({workers[0]}), "bf16");
}

TEST(WorkersAwaited, EndsWhenItIsAskedToStop) {
  const tests::TemporaryDirectory directory;
  const storage::RunLayout layout(directory.path());
  std::filesystem::create_directories(layout.logs());
  ScriptedMailbox mailbox({});
  const std::atomic<int> stop{1};
  EXPECT_TRUE(
      await_workers({.layout = layout, .mailbox = mailbox, .stop_requests = &stop}).empty());
}

}  // namespace
}  // namespace hedgerow::coordinator
