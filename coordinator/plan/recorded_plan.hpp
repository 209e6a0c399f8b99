// What a run was planned to take, kept in plan.json from its beginning on, so that status can hold
// what happens against it. Nothing is decided by it: a run without it, or with a damaged one, goes
// on and shows less.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "coordinator/plan/plan.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/json/fields.hpp"

namespace hedgerow::coordinator {

// What can be measured of a StageEstimate.
struct PlannedStage {
  PlannedFor stage{};
  double seconds = 0.0;  // 0: no speed was known
  double gpu_hours = 0.0;
  double cost = 0.0;               // in the currency of the nodes' prices
  std::uint64_t memory_bytes = 0;  // of one process, where it computes; 0: next to none
  std::uint64_t disk_bytes = 0;    // of the run directory, at most, up to its end
  bool operator==(const PlannedStage&) const = default;
};
template <typename Visitor, storage::Is<PlannedStage> T>
void visit_fields(Visitor& visitor, T& stage) {
  std::string word = word_of(stage.stage);
  visitor.field("stage", word);
  if constexpr (!std::is_const_v<T>) stage.stage = planned_for(word);
  visitor.field("seconds", stage.seconds);
  visitor.field("gpu_hours", stage.gpu_hours);
  visitor.field("cost", stage.cost);
  visitor.field("memory_bytes", stage.memory_bytes);
  visitor.field("disk_bytes", stage.disk_bytes);
}

struct RecordedPlan {
  double seconds = 0.0;
  std::vector<PlannedStage> stages{};
  nlohmann::json workers = nlohmann::json::array();  // WorkerKind, for people
  bool on_gpus = false;                              // they compute on GPUs, all of them
  double price_per_hour = 0.0;                       // of all nodes together; 0: not known
  bool measured = false;                             // their speed was, of all of them
  bool operator==(const RecordedPlan&) const = default;

  [[nodiscard]] const PlannedStage* find(Stage stage) const;  // null: not planned
};

[[nodiscard]] RecordedPlan recorded(const Plan& plan);
// Durable once it returns. Throws as storage::write_atomically.
void write_plan(const storage::RunLayout& layout, const RecordedPlan& plan);
// nullopt: there is none, as of a run that an older build began. Throws kCorrupt for a damaged one.
[[nodiscard]] std::optional<RecordedPlan> read_plan(const storage::RunLayout& layout);
// The same without throwing: `problem` becomes what is wrong with it.
[[nodiscard]] std::optional<RecordedPlan> read_plan(const storage::RunLayout& layout,
                                                    std::string& problem);

}  // namespace hedgerow::coordinator
