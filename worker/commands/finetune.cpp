// hedgerow-worker finetune: one rank of the LoRA stage, under mpirun or alone.
#include "worker/finetune/finetune.hpp"

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "storage/base/error.hpp"
#include "storage/faults/fault_point.hpp"
#include "storage/files/file.hpp"
#include "worker/client/stage_request.hpp"
#include "worker/commands/commands.hpp"
#include "worker/commands/progress_lines.hpp"
#include "worker/serve.hpp"
#include "worker/task/failure.hpp"
#include "worker/task/memory_peak.hpp"

namespace hedgerow::worker {
namespace {

namespace fs = std::filesystem;
using storage::ExitCode;
using storage::RunLayout;

// Less than the other ranks wait for rank 0 (kLoadDeadline).
constexpr int kLongestWait = 1500;

struct FinetuneArguments {
  std::string run, student, endpoint, resume, mesh;
  std::uint64_t token = 0;
  int threads = 0;
  int wait_s = 600;
};

// Ends this rank without MPI_Finalize.
[[noreturn]] void leave(ExitCode code) {
  std::fflush(nullptr);
  std::_Exit(static_cast<int>(code));
}

// Without a coordinator: progress goes to stderr, a checkpoint stays where it was written.
class StandaloneContext final : public TaskContext {
 public:
  void report(const wire::Progress& progress) override {
    if (progress.phase != "training" || progress.step == shown_) return;
    shown_ = progress.step;
    std::fprintf(stderr,
                 "step %lld/%lld  loss %.4f  %.1f s\n",
                 static_cast<long long>(progress.step),
                 static_cast<long long>(progress.num_steps),
                 progress.loss,
                 progress.seconds);
  }
  [[nodiscard]] bool should_stop() const override { return stop_signal().load(); }
  void publish_shard(const storage::FileRecord& /*file*/, int /*shard*/) override {}
  void publish_checkpoint(const storage::FileRecord& file, std::int64_t step) override {
    std::fprintf(
        stderr, "checkpoint of step %lld: %s\n", static_cast<long long>(step), file.name.c_str());
  }

 private:
  std::int64_t shown_ = 0;
};

wire::Task task_of(const FinetuneArguments& options, const RunLayout& layout) {
  wire::Task task;
  task.kind = wire::TaskKind::kFinetune;
  task.fencing_token = options.token;
  for (const char* file : {"hedgerow.json", "feature_maps.safetensors"}) {
    storage::FileRecord record;
    record.name = (fs::path(options.student) / file).string();
    static_cast<void>(layout.resolve(record.name));
    task.inputs.push_back(record);
  }
  for (const std::string& name : layout.existing_logits()) task.inputs.push_back({name, 0, {}});
  if (!options.resume.empty()) {
    task.resume.emplace();
    task.resume->name = options.resume;
  }
  return task;
}

// As told, else the recipe's, else with the fewest stages that can be.
storage::Mesh mesh_of(const FinetuneArguments& options,
                      const RunContext& run,
                      const Communicator& communicator) {
  const storage::FinetuneSection& finetune = run.recipe().finetune;
  const std::string& text = options.mesh.empty() ? finetune.mesh : options.mesh;
  if (text == "auto") {
    return storage::shortest_mesh(communicator.world_size(),
                                  finetune.sequences_per_step / finetune.sequences_per_micro_batch);
  }
  if (const auto mesh = storage::parse_mesh(text)) return *mesh;
  throw storage::Error(storage::ErrorKind::kUsage,
                       "--mesh " + text + R"(: expected "auto", or pipelines x stages, as "2x4")");
}

ExitCode run_alone(RunContext& run, const FinetuneArguments& options, Communicator& communicator) {
  StandaloneContext context;
  const MemoryPeakMeter memory(run.device());
  const storage::Mesh mesh = mesh_of(options, run, communicator);
  auto result = run_finetune(run, context, task_of(options, run.layout()), mesh, communicator);
  if (!result.finished) return ExitCode::kInterrupted;
  if (communicator.rank() == 0) {
    result.result["peak_memory"] = memory.peak();
    for (const auto& file : result.files) {
      const fs::path to = run.layout().resolve(file.name);
      fs::create_directories(to.parent_path());
      storage::publish(attempt_path(run.layout(), options.token, file.name), to);
    }
    print_line(result.result);
  }
  communicator.barrier();
  return ExitCode::kOk;
}

// Rank 0's text on every rank.
std::string shared(std::string text, Communicator& communicator) {
  const DeadlineScope timeout(communicator);  // rank 0 may have waited for a coordinator
  std::uint64_t size = text.size();
  communicator.broadcast(std::as_writable_bytes(std::span(&size, 1)), 0);
  text.resize(size);
  communicator.broadcast(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

// The ranks leave together. Rank 0 may still wait for a coordinator to take its files; without one
// it gives up, and with one its lease ends if it is lost, so this cannot last.
void settle(Communicator& communicator) {
  const DeadlineScope timeout(communicator);
  communicator.barrier();
}

// Rank 0 joins the coordinator as a worker that already holds the task; the others follow it.
ExitCode run_joined(RunContext& run, const FinetuneArguments& options, Communicator& communicator) {
  const storage::Mesh mesh = mesh_of(options, run, communicator);
  if (communicator.rank() != 0) {
    const std::string text = shared({}, communicator);
    if (text.empty()) return ExitCode::kInterrupted;
    StandaloneContext unused;
    const auto task = nlohmann::json::parse(text).get<wire::Task>();
    const TaskResult result = run_finetune(run, unused, task, mesh, communicator);
    if (result.step_abandoned) leave(ExitCode::kInterrupted);
    settle(communicator);
    return result.finished ? ExitCode::kOk : ExitCode::kInterrupted;
  }
  std::optional<CoordinatorClient> client(
      std::in_place,
      ClientOptions{.layout = run.layout(),
                    .endpoint = options.endpoint,
                    .hello = make_hello("mpi", options.token, run.device()),
                    .orphan_timeout = std::chrono::seconds(run.recipe().workers.orphan_timeout_s),
                    .holds = options.token,
                    .stop_signal = &stop_signal()});
  const auto task = client->join();
  shared(task ? nlohmann::json(*task).dump() : std::string(), communicator);
  if (!task) return ExitCode::kInterrupted;
  bool abandoned = false;
  const TaskEnd end = execute(*client, run.device(), *task, [&](TaskContext& context) {
    try {
      TaskResult result = run_finetune(run, context, *task, mesh, communicator);
      abandoned = result.step_abandoned;
      return result;
    } catch (const storage::Error& error) {
      std::fprintf(stderr, "hedgerow-worker: rank 0: %s\n", error.what());
      throw;
    }
  });
  // MPI_Finalize would wait for the others, who wait for us: leave at once, and mpirun ends them.
  if (end == TaskEnd::kFailed && communicator.world_size() > 1) leave(ExitCode::kFailed);
  if (abandoned) {
    client.reset();  // says goodbye
    leave(ExitCode::kInterrupted);
  }
  if (end != TaskEnd::kFailed) settle(communicator);
  return end == TaskEnd::kDone     ? ExitCode::kOk
         : end == TaskEnd::kFailed ? ExitCode::kFailed
                                   : ExitCode::kInterrupted;
}

// Ranks that no coordinator started have no token yet: rank 0 asks for it, and all hear the answer.
// False: told to stop meanwhile.
bool complete(FinetuneArguments& options, Communicator& communicator) {
  if (options.token != 0) return true;
  std::string text;
  if (communicator.rank() == 0) {
    const auto start = ask_for_stage(RunLayout(options.run),
                                     communicator.world_size(),
                                     stop_signal(),
                                     {.limit = std::chrono::seconds(options.wait_s)});
    if (start) {
      text = nlohmann::json{{"token", start->fencing_token},
                            {"student", start->student},
                            {"endpoint", start->endpoint},
                            {"mesh", start->mesh},
                            {"threads", start->threads}}
                 .dump();
    }
  }
  text = shared(std::move(text), communicator);
  if (text.empty()) return false;
  const auto answer = nlohmann::json::parse(text);
  options.token = answer["token"];
  options.student = answer["student"];
  options.endpoint = answer["endpoint"];
  if (options.mesh.empty()) options.mesh = answer["mesh"];
  if (options.threads == 0) options.threads = answer["threads"];
  return true;
}

ExitCode finetune_command(FinetuneArguments options) {
  static_cast<void>(stop_signal());  // before MPI starts its own threads
  storage::fault_point("worker.started");
  const auto communicator =
      launched_by_mpi() ? make_mpi_communicator() : make_single_communicator();
  try {
    if (!complete(options, *communicator)) return ExitCode::kInterrupted;
    RunContext run(options.run);
    const int threads = options.threads > 0 ? options.threads : run.recipe().finetune.threads;
    if (threads > 0) at::set_num_threads(threads);
    return options.endpoint.empty() ? run_alone(run, options, *communicator)
                                    : run_joined(run, options, *communicator);
  } catch (...) {
    if (communicator->world_size() == 1) throw;
    wire::Task task;
    task.kind = wire::TaskKind::kFinetune;
    const Failure failure = current_failure(work_of(task));
    const bool resumes = failure.kind == storage::ErrorKind::kUnavailable;
    std::fprintf(stderr,
                 "hedgerow-worker: rank %d: %s%s\n",
                 communicator->rank(),
                 failure.message.c_str(),
                 resumes ? "; the stage resumes from its last checkpoint" : "");
    leave(storage::exit_code(failure.kind));
  }
}

}  // namespace

void register_finetune(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("finetune", "One rank of the LoRA stage; start all of them with mpirun");
  const auto options = std::make_shared<FinetuneArguments>();
  command->add_option("--run", options->run, "Run directory")->required();
  auto* student =
      command->add_option("--student", options->student, "Of the run directory: student/tN");
  auto* token = command->add_option(
      "--token",
      options->token,
      "Fencing token: names the attempt and the adapter; none: rank 0 asks the run's coordinator");
  token->check(CLI::PositiveNumber)->needs(student);
  student->needs(token);
  command
      ->add_option("--wait", options->wait_s, "Seconds that it waits for the coordinator's answer")
      ->check(CLI::Range(1, kLongestWait))
      ->excludes(token);
  command->add_option(
      "--connect", options->endpoint, "The coordinator, as tcp://HOST:PORT; none: run without one");
  command->add_option("--resume",
                      options->resume,
                      "Without a coordinator: checkpoint to go on from, relative to the run "
                      "directory; of any number of ranks");
  command->add_option("--mesh",
                      options->mesh,
                      "Of the ranks: pipelines x stages of each, as 2x4; none: the recipe's");
  command->add_option(
      "--threads", options->threads, "Of this rank; 0: the recipe's, or as many as cores");
  command->callback(
      [options, &action] { action = [options] { return finetune_command(*options); }; });
}

}  // namespace hedgerow::worker
