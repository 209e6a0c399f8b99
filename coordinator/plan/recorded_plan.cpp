#include "coordinator/plan/recorded_plan.hpp"

#include <algorithm>
#include <filesystem>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator {
namespace {

using nlohmann::json;
using namespace storage;  // the strict field readers
using storage::Error;
using storage::ErrorKind;

constexpr const char* kPlanFormat = "recorded-plan/1";
constexpr std::uint64_t kMaxPlanBytes = 1 << 20;  // of thousands of kinds of workers

// JSON writes null for what is not finite, and a figure below zero is none of ours.
double figure(const json& in, const char* key) {
  const double value = double_field(in, key);
  if (!(value >= 0.0)) throw_ill_typed(key, "a number, at least 0", field(in, key));
  return value;
}

PlannedStage planned_stage(const json& in) {
  for (const char* key : {"seconds", "gpu_hours", "cost"}) static_cast<void>(figure(in, key));
  return fields_from_json<PlannedStage>(in);
}

RecordedPlan plan_of_text(const std::string& text) {
  const json in = parse_document(text);
  if (const std::string format = string_field(in, "format"); format != kPlanFormat)
    throw Error(ErrorKind::kCorrupt,
                "format is \"" + format + "\", expected \"" + std::string(kPlanFormat) + "\"");
  RecordedPlan plan{.seconds = figure(in, "seconds"),
                    .workers = field(in, "workers"),
                    .price_per_hour = figure(in, "prices"),
                    .measured = bool_field(in, "measured")};
  const json& stages = field(in, "stages");
  if (!stages.is_array()) throw_ill_typed("stages", "a list", stages);
  for (const json& stage : stages) plan.stages.push_back(planned_stage(stage));
  if (!plan.workers.is_array()) throw_ill_typed("workers", "a list", plan.workers);
  plan.on_gpus = !plan.workers.empty();
  for (const json& kind : plan.workers) plan.on_gpus = bool_field(kind, "on_gpu") && plan.on_gpus;
  return plan;
}

}  // namespace

const PlannedStage* RecordedPlan::find(Stage stage) const {
  const auto found = std::find_if(
      stages.begin(), stages.end(), [&stage](const auto& item) { return item.stage == stage; });
  return found == stages.end() ? nullptr : &*found;
}

RecordedPlan recorded(const Plan& plan) {
  RecordedPlan out{.seconds = plan.seconds(),
                   .on_gpus = !plan.workers.empty(),
                   .measured = !plan.workers.empty()};
  for (const StageEstimate& stage : plan.estimates)
    out.stages.push_back({.stage = stage.stage,
                          .seconds = stage.seconds,
                          .gpu_hours = stage.gpu_hours,
                          .cost = stage.cost,
                          .memory_bytes = stage.memory_bytes,
                          .disk_bytes = stage.disk_bytes});
  for (const WorkerKind& kind : plan.workers) {
    out.workers.push_back(kind);
    out.on_gpus = out.on_gpus && kind.on_gpu;
    out.measured = out.measured && !kind.measured.empty();
    out.price_per_hour += kind.nodes * kind.price_per_hour;
  }
  return out;
}

void write_plan(const storage::RunLayout& layout, const RecordedPlan& plan) {
  json stages = json::array();
  for (const PlannedStage& stage : plan.stages) stages.push_back(fields_to_json(stage));
  const json out = {{"format", kPlanFormat},
                    {"seconds", plan.seconds},
                    {"stages", stages},
                    {"workers", plan.workers},
                    {"prices", plan.price_per_hour},
                    {"measured", plan.measured}};
  storage::write_atomically(layout.plan(), out.dump(2) + "\n");
}

std::optional<RecordedPlan> read_plan(const storage::RunLayout& layout) {
  if (!std::filesystem::exists(layout.plan())) return std::nullopt;
  try {
    return plan_of_text(storage::read_text(layout.plan(), kMaxPlanBytes));
  } catch (const Error& error) {
    throw Error(ErrorKind::kCorrupt,
                layout.plan().string() + " cannot be read: " + error.what() +
                    "; without it nothing is held against the plan, remove it to be rid of this");
  }
}

std::optional<RecordedPlan> read_plan(const storage::RunLayout& layout, std::string& problem) {
  try {
    return read_plan(layout);
  } catch (const std::exception& error) {  // a file system's error is no more the run's than damage
    problem = error.what();
    return std::nullopt;
  }
}

}  // namespace hedgerow::coordinator
