#include "coordinator/serve/run_service.hpp"

#include <algorithm>
#include <thread>

#include "coordinator/dispatch/commit.hpp"
#include "coordinator/dispatch/term.hpp"
#include "coordinator/machine/allocation.hpp"
#include "coordinator/machine/gpus.hpp"
#include "coordinator/net/binding.hpp"
#include "coordinator/net/router_socket.hpp"
#include "coordinator/plan/measured_nodes.hpp"
#include "coordinator/plan/plan_geometry.hpp"
#include "coordinator/plan/plan_mesh.hpp"
#include "coordinator/plan/planner.hpp"
#include "coordinator/plan/recorded_plan.hpp"
#include "coordinator/serve/assembler.hpp"
#include "coordinator/serve/coordinator.hpp"
#include "coordinator/serve/history_recorder.hpp"
#include "coordinator/serve/run_inputs.hpp"
#include "coordinator/serve/workers_awaited.hpp"
#include "coordinator/simulate/scheduled_plan.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/status/status_build.hpp"
#include "coordinator/web/access.hpp"
#include "coordinator/web/server.hpp"
#include "storage/base/build_info.hpp"
#include "storage/check.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;
using storage::Error;
using storage::ErrorKind;

constexpr std::uint64_t kRoomBesideAShard = 64ULL << 20;
constexpr int kVerifyThreads = 4;  // one file each: network file systems answer several at once

fs::path find_worker(const RunOptions& options) {
  const fs::path path = options.worker_binary.empty()
                            ? fs::read_symlink("/proc/self/exe").parent_path() / "hedgerow-worker"
                            : options.worker_binary;
  if (!fs::exists(path)) {
    throw Error(ErrorKind::kUsage,
                "the worker program " + path.string() + " does not exist; build or install it");
  }
  return path;
}

// That the local workers compute on.
int local_gpus(const storage::Recipe& recipe) {
  return storage::has_cuda() && recipe.plan.device != "cpu" ? machine::num_visible_gpus() : 0;
}

// What a coordinator is configured from; all of them outlive it.
struct RunParts {
  const RunOptions& options;
  const storage::RunLayout& layout;
  const storage::ReplayResult& replayed;
  const storage::Recipe& recipe;
  const Plan& plan;
  const std::optional<RecordedPlan>& planned;
  int local_workers = 0;
};

DispatcherConfig dispatcher_config(const RunParts& run) {
  const auto& [options, layout, replayed, recipe, plan, planned, local_workers] = run;
  DispatcherConfig config;
  for (int slot = 0; slot < local_workers; ++slot)
    config.own_workers.push_back(local_worker_uuid(slot));
  config.needs_external_workers = local_workers == 0 && options.worker_launcher.empty();
  config.needs = needs_of(plan);
  config.keep = KeepBoundaries::parse(recipe.plan.keep_boundaries);
  config.leases.lease = std::chrono::seconds(recipe.workers.lease_s);
  config.leases.min_progress_timeout = std::chrono::seconds(recipe.workers.hang_timeout_s);
  config.second_worker_timeout = options.second_worker_timeout;
  config.token_floor = token_floor(layout, replayed);
  config.room_for_retry =
      plan.boundary_bytes / static_cast<std::uint64_t>(std::max(1, plan.capture.num_shards())) +
      kRoomBesideAShard;
  config.version = storage::version();
  config.build = options.build;
  if (fs::exists(layout.cluster())) config.planned = plan.workers;
  return config;
}

JobSize size_of(const RunParts& run) {
  const auto& [options, layout, replayed, recipe, plan, planned, local_workers] = run;
  JobSize size{.transfer_steps = recipe.transfer.max_steps,
               .finetune_steps = recipe.finetune.max_steps,
               .work = {},
               .finetune_ranks = recipe.finetune.ranks,
               .plan = planned};
  for (const StageEstimate& estimate : plan.estimates) {
    if (estimate.stage)
      size.work[*estimate.stage] = plan.knows_times() ? estimate.seconds : estimate.flops;
  }
  return size;
}

int threads_per_process(int wanted, int processes) {
  if (wanted > 0) return wanted;
  return std::max(1,
                  static_cast<int>(std::thread::hardware_concurrency()) / std::max(1, processes));
}

bool starts_elsewhere(const storage::FinetuneSection& finetune) {
  return finetune.launch == "elsewhere";
}

// What this machine can spare says nothing of ranks elsewhere.
int threads_per_rank(const storage::FinetuneSection& finetune) {
  return starts_elsewhere(finetune) ? finetune.threads
                                    : threads_per_process(finetune.threads, finetune.ranks);
}

// Throws kUsage without a worker program.
CoordinatorConfig coordinator_config(const RunParts& run) {
  const auto& [options, layout, replayed, recipe, plan, planned, local_workers] = run;
  const std::optional<machine::Allocation> allocation = machine::own_allocation();
  return {.layout = layout,
          .dispatcher = dispatcher_config(run),
          .launcher = {.worker_binary = find_worker(options),
                       .run_directory = layout.root(),
                       .logs = layout.logs(),
                       .local_workers = local_workers,
                       .worker_launcher = options.worker_launcher.empty()
                                              ? fs::path()
                                              : fs::absolute(options.worker_launcher),
                       .num_gpus = local_gpus(recipe),
                       .threads = threads_per_process(recipe.workers.threads, local_workers),
                       .ranks = recipe.finetune.ranks,
                       .threads_per_rank = threads_per_rank(recipe.finetune),
                       .nodes = allocation ? allocation->nodes : 1},
          .retries_with_new_seed = recipe.transfer.retries_with_new_seed,
          .size = size_of(run),
          .stop_requests = options.stop_requests,
          .stops_before_finetune = options.stops_before_finetune,
          .finetune_elsewhere = starts_elsewhere(recipe.finetune)};
}

// Checks a run that is done, just now or already: the results have the sizes, and then the hashes,
// that the journal recorded. What nothing reads any more, hidden states and logits, is left to
// `check`. Throws kCorrupt; false: stopped.
bool verify_results(const storage::RunLayout& layout,
                    const State& state,
                    const RunOptions& options) {
  std::vector<storage::CommittedFile> files;
  for (const auto& [id, task] : state.tasks) {
    if (wire::read_by(id.stage)) continue;  // no result
    for (const storage::FileRecord& file : task.files)
      files.push_back({storage::FileKind::kWhole, file});
  }
  std::vector<std::string> problems;
  for (const storage::CommittedFile& file : files) {
    std::error_code missing;
    const std::uintmax_t size = fs::file_size(layout.resolve(file.record.name), missing);
    if (missing) {
      problems.push_back(file.record.name + " is missing");
    } else if (size != file.record.size) {
      problems.push_back(file.record.name + " has " + std::to_string(size) +
                         " bytes, the journal recorded " + std::to_string(file.record.size));
    }
  }
  if (problems.empty()) {
    const auto go_on = [&options](std::uint64_t, std::uint64_t) {
      return options.stop_requests == nullptr || options.stop_requests->load() == 0;
    };
    const storage::CheckResult result = storage::check_run(layout, files, kVerifyThreads, go_on);
    if (result.stopped) return false;
    for (const storage::Damage& damage : result.damages) problems.push_back(damage.what);
  }
  if (problems.empty()) return true;
  throw Error(ErrorKind::kCorrupt,
              "everything is done, but " + std::to_string(problems.size()) + " of " +
                  std::to_string(files.size()) + " results " +
                  (problems.size() == 1 ? "is" : "are") + " damaged: " + problems.front() +
                  "; 'hedgerow check --repair --run " + layout.root().string() +
                  "' marks what is damaged as lost, and 'hedgerow run' makes it again");
}

void say_takeover(const wire::CoordinatorFile& previous, const RunOptions& options) {
  const std::size_t count = wire::orphans_of(previous).size();
  if (count == 0 || !options.say) return;
  options.say("taking over " + std::to_string(count) + (count == 1 ? " process" : " processes") +
              " of the coordinator that is gone (pid " + std::to_string(previous.process.pid) +
              ")");
}

// Null: it was turned off, or it is there by default only and cannot be had.
std::unique_ptr<WebServer> start_page(const RunOptions& options, const storage::RunLayout& layout) {
  if (options.web == "none") return nullptr;
  const auto start = [&layout](const WebAddress& address, const std::string& secret) {
    return std::make_unique<WebServer>(
        WebConfig{.layout = layout, .host = address.host, .port = address.port, .secret = secret});
  };
  try {
    const std::string secret = web_secret(layout);
    std::unique_ptr<WebServer> page;
    if (options.web.empty()) {
      const std::optional<RunStatus> before = published_status(layout);
      try {
        page = start({.port = before ? port_of_address(before->web) : std::uint16_t{0}}, secret);
      } catch (const Error&) {
        page = start({}, secret);
      }
    } else {
      page = start(parse_web_address(options.web), secret);
    }
    if (options.say)
      options.say("page: " + (options.says_web_secret
                                  ? address_to_open(page->address(), secret)
                                  : page->address() + " ('hedgerow watch --web --run " +
                                        layout.root().string() + "' says its secret)"));
    return page;
  } catch (const Error& error) {
    if (!options.web.empty()) throw;
    if (options.say) options.say(std::string("the run has no page: ") + error.what());
    return nullptr;
  }
}

// What the run is planned for: the machines of its cluster file, the local workers, or nothing that
// is known.
PlanLimits limits_of_run(const RunOptions& options,
                         const storage::RunLayout& layout,
                         int local_workers,
                         const storage::Recipe& recipe) {
  PlanLimits limits = limits_of_this_machine(layout.root());
  if (fs::exists(layout.cluster())) {
    hold_against(load_cluster(layout.cluster()), limits);
  } else if (options.worker_launcher.empty()) {
    limits.workers = workers_of_this_machine(
        local_workers, recipe.plan.device == "cuda" || local_gpus(recipe) > 0);
  }
  return limits;
}

// Decides for the workers that came what the recipe left open.
void decide_for(storage::Recipe& recipe,
                const std::vector<wire::Hello>& workers,
                const storage::ModelConfig& model,
                const PlanTokens& tokens,
                PlanLimits& limits) {
  limits.workers = workers_of(workers);
  if (recipe.plan.compute_dtype == "auto") recipe.plan.compute_dtype = common_dtype(workers);
  choose(recipe, model, tokens, limits, scheduling({model, tokens, limits}));
}

// run(), once no other process was seen at work on it. `has_begun`: its coordinator is at work.
RunOutcome coordinate(const RunOptions& options,
                      const storage::RunLayout& layout,
                      const std::optional<wire::CoordinatorFile>& previous,
                      RunObserver& observer,
                      bool& has_begun) {
  storage::ReplayResult replayed = replay_if_any(layout);
  FoldedRun folded = fold(replayed);
  storage::Recipe recipe = recipe_of_run(layout, folded.state);
  if (phase_of(folded.state) == RunPhase::kDone) {  // whatever became of its model since
    const bool finished = verify_results(layout, folded.state, options);
    // A coordinator that was killed at its very end has not recorded it.
    const std::string problem =
        HistoryRecorder(layout, folded.term).catch_up(folded.state, storage::wall_seconds());
    if (!problem.empty()) observer.on_log("the run's history is not recorded: " + problem);
    RunOutcome done{finished ? storage::ExitCode::kOk : storage::ExitCode::kInterrupted,
                    "everything is done already",
                    read_status(layout)};
    observer.on_status(done.status);
    return done;
  }
  // Not there yet if the command that changed the recipe died behind its record.
  put_back_recipe(layout, folded.state);
  std::optional<wire::CoordinatorKeys> keys = wire::read_coordinator_keys(layout);
  require_keys_for(recipe.workers.bind, keys.has_value(), layout);
  const storage::ModelDirectory model = storage::ModelDirectory::open(recipe.model.path);
  const int local_workers = options.local_workers.value_or(recipe.workers.local);
  PlanTokens tokens = read_plan_tokens(layout, recipe, model.config().vocab_size);
  PlanLimits limits = limits_of_run(options, layout, local_workers, recipe);
  std::unique_ptr<RouterSocket> socket;
  const auto listen = [&] {
    socket = std::make_unique<RouterSocket>(
        RouterOptions{.bind = recipe.workers.bind,
                      .advertise = recipe.workers.advertise,
                      .port = recipe.workers.port,
                      .preferred_port = previous ? wire::port_of(previous->endpoint) : 0,
                      .keys = std::move(keys)});
  };
  if (folded.state.geometry) {
    limits.shards_per_capture = folded.state.geometry->shards_per_capture;
  } else if (recipe.plan.is_open() && local_workers == 0 && options.worker_launcher.empty()) {
    storage::os_disk().make_directories(layout.resolve(layout.logs().filename().string()));
    listen();
    const std::vector<wire::Hello> workers = await_workers(
        {.layout = layout,
         .mailbox = *socket,
         .public_key = socket->public_key(),
         .stop_requests = options.stop_requests,
         .on_status = [&observer](const RunStatus& status) { observer.on_status(status); }});
    if (workers.empty())
      return {storage::ExitCode::kInterrupted, "stopped before a worker came", read_status(layout)};
    decide_for(recipe, workers, model.config(), tokens, limits);
    storage::write_atomically(layout.recipe(), recipe.to_run_toml());
  }
  Plan plan = make_plan(recipe, model.config(), tokens, limits);
  schedule_stages(plan, recipe, {model.config(), tokens, limits});
  const Geometry geometry = geometry_of(plan, recipe);
  const RunInputs inputs = inputs_of(layout, model);
  if (!folded.state.geometry) {
    require_fits(plan);
    write_plan(layout, recorded(plan));
  } else {
    check_same_inputs(folded.state.inputs, inputs, layout, model.path());
    check_same_shape(*folded.state.geometry, geometry);
  }
  // What was planned at the run's beginning, whatever this term would plan.
  std::string damaged_plan;
  const std::optional<RecordedPlan> planned = read_plan(layout, damaged_plan);
  if (!damaged_plan.empty()) add_warning(folded.warnings, damaged_plan);
  if (previous) say_takeover(*previous, options);
  const std::unique_ptr<WebServer> page = start_page(options, layout);
  storage::os_disk().make_directories(layout.resolve(layout.logs().filename().string()));
  CoordinatorConfig config =
      coordinator_config({options, layout, replayed, recipe, plan, planned, local_workers});
  if (plan.finetunes) {
    config.launcher.mesh_of_ranks = [recipe, shape = model.config(), tokens, limits](int ranks) {
      return mesh_of_ranks(recipe, shape, tokens, limits, ranks);
    };
  }
  if (page) config.web = page->address();
  config.dispatcher.log = [&observer](const std::string& line) { observer.on_log(line); };
  const SteadyClock clock;
  Term term = open_term(layout, replayed, std::move(folded), clock);
  release(std::move(replayed));
  if (!socket) listen();
  AllowedKeysReloader allowed_keys_reloader(layout, *socket, options.reload_requests);
  const AssemblyInput assembly{recipe, model.config(), model.path().string(), model.fingerprint()};
  const Environment environment{
      .mailbox = *socket,
      .clock = clock,
      .assemble =
          [&](const State& state, std::uint64_t token) {
            return assemble_student(layout, state, assembly, token);
          },
      .public_key = socket->public_key(),
      .allowed_keys_news = [&] { return allowed_keys_reloader.look(clock.now()); }};
  Coordinator coordinator(std::move(config), environment, std::move(term), previous, &observer);
  begin_term(coordinator.dispatcher(),
             geometry,
             inputs,
             options.build,
             coordinator.dispatcher().state().build,
             storage::read_text(layout.recipe()));
  has_begun = true;
  RunOutcome outcome = coordinator.run();
  const State& state = coordinator.dispatcher().state();
  // What was committed long ago may be damaged since.
  if (phase_of(state) == RunPhase::kDone && !verify_results(layout, state, options))
    outcome.exit_code = storage::ExitCode::kInterrupted;
  return outcome;
}

}  // namespace

RunOutcome run(const RunOptions& options, RunObserver& observer) {
  const storage::RunLayout layout(fs::absolute(options.run_directory));
  const Leftovers found = refuse_if_held(layout, {options.say}, options.leftovers);
  bool has_begun = false;
  try {
    return coordinate(options, layout, found.coordinator, observer, has_begun);
  } catch (const storage::Overtaken& error) {
    // A coordinator that loses at the start is refused like one that comes later.
    throw Error(has_begun ? error.kind() : ErrorKind::kUsage,
                name_winner(layout, error, found, {options.say}));
  }
}

}  // namespace hedgerow::coordinator
