#include "coordinator/plan/plan.hpp"

#include <algorithm>

#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::Error;
using storage::ErrorKind;

constexpr const char* kTokenize = "tokenize";

}  // namespace

std::string word_of(PlannedFor stage) { return stage ? std::string(to_string(*stage)) : kTokenize; }

PlannedFor planned_for(const std::string& word) {
  if (word == kTokenize) return std::nullopt;
  Stage stage{};
  from_word(word, stage);
  return stage;
}

KeepBoundaries KeepBoundaries::parse(const std::string& word) {
  if (word == "none") return {Kind::kNone, 1};
  if (word == "last") return {Kind::kLast, 1};
  if (word == "all") return {Kind::kAll, 1};
  const std::string digits = word.rfind("every:", 0) == 0 ? word.substr(6) : "";
  const bool number =
      !digits.empty() && digits.size() < 7 &&
      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (number && std::stoi(digits) > 0) return {Kind::kEvery, std::stoi(digits)};
  throw Error(
      ErrorKind::kUsage,
      "plan.keep_boundaries = \"" + word + "\": expected none, last, every:N (N > 0) or all");
}

bool KeepBoundaries::keeps(int boundary, int num_blocks) const {
  switch (kind) {
    case Kind::kNone:
      return false;
    case Kind::kLast:
      return boundary == num_blocks - 1;
    case Kind::kEvery:
      return boundary % every == 0;
    case Kind::kAll:
      return true;
  }
  return true;
}

std::int64_t PlanTokens::evaluated(std::int64_t most) const {
  std::int64_t sequences = 0;
  const auto add = [&](const TokensInfo& text) {
    sequences += most > 0 ? std::min(most, text.num_sequences) : text.num_sequences;
  };
  add(evaluate);
  for (const TokensInfo& text : texts) add(text);
  return sequences;
}

int Plan::last_boundary() const {
  int last = 0;
  for (const BlockPlan& block : blocks) {
    if (block.trains) last = block.block;
  }
  return last;
}

bool Plan::knows_times() const {
  return !workers.empty() && std::all_of(workers.begin(), workers.end(), [](const auto& kind) {
    return kind.speed.is_known();
  });
}

namespace {
double total(const Plan& plan, double StageEstimate::*figure) {
  double sum = 0.0;
  for (const StageEstimate& stage : plan.estimates) sum += stage.*figure;
  return sum;
}

}  // namespace

double Plan::seconds() const { return total(*this, &StageEstimate::seconds) - overlap_seconds; }
double Plan::gpu_hours() const { return total(*this, &StageEstimate::gpu_hours); }
double Plan::cost() const {
  constexpr double kSecondsPerHour = 3600.0;
  double price = 0.0;
  for (const WorkerKind& kind : workers) price += kind.nodes * kind.price_per_hour;
  return price * seconds() / kSecondsPerHour;
}

void require_fits(const Plan& plan) {
  if (plan.fits()) return;
  std::string message = "this plan does not fit:";
  for (const PlanProblem& problem : plan.problems)
    message += "\n  " + problem.message + "; " + problem.remedy;
  throw Error(ErrorKind::kUsage, message);
}

void to_json(nlohmann::json& json, const Plan& plan) {
  json = {{"format", "plan/1"},
          {"num_layers", plan.num_layers},
          {"blocks", nlohmann::json::array()},
          {"num_sequences", plan.capture.num_sequences()},
          {"num_train", plan.capture.num_train},
          {"num_validation", plan.capture.num_validation},
          {"num_shards", plan.capture.num_shards()},
          {"sequences_per_shard", plan.capture.sequences_per_shard},
          {"shards_per_capture", plan.shards_per_capture},
          {"boundary_bytes", plan.boundary_bytes},
          {"peak_disk_bytes", plan.peak_disk_bytes},
          {"final_disk_bytes", plan.final_disk_bytes},
          {"capture_memory_bytes", plan.capture_memory_bytes},
          {"transfer_memory_bytes", plan.transfer_memory_bytes},
          {"logits_bytes", plan.logits_bytes},
          {"logits_memory_bytes", plan.logits_memory_bytes},
          {"evaluate_memory_bytes", plan.evaluate_memory_bytes},
          {"finetune_memory_bytes", plan.finetune_memory_bytes},
          {"mesh", plan.finetunes ? storage::mesh_text(plan.mesh.mesh) : ""},
          {"mesh_idle", plan.mesh.idle},
          {"mesh_micro_batches", plan.mesh.micro_batches},
          {"lora_tokens_per_second", plan.mesh.tokens_per_second},
          {"published_lora_tokens_per_second", plan.mesh.published_tokens_per_second},
          {"mesh_bytes_per_step", plan.mesh.bytes_per_step},
          {"gradient_bytes_per_step", plan.mesh.gradient_bytes_per_step},
          {"state_bytes", plan.state_bytes},
          {"state_bytes_per_token", plan.state_bytes_per_token},
          {"equal_window", plan.equal_window},
          {"captures", plan.captures},
          {"evaluates", plan.evaluates},
          {"finetunes", plan.finetunes},
          {"estimates", nlohmann::json::array()},
          {"workers", plan.workers},
          {"host_memory_bytes", plan.host_memory_bytes},
          {"seconds", plan.seconds()},
          {"gpu_hours", plan.gpu_hours()},
          {"cost", plan.cost()},
          {"problems", nlohmann::json::array()},
          {"warnings", plan.warnings},
          {"fits", plan.fits()}};
  for (const BlockPlan& block : plan.blocks) {
    json["blocks"].push_back({{"block", block.block},
                              {"first_layer", block.first_layer},
                              {"num_layers", block.num_layers},
                              {"trains", block.trains}});
  }
  for (const StageEstimate& stage : plan.estimates) {
    json["estimates"].push_back({{"stage", word_of(stage.stage)},
                                 {"flops", stage.flops},
                                 {"seconds", stage.seconds},
                                 {"gpu_hours", stage.gpu_hours},
                                 {"cost", stage.cost},
                                 {"memory_bytes", stage.memory_bytes},
                                 {"disk_bytes", stage.disk_bytes}});
  }
  for (const PlanProblem& problem : plan.problems) {
    json["problems"].push_back({{"message", problem.message}, {"remedy", problem.remedy}});
  }
}

}  // namespace hedgerow::coordinator
