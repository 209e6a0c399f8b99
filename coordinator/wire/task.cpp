#include "coordinator/wire/task.hpp"

#include <array>
#include <utility>

#include "coordinator/wire/json_fields.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::wire {
namespace {

using nlohmann::json;
using storage::Error;
using storage::ErrorKind;

constexpr std::array<std::pair<TaskKind, std::string_view>, 4> kTaskKinds = {{
    {TaskKind::kCapture, "capture"},
    {TaskKind::kTransfer, "transfer"},
    {TaskKind::kEvaluate, "evaluate"},
    {TaskKind::kFinetune, "finetune"},
}};

}  // namespace

std::string_view to_string(TaskKind kind) {
  for (const auto& [value, word] : kTaskKinds) {
    if (value == kind) return word;
  }
  return "capture";
}

void to_json(json& out, const Task& task) {
  out["kind"] = to_string(task.kind);
  out["fencing_token"] = task.fencing_token;
  out["block"] = task.block;
  out["first_layer"] = task.first_layer;
  out["num_layers"] = task.num_layers;
  out["first_shard"] = task.first_shard;
  out["num_shards"] = task.num_shards;
  out["sequences_per_shard"] = task.sequences_per_shard;
  out["inputs"] = records_to_json(task.inputs);
  if (task.inputs_file) out["inputs_file"] = record_to_json(*task.inputs_file);
  if (task.resume) out["resume"] = record_to_json(*task.resume);
  out["seed"] = task.seed;
  out["subject"] = task.subject;
  out["memory_bytes"] = task.memory_bytes;
}

void from_json(const json& in, Task& task) {
  const std::string kind = string_field(in, "kind");
  bool known = false;
  for (const auto& [value, word] : kTaskKinds) {
    if (word == kind) {
      task.kind = value;
      known = true;
    }
  }
  if (!known)
    throw Error(ErrorKind::kCorrupt, "message: unknown task kind '" + kind.substr(0, 40) + "'");
  task.fencing_token = uint_field(in, "fencing_token");
  task.block = int_field(in, "block");
  task.first_layer = int_field(in, "first_layer");
  task.num_layers = int_field(in, "num_layers");
  task.first_shard = int_field(in, "first_shard");
  task.num_shards = int_field(in, "num_shards");
  task.sequences_per_shard = int64_field(in, "sequences_per_shard");
  task.inputs = records_from_json(in, "inputs");
  task.inputs_file.reset();
  if (in.contains("inputs_file"))
    task.inputs_file = record_from_json(object_field(in, "inputs_file"));
  task.resume.reset();
  if (in.contains("resume")) task.resume = record_from_json(object_field(in, "resume"));
  task.seed = uint_field(in, "seed");
  task.subject = string_field(in, "subject");
  // Builds before it sent none.
  task.memory_bytes = in.contains("memory_bytes") ? uint_field(in, "memory_bytes") : 0;
}

void to_json(json& out, const PeakMemory& peak) {
  out = Object()
            .with("host_bytes", peak.host_bytes)
            .with("device_bytes", peak.device_bytes)
            .with("device_reserved_bytes", peak.device_reserved_bytes);
}

void from_json(const json& in, PeakMemory& peak) {
  peak.host_bytes = uint_field(in, "host_bytes");
  peak.device_bytes = uint_field(in, "device_bytes");
  peak.device_reserved_bytes = uint_field(in, "device_reserved_bytes");
}

void to_json(json& out, const Progress& progress) {
  out = Object()
            .with("phase", progress.phase)
            .with("step", progress.step)
            .with("num_steps", progress.num_steps)
            .with("tokens", progress.tokens)
            .with("seconds", progress.seconds)
            .with("seconds_waited_on_data", progress.seconds_waited_on_data)
            .with("layer_mse", progress.layer_mse)
            .with("linear_share", progress.linear_share)
            .with("loss", progress.loss)
            .with("peak_memory", progress.peak_memory);
}

void from_json(const json& in, Progress& progress) {
  progress.phase = string_field(in, "phase");
  progress.step = int64_field(in, "step");
  progress.num_steps = int64_field(in, "num_steps");
  progress.tokens = int64_field(in, "tokens");
  progress.seconds = double_field(in, "seconds");
  progress.seconds_waited_on_data = double_field(in, "seconds_waited_on_data");
  progress.layer_mse = doubles_field(in, "layer_mse");
  progress.linear_share = doubles_field(in, "linear_share");
  progress.loss = double_field(in, "loss");
  progress.peak_memory = {};
  // Builds before it measured none.
  if (in.contains("peak_memory"))
    progress.peak_memory = object_field(in, "peak_memory").get<PeakMemory>();
}

}  // namespace hedgerow::wire
