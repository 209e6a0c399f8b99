#include "coordinator/cli/doctor/machine_speed.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <random>
#include <thread>
#include <vector>

#include "coordinator/cli/doctor/calibration.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/machine/gpus.hpp"
#include "coordinator/machine/memory.hpp"
#include "storage/base/build_info.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr double kGiga = 1e9, kTera = 1e12;
constexpr std::size_t kFileBytes = 256'000'000, kPieceBytes = 8'000'000;
// A core takes seconds for as many products; a recipe's forward that needs more is shortened.
constexpr double kCoreFlops = 2e11;
constexpr int kCoreTokens = 512;
constexpr std::chrono::seconds kLimit{300};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

fs::path nearest_folder(const fs::path& directory) {
  fs::path folder = fs::absolute(directory).lexically_normal();
  while (!fs::is_directory(folder) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

struct RemovedFile {
  fs::path path;
  ~RemovedFile() {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
};

// Bytes a second of a file that is in no page cache (where the file system can forget it). Its
// bytes are random, or a file system that compresses would read less.
double disk_speed(const fs::path& folder) {
  const RemovedFile file{folder / (".hedgerow-calibrate." + std::to_string(::getpid()))};
  std::vector<std::byte> bytes(kPieceBytes);
  std::mt19937_64 random;
  storage::File written = storage::File::create_exclusive(file.path);
  for (std::size_t at = 0; at < kFileBytes; at += kPieceBytes) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    written.write_all(bytes);
  }
  written.sync();
  static_cast<void>(::posix_fadvise(written.descriptor(), 0, 0, POSIX_FADV_DONTNEED));
  written.close();
  const storage::File read = storage::File::open_read(file.path);
  const auto begin = Clock::now();
  for (std::size_t at = 0; at < kFileBytes; at += kPieceBytes) read.read_exact(bytes, at);
  return static_cast<double>(kFileBytes) / seconds_since(begin);
}

measure::LayerProbe llama_3_8b() {
  measure::LayerProbe probe{.hidden_size = 4096,
                          .intermediate_size = 14336,
                          .num_attention_heads = 32,
                          .num_key_value_heads = 8,
                          .head_dim = 128,
                          .seq_len = 1024};
  probe.attention.feature_dim = probe.head_dim;
  return probe;
}

measure::LayerProbe probe_of(const std::optional<storage::Recipe>& recipe,
                           const std::optional<storage::ModelConfig>& model,
                           bool on_gpu) {
  measure::LayerProbe probe = on_gpu ? llama_3_8b() : measure::LayerProbe{};
  if (!on_gpu) probe.attention.feature_dim = probe.head_dim;
  if (recipe && model) {
    probe = {.hidden_size = model->hidden_size,
             .intermediate_size = model->intermediate_size,
             .num_attention_heads = model->num_attention_heads,
             .num_key_value_heads = model->num_key_value_heads,
             .head_dim = model->head_dim,
             .attention = recipe->attention,
             .seq_len = recipe->data_transfer.seq_len,
             .sequences = static_cast<int>(recipe->plan.sequences_per_forward),
             .compute_dtype = recipe->plan.compute_dtype};
  }
  probe.device = on_gpu ? "cuda" : "cpu";
  return probe;
}

// The plan's counts of what is timed.
Costs costs_of(const measure::LayerProbe& probe) {
  storage::Recipe recipe;
  recipe.attention = probe.attention;
  recipe.plan.sequences_per_forward = probe.sequences;
  recipe.plan.compute_dtype = probe.compute_dtype;
  storage::ModelConfig model;
  model.hidden_size = probe.hidden_size;
  model.intermediate_size = probe.intermediate_size;
  model.num_hidden_layers = 1;
  model.num_attention_heads = probe.num_attention_heads;
  model.num_key_value_heads = probe.num_key_value_heads;
  model.head_dim = probe.head_dim;
  PlanTokens tokens;
  tokens.transfer.seq_len = probe.seq_len;
  return {recipe, model, tokens, {.compute_bytes = 4}};
}

double forward_products(const measure::LayerProbe& probe) {
  return 1.0 * probe.sequences * probe.seq_len *
         costs_of(probe).layer_forward(probe.seq_len).products;
}

// One worker program's answers.
struct Answer {
  double start_seconds = 0.0;
  measure::ProbedDevice device;
  measure::LayerSeconds seconds;
  ChildResult child;
  std::exception_ptr error;
};

Answer time_layer(const std::vector<std::string>& command,
                  const measure::LayerProbe& probe,
                  Console& console) {
  Answer answer;
  try {
    Terminal silent(console);  // a Terminal is one thread's
    const auto begin = Clock::now();
    bool has_started = false, has_measured = false;
    answer.child = run_child({.arguments = command, .input = json(probe).dump(), .limit = kLimit},
                             silent,
                             [&](std::string_view line) {
                               const json object = json::parse(line, nullptr, false);
                               if (!has_started) {
                                 answer.start_seconds = seconds_since(begin);
                                 object.get_to(answer.device);
                                 has_started = true;
                               } else {
                                 object.get_to(answer.seconds);
                                 has_measured = true;
                               }
                             });
    if (answer.child.was_interrupted) return answer;
    if (!answer.child.ok()) throw child_error(command.front(), answer.child);
    if (!has_measured)
      throw storage::Error(storage::ErrorKind::kUnavailable,
                           command.front() +
                               ": ended without an answer; build it and hedgerow "
                               "from one commit");
  } catch (const json::exception& error) {
    answer.error = std::make_exception_ptr(
        storage::Error(storage::ErrorKind::kUnavailable,
                       command.front() + ": unexpected answer, " + error.what() +
                           "; build it and hedgerow from one commit"));
  } catch (...) {
    answer.error = std::current_exception();
  }
  return answer;
}

// As many at once as a busy machine would run: a core beside others at work is slower than alone.
std::vector<Answer> time_layers(const measure::LayerProbe& probe, int processes, Terminal& terminal) {
  const std::vector<std::string> command{worker_binary(terminal.console()), "time-layer"};
  std::vector<Answer> answers(static_cast<std::size_t>(processes));
  const ClosedPipeScope no_sigpipe;  // around those of the threads, which would undo one another
  {
    std::vector<std::jthread> threads;
    for (Answer& answer : answers) {
      threads.emplace_back([&] { answer = time_layer(command, probe, terminal.console()); });
    }
  }
  for (const Answer& answer : answers) {
    if (answer.error) std::rethrow_exception(answer.error);
  }
  return answers;
}

std::string date_today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", &utc);
  return text.data();
}

}  // namespace

bool has_usable_gpus() { return storage::has_cuda() && machine::num_visible_gpus() > 0; }

std::optional<MeasuredMachine> measure_machine(const std::optional<storage::Recipe>& recipe,
                                               const std::optional<storage::ModelConfig>& model,
                                               const fs::path& directory,
                                               Terminal& terminal) {
  const bool on_gpu = has_usable_gpus();
  MeasuredMachine machine;
  storage::NodeKind& node = machine.node;
  node.cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  node.gpus = on_gpu ? machine::num_visible_gpus() : 0;
  const std::uint64_t memory = machine::usable_memory_bytes();
  node.memory_gb = static_cast<double>(memory) / kGiga;

  measure::LayerProbe& probe = machine.probe = probe_of(recipe, model, on_gpu);
  if (on_gpu) {
    probe.threads = node.cores;
  } else {
    if (forward_products(probe) > kCoreFlops) probe.sequences = 1;
    if (forward_products(probe) > kCoreFlops) probe.seq_len = std::min(probe.seq_len, kCoreTokens);
    const std::uint64_t most = memory / costs_of(probe).transfer_memory(1, /*on_gpu=*/false);
    machine.processes = static_cast<int>(
        std::clamp<std::uint64_t>(most, 1, static_cast<std::uint64_t>(node.cores)));
    probe.threads = std::max(1, node.cores / machine.processes);
  }

  terminal.status("reading the disk ...");
  node.disk_gb_s = disk_speed(nearest_folder(directory)) / kGiga;
  if (is_interrupted()) return std::nullopt;
  terminal.status("timing a layer ...");
  const std::vector<Answer> answers = time_layers(probe, machine.processes, terminal);
  const double share = 1.0 / static_cast<double>(answers.size());
  for (const Answer& answer : answers) {
    if (answer.child.was_interrupted) return std::nullopt;
    node.worker_start_s += share * answer.start_seconds;
    machine.seconds.products += share * answer.seconds.products;
    machine.seconds.capture += share * answer.seconds.capture;
    machine.seconds.transfer += share * answer.seconds.transfer;
  }
  terminal.clear_status();
  machine.device = answers.front().device;
  if (on_gpu) node.gpu_memory_gb = static_cast<double>(machine.device.memory_bytes) / kGiga;
  const Costs costs = costs_of(probe);
  const double tokens = 1.0 * probe.sequences * probe.seq_len;
  const ComputeSpeed speed = speed_of(machine.seconds,
                                      tokens * costs.layer_forward(probe.seq_len),
                                      tokens * costs.layer_transfer(probe.seq_len));
  // Threads are what a plan divides by.
  const double cores = on_gpu ? 1.0 : probe.threads;
  node.product_tflops = speed.product_flops / cores / kTera;
  node.other_tflops = speed.other_flops / cores / kTera;
  node.measured = date_today() + ", " + machine.device.model + ", " +
                  (on_gpu ? counted(node.gpus, "GPU") : counted(node.cores, "core"));
  return machine;
}

}  // namespace hedgerow::coordinator::cli
