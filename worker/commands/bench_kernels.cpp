// hedgerow-worker bench-kernels: a sweep (coordinator/bench/kernel_sweep.hpp, as JSON) on stdin,
// its measurements as JSON lines on stdout (bench/README.md).
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "worker/bench/kernel_sweep.hpp"
#include "worker/commands/commands.hpp"
#include "worker/commands/progress_lines.hpp"
#include "worker/device/device.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;

measure::KernelSweep read_sweep(std::istream& in) {
  const std::string text(std::istreambuf_iterator<char>(in), {});
  try {
    auto sweep = nlohmann::json::parse(text).get<measure::KernelSweep>();
    sweep.validate();
    return sweep;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::kUsage,
                std::string("standard input: expected a sweep as 'hedgerow bench kernels' writes "
                            "it: ") +
                    error.what());
  }
}

storage::ExitCode bench_kernels_command(bool wants_progress) {
  const measure::KernelSweep sweep = read_sweep(std::cin);
  if (sweep.threads > 0) at::set_num_threads(sweep.threads);
  const at::Device device = resolve_device(sweep.device);
  // The opponent runs as everybody runs it; ours is deterministic anyway.
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  const ProgressLines progress(wants_progress);
  progress("measuring the device", 0);
  const bench::DevicePeaks peaks = bench::measure_peaks(device);
  print_line(bench::describe_device(device, peaks));
  bench::run_sweep(
      sweep,
      device,
      device_memory_bytes(device),
      peaks,
      {.on_object = print_line, .on_progress = [&](double share, const std::string& note) {
         progress("sweep", share, note);
       }});
  return storage::ExitCode::kOk;
}

}  // namespace

void register_bench_kernels(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "bench-kernels", "Time the attention kernels; the sweep comes as JSON on stdin");
  const auto progress = std::make_shared<bool>(false);
  command->add_flag("--progress", *progress, kProgressHelp);
  command->callback(
      [progress, &action] { action = [progress] { return bench_kernels_command(*progress); }; });
}

}  // namespace hedgerow::worker
