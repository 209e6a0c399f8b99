// What a worker is asked to do and how it says how far it is. Everything else (recipe, layout,
// model) the worker reads from the run directory.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/files/file_record.hpp"
#include "storage/json/fields.hpp"

namespace hedgerow::wire {

// The kinds of task, in the order of the stages that are named after them. kFinetune is granted to
// the MPI stage that the coordinator launched: its rank 0 joins with Hello{held}. kAssemble is the
// coordinator's own and is never sent.
enum class TaskKind { kCapture, kTransfer, kAssemble, kLogits, kFinetune, kEvaluate };

// What both programs know of a kind; coordinator/dispatch/task_kinds has what the scheduler needs.
struct TaskKindRow {
  TaskKind kind;
  std::string_view word;
  bool is_pulled;        // workers ask for it; the others the coordinator begins itself
  bool has_checkpoints;  // counts steps, and goes on from the last that is committed
  // The kind that alone reads its files. They are no result of the run: once those tasks are done
  // the files may be dropped, and they are made again where such a task has to run again. nullopt:
  // its files stay. A capture's shards, which several kinds read, are dropped by boundary.
  std::optional<TaskKind> read_by;
  std::string_view smaller;  // how to ask for less where memory runs out
};
// In the order of the enumerators, in which workers are offered them.
[[nodiscard]] std::span<const TaskKindRow> task_kinds();
[[nodiscard]] const TaskKindRow& row_of(TaskKind kind);
[[nodiscard]] bool is_pulled(TaskKind kind);
[[nodiscard]] bool has_checkpoints(TaskKind kind);
[[nodiscard]] std::optional<TaskKind> read_by(TaskKind kind);

// What is evaluated; in the order of their names, which is that of tasks.
enum class Subject { kNone, kLora, kTeacher, kTransfer };
[[nodiscard]] std::string_view to_string(Subject subject);  // "lora", ...; kNone: ""
[[nodiscard]] std::optional<Subject> subject_from_string(std::string_view word);
// As storage/json/fields.hpp reads what is written as a word. Throws kCorrupt.
void from_word(std::string_view word, Subject& subject);

struct Task {
  TaskKind kind = TaskKind::kCapture;
  std::uint64_t fencing_token = 0;
  // Capture, transfer: the block; their sequences are those of storage::CapturePlan.
  int block = -1;
  int first_layer = 0, num_layers = 0;
  // Capture: the shards of boundary block + 1 to write.
  int first_shard = 0, num_shards = 0;
  std::int64_t sequences_per_shard = 0;
  // Logits: which file to write, of the sequences of those shards; block -1: they are numbered by
  // storage::LogitsPlan and enter the first layer as tokens.
  int piece = -1;
  // Capture, transfer, logits: committed shards of boundary `block` (none for block 0), a capture
  // only those it reads. Evaluate: the student's files, then the adapter's, or its pieces'.
  // Finetune: the student's files, then those of the logits.
  std::vector<storage::FileRecord> inputs;
  // A list of inputs too long for one message lies in this file of the run directory;
  // CoordinatorClient fills `inputs` from it, so that the code of the task never sees the
  // difference.
  std::optional<storage::FileRecord> inputs_file;
  // Transfer, finetune: the last committed checkpoint.
  std::optional<storage::FileRecord> resume;
  // Transfer: differs from the recipe's after a retry with another seed.
  std::uint64_t seed = 0;
  // Evaluate: teacher | transfer | lora.
  std::string subject;
  // Evaluate: in so many pieces. With `piece` that one of them, else the task that puts the pieces'
  // files, its inputs, together; 0: all of it.
  int num_pieces = 0;
  // What the plan counts for it; 0: unknown. Said where memory runs out all the same.
  std::uint64_t memory_bytes = 0;
  bool operator==(const Task&) const = default;
};

struct WorkerId {
  std::string uuid;
  std::uint64_t incarnation = 0;
};

// What a task took at most, of its process and of its GPU; 0: unknown, or no GPU. Reserved is what
// LibTorch keeps from others, tensors or not.
struct PeakMemory {
  std::uint64_t host_bytes = 0, device_bytes = 0, device_reserved_bytes = 0;
  bool operator==(const PeakMemory&) const = default;
};

// How far a task is; rides on heartbeats. What it measures stands in metrics.jsonl.
struct Progress {
  std::string phase;  // "loading", "capturing", "training", "validating", "evaluating", "idle"
  std::int64_t step = 0, num_steps = 0;
  std::int64_t tokens = 0;
  double seconds = 0.0;
  double seconds_waited_on_data = 0.0;
  double loss = 0.0;  // evaluate, finetune
  PeakMemory peak_memory;
};

[[nodiscard]] std::string_view to_string(TaskKind kind);  // "capture", "transfer", ...
// So that a kind in a JSON value is its word and not its number.
void to_json(nlohmann::json& json, TaskKind kind);
[[nodiscard]] std::optional<TaskKind> task_kind_from(std::string_view word);
// Throws kCorrupt for another word.
void from_word(std::string_view word, TaskKind& kind);

template <typename Visitor, storage::Is<Task> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("kind", m.kind);
  visitor.field("fencing_token", m.fencing_token);
  visitor.field("block", m.block);
  visitor.field("first_layer", m.first_layer);
  visitor.field("num_layers", m.num_layers);
  visitor.field("first_shard", m.first_shard);
  visitor.field("num_shards", m.num_shards);
  visitor.field("sequences_per_shard", m.sequences_per_shard);
  visitor.optional_field("piece", m.piece);
  visitor.field("inputs", m.inputs);
  visitor.field("inputs_file", m.inputs_file);
  visitor.field("resume", m.resume);
  visitor.field("seed", m.seed);
  visitor.field("subject", m.subject);
  visitor.optional_field("num_pieces", m.num_pieces);
  visitor.optional_field("memory_bytes", m.memory_bytes);
}
template <typename Visitor, storage::Is<WorkerId> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("uuid", m.uuid);
  visitor.field("incarnation", m.incarnation);
}
template <typename Visitor, storage::Is<PeakMemory> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("host_bytes", m.host_bytes);
  visitor.field("device_bytes", m.device_bytes);
  visitor.field("device_reserved_bytes", m.device_reserved_bytes);
}
template <typename Visitor, storage::Is<Progress> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("phase", m.phase);
  visitor.field("step", m.step);
  visitor.field("num_steps", m.num_steps);
  visitor.field("tokens", m.tokens);
  visitor.field("seconds", m.seconds);
  visitor.field("seconds_waited_on_data", m.seconds_waited_on_data);
  visitor.field("loss", m.loss);
  visitor.optional_field("peak_memory", m.peak_memory);
}

inline void to_json(nlohmann::json& json, const Task& task) {
  json = storage::fields_to_json(task);
}
inline void from_json(const nlohmann::json& json, Task& task) {
  task = storage::fields_from_json<Task>(json);
}
inline void to_json(nlohmann::json& json, const PeakMemory& peak) {
  json = storage::fields_to_json(peak);
}
inline void from_json(const nlohmann::json& json, PeakMemory& peak) {
  peak = storage::fields_from_json<PeakMemory>(json);
}
inline void to_json(nlohmann::json& json, const Progress& progress) {
  json = storage::fields_to_json(progress);
}
inline void from_json(const nlohmann::json& json, Progress& progress) {
  progress = storage::fields_from_json<Progress>(json);
}

}  // namespace hedgerow::wire
