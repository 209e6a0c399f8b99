// hedgerow-worker time-layer: a layer's shape (coordinator/bench/layer_probe.hpp, as JSON) on
// stdin; on stdout one line with the device, as soon as it could compute there, and one with the
// seconds.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "worker/bench/layer_times.hpp"
#include "worker/commands/commands.hpp"
#include "worker/commands/progress_lines.hpp"
#include "worker/device/device.hpp"
#include "worker/model/decoder.hpp"

namespace hedgerow::worker {
namespace {

measure::LayerProbe read_probe(std::istream& in) {
  const std::string text(std::istreambuf_iterator<char>(in), {});
  try {
    return nlohmann::json::parse(text).get<measure::LayerProbe>();
  } catch (const nlohmann::json::exception& error) {
    throw storage::Error(storage::ErrorKind::kUsage,
                         std::string("standard input: expected a layer's shape as 'hedgerow "
                                     "doctor --calibrate' writes it: ") +
                             error.what());
  }
}

storage::ExitCode time_layer_command() {
  const measure::LayerProbe probe = read_probe(std::cin);
  at::set_num_threads(std::max(1, probe.threads));
  const at::Device device = resolve_device(probe.device);
  const at::ScalarType dtype = resolve_compute_dtype(probe.compute_dtype, device);
  // What a GPU needs before it computes at all belongs to a worker's start.
  static_cast<void>(at::zeros({1}, at::TensorOptions(device)).item<float>());
  print_line(
      measure::ProbedDevice{device_model(device), device_memory_bytes(device), dtype_word(dtype)});
  print_line(bench::time_layer(probe, device, dtype));
  return storage::ExitCode::kOk;
}

}  // namespace

void register_time_layer(CLI::App& app, Action& action) {
  app.add_subcommand("time-layer", "Seconds of a layer, for 'hedgerow doctor --calibrate'")
      ->group("")
      ->callback([&action] { action = time_layer_command; });
}

}  // namespace hedgerow::worker
