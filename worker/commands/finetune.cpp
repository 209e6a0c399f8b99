// hedgerow-worker finetune: one rank of the LoRA stage, under mpirun or alone.
#include "worker/finetune/finetune.hpp"

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "storage/file.hpp"
#include "worker/commands/commands.hpp"

namespace hedgerow::worker {
namespace {

namespace fs = std::filesystem;
using storage::ExitCode;
using storage::RunLayout;

struct Options {
  std::string run, student, resume;
  std::uint64_t token = 0;
  int threads = 0;
};

std::atomic<bool> stop_requested{false};

// SIGUSR1 too: mpirun hands it on to its ranks, whereas it answers SIGTERM by killing them a second
// later.
void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested.store(true); };
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) ::sigaction(number, &action, nullptr);
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
  [[nodiscard]] bool should_stop() const override { return stop_requested.load(); }
  void publish_shard(const storage::FileRecord& /*file*/, int /*shard*/) override {}
  void publish_checkpoint(const storage::FileRecord& file, std::int64_t step) override {
    std::fprintf(
        stderr, "checkpoint of step %lld: %s\n", static_cast<long long>(step), file.name.c_str());
  }

 private:
  std::int64_t shown_ = 0;
};

wire::Task task_of(const Options& options, const RunLayout& layout) {
  wire::Task task;
  task.kind = wire::TaskKind::kFinetune;
  task.fencing_token = options.token;
  for (const char* file : {"hedgerow.json", "feature_maps.safetensors"}) {
    storage::FileRecord record;
    record.name = (fs::path(options.student) / file).string();
    static_cast<void>(layout.resolve(record.name));
    task.inputs.push_back(record);
  }
  if (!options.resume.empty()) {
    task.resume.emplace();
    task.resume->name = options.resume;
  }
  return task;
}

ExitCode run_alone(RunContext& run, const Options& options, Communicator& communicator) {
  StandaloneContext context;
  const auto result = run_finetune(run, context, task_of(options, run.layout()), communicator);
  if (!result.finished) return ExitCode::kInterrupted;
  if (communicator.rank() == 0) {
    for (const auto& file : result.files) {
      const fs::path to = run.layout().resolve(file.name);
      fs::create_directories(to.parent_path());
      storage::publish(attempt_path(run.layout(), options.token, file.name), to);
    }
    std::printf("%s\n", result.result.dump().c_str());
  }
  communicator.barrier();
  return ExitCode::kOk;
}

ExitCode run(const Options& options) {
  catch_stop_signals();
  const auto communicator =
      launched_by_mpi() ? make_mpi_communicator() : make_single_communicator();
  try {
    RunContext run(options.run);
    const int threads = options.threads > 0 ? options.threads : run.recipe().workers.threads;
    if (threads > 0) at::set_num_threads(threads);
    return run_alone(run, options, *communicator);
  } catch (const storage::Error& error) {
    if (communicator->world_size() == 1) throw;
    // MPI_Finalize would wait for the others, who wait for us: leave at once, and mpirun ends them.
    std::fprintf(stderr, "hedgerow-worker: rank %d: %s\n", communicator->rank(), error.what());
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(storage::exit_code(error.kind())));
  }
}

}  // namespace

void register_finetune(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("finetune", "One rank of the LoRA stage; start all of them with mpirun");
  const auto options = std::make_shared<Options>();
  command->add_option("--run", options->run, "Run directory")->required();
  command->add_option("--student", options->student, "Of the run directory: student/tN")
      ->required();
  command->add_option("--token", options->token, "Fencing token: names the attempt and the adapter")
      ->required();
  command->add_option("--resume",
                      options->resume,
                      "Checkpoint, relative to the run directory; of any number of ranks");
  command->add_option(
      "--threads", options->threads, "Of this rank; 0: the recipe's, or as many as cores");
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace hedgerow::worker
