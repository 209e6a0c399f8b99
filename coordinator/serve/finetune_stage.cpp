#include "coordinator/serve/finetune_stage.hpp"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "coordinator/wire/stage_start.hpp"
#include "storage/base/error.hpp"
#include "storage/faults/fault_point.hpp"

namespace hedgerow::coordinator {
namespace {

// From the loss of the lease, or a done task, to the end of mpirun by force.
constexpr std::chrono::seconds kKillAfter{30};
constexpr std::chrono::milliseconds kLookForRanksEvery{500};

// What the first rank that failed wrote behind `begin`: "rank 1: ..."; empty: none wrote anything.
std::string first_error_in(const std::filesystem::path& log, std::uint64_t begin) {
  constexpr std::string_view kProgram = "hedgerow-worker: ";
  std::ifstream file(log);
  file.seekg(static_cast<std::streamoff>(begin));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kProgram)) return line.substr(kProgram.size());
  }
  return "";
}

// A shell keeps the variables of a job that has ended, and mpirun believes them.
std::string job_in_environment() {
  for (const char* name : {"SLURM_JOB_ID", "PBS_JOBID"}) {
    if (const char* value = std::getenv(name); value != nullptr) {
      return std::string(" (") + name + " = " + value +
             " is set here: unless this shell is in that job, unset its variables)";
    }
  }
  return "";
}

std::string mesh_of(const LauncherConfig& config, int ranks) {
  return config.mesh_of_ranks ? config.mesh_of_ranks(ranks) : "auto";
}

class MpirunStage final : public FinetuneStage {
 public:
  explicit MpirunStage(LauncherConfig config) : config_(std::move(config)) {}

  void adopt(const wire::ChildRecord& child) {
    process_ = ChildProcess::adopt(child.process, *config_.processes);
    token_ = child.fencing_token;
  }

  bool is_ready(TimePoint /*now*/) override { return true; }
  std::string wants() const override { return ""; }

  std::string start(std::uint64_t token,
                    const std::string& student,
                    const std::string& endpoint) override {
    std::vector<std::string> argv = mpirun_words(!config_.worker_launcher.empty());
    // Time between the warning and the kill where a node's daemon goes down with its node: rank 0
    // is elsewhere and writes the checkpoint. A second on one host, where all ranks hear of it
    // themselves.
    if (config_.nodes > 1) argv.insert(argv.end(), {"--mca", "odls_base_sigkill_timeout", "3"});
    argv.insert(argv.end(), {"-n", std::to_string(config_.ranks), config_.worker_binary.string()});
    for (const char* word : {"finetune", "--run"}) argv.emplace_back(word);
    argv.push_back(config_.run_directory.string());
    argv.insert(argv.end(),
                {"--student", student, "--token", std::to_string(token), "--connect", endpoint});
    argv.insert(argv.end(), {"--threads", std::to_string(config_.threads_per_rank)});
    argv.insert(argv.end(), {"--mesh", mesh_of(config_, config_.ranks)});
    // A batch system that takes the machine back sends SIGTERM to every process of the job. The
    // ranks take it as a request; mpirun would kill them two seconds later.
    std::error_code is_absent;
    const std::uintmax_t before = std::filesystem::file_size(log(), is_absent);
    log_begins_at_ = is_absent ? 0 : before;
    process_ = ChildProcess::start(argv, log(), *config_.processes, SIGTERM);
    token_ = token;
    return "";
  }

  std::optional<std::uint64_t> token() const override { return token_; }

  std::optional<StageEnd> poll(TimePoint now, const StageLease& lease) override {
    if (!process_) return std::nullopt;
    // Done, or its lease is lost; either way its ranks have nothing more to do here.
    if (!lease.is_held && !kill_at_) kill_at_ = now + kKillAfter;
    if (kill_at_ && now >= *kill_at_) signal(SIGKILL);
    const std::optional<ProcessExit> exit = process_->poll();
    if (!exit) return std::nullopt;
    process_.reset();
    const auto has_code = [&exit](storage::ExitCode code) {
      return exit->signal == 0 && exit->code == static_cast<int>(code);
    };
    // What a rank says itself is the cause; mpirun's lines behind it say that a rank ended.
    const std::string said = first_error_in(log(), log_begins_at_);
    return StageEnd{.is_interrupted = exit->known ? has_code(storage::ExitCode::kInterrupted)
                                                  : lease.was_given_back,
                    .how = said.empty()
                               ? "the finetune stage " + exit->text() + job_in_environment() +
                                     "; its log ends:" + tail_of(log())
                               : "the finetune stage: " + said,
                    .kind = exit->known && !said.empty() && has_code(storage::ExitCode::kUsage)
                                ? storage::ErrorKind::kUsage
                                : storage::ErrorKind::kUnavailable};
  }

  // mpirun answers SIGTERM by killing its ranks a second later, too early for a checkpoint; SIGUSR1
  // it hands on to them, and they take it for the same request.
  void signal(int number) override {
    if (process_) process_->signal(number == SIGTERM ? SIGUSR1 : number);
  }

  std::optional<wire::ChildRecord> child() const override {
    if (!process_) return std::nullopt;
    return wire::ChildRecord{kMpiHolder, 0, *token_, process_->id()};
  }

 private:
  [[nodiscard]] std::filesystem::path log() const { return config_.logs / "finetune.log"; }

  LauncherConfig config_;
  std::optional<ChildProcess> process_;
  std::optional<std::uint64_t> token_;
  std::uint64_t log_begins_at_ = 0;  // of this launch; adopted: at worst an earlier one's too
  std::optional<TimePoint> kill_at_;
};

class ExternalStage final : public FinetuneStage {
 public:
  ExternalStage(const LauncherConfig& config, const storage::RunLayout& layout)
      : layout_(layout), config_(config) {}

  void adopt(std::uint64_t token) {
    token_ = token;
    // Answered, but not withdrawn: the same launch must not be given a second token.
    const auto start = wire::read_stage_start(layout_);
    if (start && start->fencing_token == token)
      wire::withdraw_stage_request(layout_, start->launch);
  }

  // The launch that asked must be seen to live: the heartbeat count of its request grows.
  bool is_ready(TimePoint now) override {
    if (now < next_look_) return false;
    next_look_ = now + kLookForRanksEvery;
    const auto before = std::exchange(request_, wire::read_stage_request(layout_));
    const bool lives = request_ && before && request_->launch == before->launch &&
                       request_->heartbeat_count > before->heartbeat_count;
    is_waiting_ = !lives;
    refusal_.clear();
    if (!lives) return false;
    try {
      mesh_ = mesh_of(config_, request_->ranks);
    } catch (const storage::Error& error) {
      refusal_ = error.what();
    }
    return refusal_.empty();
  }

  std::string wants() const override {
    if (!refusal_.empty())
      return "waits for other ranks than those from " + request_->host + ": " + refusal_;
    if (!is_waiting_) return "";
    return "waits for its ranks: 'mpirun -n " + std::to_string(config_.ranks) +
           " hedgerow-worker finetune --run " + layout_.root().string() +
           "', or the MPIJob that does it";
  }

  std::string start(std::uint64_t token,
                    const std::string& student,
                    const std::string& endpoint) override {
    wire::write_stage_start(layout_,
                            {.launch = request_->launch,
                             .fencing_token = token,
                             .student = student,
                             .endpoint = endpoint,
                             .threads = config_.threads_per_rank,
                             .mesh = mesh_});
    // Last: if this coordinator dies before it has answered, the request is still there.
    wire::withdraw_stage_request(layout_, request_->launch);
    token_ = token;
    return "the finetune stage goes to " + std::to_string(request_->ranks) + " ranks (mesh " +
           mesh_ + ") from " + request_->host;
  }

  std::optional<std::uint64_t> token() const override { return token_; }

  // No process here can see how its launch ends, so its own word and its lease count.
  std::optional<StageEnd> poll(TimePoint /*now*/, const StageLease& lease) override {
    if (!token_ || (lease.is_held && !lease.was_given_back)) return std::nullopt;
    wire::withdraw_stage_start(layout_);
    return StageEnd{.is_interrupted = true, .how = "given back by its ranks"};
  }

  void signal(int /*number*/) override {}
  std::optional<wire::ChildRecord> child() const override { return std::nullopt; }

 private:
  const storage::RunLayout& layout_;
  LauncherConfig config_;
  std::optional<std::uint64_t> token_;
  std::optional<wire::StageRequest> request_;  // at the last look
  bool is_waiting_ = false;
  std::string mesh_ = "auto", refusal_;  // of those that ask; why they do not get the stage
  TimePoint next_look_;
};

}  // namespace

std::unique_ptr<FinetuneStage> make_mpirun_stage(const LauncherConfig& config) {
  return std::make_unique<MpirunStage>(config);
}

std::unique_ptr<FinetuneStage> make_external_stage(const LauncherConfig& config,
                                                   const storage::RunLayout& layout) {
  return std::make_unique<ExternalStage>(config, layout);
}

std::unique_ptr<FinetuneStage> adopt_stage(const LauncherConfig& config,
                                           const storage::RunLayout& layout,
                                           const State& state,
                                           const std::vector<wire::ChildRecord>& children,
                                           bool is_external) {
  for (const wire::ChildRecord& child : children) {
    if (child.uuid != kMpiHolder || !config.processes->is_alive(child.process)) continue;
    auto stage = std::make_unique<MpirunStage>(config);
    stage->adopt(child);
    return stage;
  }
  if (!is_external) return nullptr;
  for (const auto& [token, id] : state.grants) {
    if (id.stage != Stage::kFinetune) continue;
    auto stage = std::make_unique<ExternalStage>(config, layout);
    stage->adopt(token);
    return stage;
  }
  return nullptr;
}

}  // namespace hedgerow::coordinator
