#include "worker/client/stage_request.hpp"

#include <thread>

#include "coordinator/wire/coordinator_file.hpp"
#include "storage/base/error.hpp"
#include "storage/base/random.hpp"

namespace hedgerow::worker {
namespace {

std::string drawn_name() {
  constexpr std::size_t kRandomBytes = 8;
  return wire::this_host() + "-" + storage::random_hex(kRandomBytes);
}

// Taken back however the waiting ends.
class Question {
 public:
  Question(const storage::RunLayout& layout, int ranks)
      : layout_(layout),
        request_{.launch = drawn_name(), .host = wire::this_host(), .ranks = ranks} {}
  ~Question() { wire::withdraw_stage_request(layout_, request_.launch); }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;
  [[nodiscard]] const std::string& name() const { return request_.launch; }
  void repeat() {
    ++request_.heartbeat_count;
    wire::write_stage_request(layout_, request_);
  }

 private:
  const storage::RunLayout& layout_;
  wire::StageRequest request_;
};

}  // namespace

std::optional<wire::StageStart> ask_for_stage(const storage::RunLayout& layout,
                                              int ranks,
                                              const std::atomic<bool>& stop,
                                              const StageTimeout& timeout) {
  Question question(layout, ranks);
  const auto deadline = std::chrono::steady_clock::now() + timeout.limit;
  while (!stop.load()) {
    const auto start = wire::read_stage_start(layout);
    if (start && start->launch == question.name()) return start;
    if (std::chrono::steady_clock::now() >= deadline) {
      throw storage::Error(
          storage::ErrorKind::kUnavailable,
          "run " + layout.root().string() + ": no coordinator gave the finetune stage to these " +
              std::to_string(ranks) + " ranks within " +
              std::to_string(timeout.limit / std::chrono::seconds(1)) +
              " s; start them when 'hedgerow status' says that it waits for them (the recipe "
              "needs finetune.launch = \"elsewhere\"), or wait longer with --wait");
    }
    question.repeat();
    std::this_thread::sleep_for(timeout.look_every);
  }
  return std::nullopt;
}

}  // namespace hedgerow::worker
