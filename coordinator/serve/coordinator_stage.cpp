// The finetune stage whose ranks somebody else starts (finetune.launch = "elsewhere"): the
// coordinator hands out its fencing token to whoever asks for it through the run directory
// (wire/stage_start.hpp), and knows that it has ended by its lease, having no process to look at.
#include <utility>

#include "coordinator/serve/coordinator.hpp"
#include "coordinator/wire/stage_start.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

constexpr std::chrono::milliseconds kLookForRanksEvery{500};

}  // namespace

bool Coordinator::stage_starts_elsewhere() const { return config_.finetune_elsewhere; }

// A stage that an earlier coordinator began goes on, and so does its lease.
void Coordinator::adopt_stage_elsewhere() {
  if (!stage_starts_elsewhere() || mpi_.running()) return;
  for (const auto& [token, id] : dispatcher_.state().grants) {
    if (id.stage == Stage::kFinetune) token_elsewhere_ = token;
  }
  // Answered, but not withdrawn: the same launch must not be given a second token.
  const auto start = wire::read_stage_start(config_.layout);
  if (start && start->fencing_token == token_elsewhere_)
    wire::withdraw_stage_request(config_.layout, start->launch);
}

// False: nobody has asked yet, or whoever did has not been seen to live.
bool Coordinator::start_stage_elsewhere(const std::string& student) {
  if (clock_.now() < next_look_for_ranks_) return false;
  next_look_for_ranks_ = clock_.now() + kLookForRanksEvery;
  const auto request = wire::read_stage_request(config_.layout);
  const auto before = std::exchange(last_stage_request_, request);
  if (!request || !before || request->launch != before->launch || request->beat <= before->beat) {
    if (!std::exchange(waits_for_ranks_, true)) publish(true);  // somebody has to act upon it
    return false;
  }
  const std::uint64_t token =
      dispatcher_.grant_unpulled(TaskId::finetune(), kMpiHolder, kMpiStartTerm);
  send_all();  // the grant is on disk before anybody is told of it
  wire::write_stage_start(config_.layout,
                          {.launch = request->launch,
                           .fencing_token = token,
                           .student = student,
                           .endpoint = environment_.mailbox.endpoint(),
                           .threads = config_.launcher.threads_per_rank});
  // Last: whoever asked still asks if this coordinator dies before it has answered.
  wire::withdraw_stage_request(config_.layout, request->launch);
  dispatcher_.log("ranks that others start",
                  "the finetune stage goes to " + std::to_string(request->ranks) + " ranks from " +
                      request->host);
  token_elsewhere_ = token;
  waits_for_ranks_ = false;
  dirty_ = true;
  return true;
}

// Whether such a stage is what the mode is about.
bool Coordinator::tend_stage_elsewhere() {
  if (!token_elsewhere_) return false;
  // Nobody here can see how its launch ends, so its own word counts.
  if (dispatcher_.gave_back(*token_elsewhere_))
    dispatcher_.fail_token(
        *token_elsewhere_, storage::ErrorKind::kFenced, "given back by its ranks");
  if (dispatcher_.state().holder(*token_elsewhere_) != nullptr) return true;
  wire::withdraw_stage_start(config_.layout);
  token_elsewhere_.reset();
  dirty_ = changed_ = true;
  mode_ = Mode::kServing;
  if (!stopping_) dispatcher_.resume_granting();
  return true;
}

// What people have to do; empty if nothing.
std::string Coordinator::stage_wants() const {
  if (!waits_for_ranks_ || mode_ != Mode::kDraining) return "";
  return "waits for its ranks: 'mpirun -n " + std::to_string(config_.launcher.ranks) +
         " hedgerow-worker finetune --run " + config_.layout.root().string() +
         "', or the MPIJob that does it";
}

}  // namespace hedgerow::coordinator
