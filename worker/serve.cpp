#include "worker/serve.hpp"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "coordinator/wire/coordinator_file.hpp"
#include "storage/base/build_info.hpp"
#include "storage/base/random.hpp"
#include "storage/base/utc.hpp"
#include "storage/faults/fault_point.hpp"
#include "worker/client/task_inputs.hpp"
#include "worker/device/cuda_device.hpp"
#include "worker/device/large_blocks.hpp"
#include "worker/evaluate/evaluate_task.hpp"
#include "worker/logits/logits.hpp"
#include "worker/model/decoder.hpp"
#include "worker/task/failure.hpp"
#include "worker/transfer/capture.hpp"
#include "worker/transfer/transfer.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

std::atomic<bool> stop_requested{false};

void request_stop(int /*signal*/) { stop_requested.store(true); }

std::string drawn_uuid() {
  constexpr std::size_t kRandomBytes = 4;
  return wire::this_host() + "-" + storage::random_hex(kRandomBytes);
}

// One line of this worker's log.
void log_line(const std::string& text) {
  std::fprintf(stderr, "%s %s\n", storage::utc_now().c_str(), text.c_str());
}

// `hedgerow logs --block N` finds it by "token N:".
void log_line(const wire::Task& task, const std::string& text) {
  const std::string subject = task.block >= 0        ? " block " + std::to_string(task.block)
                              : task.subject.empty() ? ""
                                                     : " " + task.subject;
  log_line(std::string(wire::to_string(task.kind)) + subject + ", token " +
           std::to_string(task.fencing_token) + ": " + text);
}

TaskResult run_task(RunContext& run, TaskContext& context, const wire::Task& task) {
  switch (task.kind) {
    case wire::TaskKind::kCapture:
      return run_capture(run, context, task);
    case wire::TaskKind::kTransfer:
      return run_transfer(run, context, task);
    case wire::TaskKind::kLogits:
      return run_logits(run, context, task);
    case wire::TaskKind::kEvaluate:
      return run_evaluate(run, context, task);
    case wire::TaskKind::kAssemble:
    case wire::TaskKind::kFinetune:
      break;
  }
  throw Error(ErrorKind::kInternal,
              "a worker pulls no " + std::string(wire::to_string(task.kind)) + " task");
}

// Says how a task failed; an error of the saying itself means that the coordinator is out of reach.
void tell_failure(CoordinatorClient& client,
                  const wire::Task& task,
                  ErrorKind kind,
                  const std::string& message) {
  log_line(task, "failed: " + message);
  try {
    client.failed(kind, message, damaged_files(client.layout(), task, kind, message));
  } catch (const Error&) {
    return;  // fenced or orphaned: the coordinator knows, or is gone
  }
}

// Without a coordinator the lease runs out by itself, and the checkpoint is found on disk.
TaskEnd give_back(CoordinatorClient& client, const std::string& reason) {
  try {
    client.released(reason);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kFenced) return TaskEnd::kFenced;
  }
  return TaskEnd::kReleased;
}

}  // namespace

TaskEnd execute(CoordinatorClient& client,
                const at::Device& device,
                const wire::Task& task,
                const std::function<TaskResult(TaskContext&)>& body) {
  const storage::FaultScope scope("worker.task");
  storage::fault_step(-1);
  log_line(task, "begins");
  try {
    const MemoryPeakMeter memory(device);
    RemoteContext context(client, memory);
    TaskResult result = body(context);
    if (client.lease_lost()) {
      log_line(task, "its lease is lost; the work is dropped");
      return TaskEnd::kFenced;
    }
    log_line(task, result.finished ? "done" : "given back: " + client.stop_reason());
    if (!result.finished) return give_back(client, client.stop_reason());
    result.result["peak_memory"] = memory.peak();
    client.done(std::move(result.files), std::move(result.result));
    return TaskEnd::kDone;
  } catch (const std::exception&) {
    const Failure failure = current_failure(work_of(task));
    if (failure.kind == ErrorKind::kFenced || client.lease_lost()) return TaskEnd::kFenced;
    // One bad card would else spend a failure of every block, in milliseconds each.
    if (device.is_cuda() && !cuda::why_unusable(device).empty()) {
      log_line(task, "given back: " + failure.message);
      return give_back(client, "the device fails: " + failure.message) == TaskEnd::kFenced
                 ? TaskEnd::kFenced
                 : TaskEnd::kDeviceLost;
    }
    tell_failure(client, task, failure.kind, failure.message);
  }
  return TaskEnd::kFailed;
}

TaskEnd execute(RunContext& run, CoordinatorClient& client, const wire::Task& task) {
  // Completed inside: an input list that cannot be read fails the task, not the worker.
  wire::Task complete = task;
  // It streams all layers and needs none of the block that an earlier task has left.
  if (task.kind == wire::TaskKind::kEvaluate) {
    run.release_memory();
    release_kept_blocks();
  }
  const TaskEnd end = execute(client, run.device(), complete, [&](TaskContext& context) {
    complete = with_inputs(run.layout(), task);
    return run_task(run, context, complete);
  });
  // The next try must not fail for what this one left lying.
  if (end == TaskEnd::kFailed) run.release_memory();
  release_kept_blocks();
  return end;
}

wire::Hello make_hello(const std::string& uuid,
                       std::uint64_t incarnation,
                       const at::Device& device,
                       int workers_on_device) {
  wire::Hello hello;
  hello.worker = {uuid.empty() ? drawn_uuid() : uuid, incarnation};
  hello.version = storage::version();
  hello.build = storage::build();
  hello.host = wire::this_host();
  hello.device = device_model(device);
  hello.pid = ::getpid();
  hello.threads = at::get_num_threads();
  hello.memory_bytes = device_memory_bytes(device) / static_cast<std::uint64_t>(workers_on_device);
  hello.on_gpu = device.is_cuda();
  hello.auto_dtype = dtype_word(resolve_compute_dtype("auto", device));
  return hello;
}

const std::atomic<bool>& stop_signal() {
  struct sigaction action {};
  action.sa_handler = request_stop;
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) ::sigaction(number, &action, nullptr);
  return stop_requested;
}

storage::ExitCode serve(const ServeOptions& options) {
  const std::atomic<bool>& stop = stop_signal();
  storage::fault_point("worker.started");
  std::optional<RunContext> run(std::in_place, options.run_directory, options.local_rank);
  const storage::WorkersSection workers = run->recipe().workers;
  CoordinatorClient client(
      {.layout = run->layout(),
       .endpoint = options.endpoint,
       .hello =
           make_hello(options.uuid, options.incarnation, run->device(), options.workers_on_device),
       .key_pair = options.key_pair,
       .orphan_timeout = std::chrono::seconds(workers.orphan_timeout_s),
       .stop_signal = &stop});
  const auto held_block = [&run] {
    return run->held_first_layer() < 0
               ? -1
               : run->held_first_layer() / run->recipe().plan.layers_per_block;
  };
  while (const std::optional<wire::Task> task = client.next_task(held_block())) {
    // What the recipe left open was decided when the coordinator knew its workers.
    if (run->recipe().plan.is_open()) run.emplace(options.run_directory, options.local_rank);
    if (execute(*run, client, *task) == TaskEnd::kDeviceLost) {
      log_line("leaves: after '" + cuda::why_unusable(run->device()) +
               "' every CUDA call of this process fails; a new process may go on. To find the "
               "kernel, run with CUDA_LAUNCH_BLOCKING=1");
      std::fflush(nullptr);
      std::_Exit(static_cast<int>(storage::ExitCode::kEnvironment));  // freeing would fail, too
    }
  }
  if (client.run_is_over()) return storage::ExitCode::kOk;
  log_line("leaves, and may come again: " + client.stop_reason());
  return storage::ExitCode::kInterrupted;
}

}  // namespace hedgerow::worker
