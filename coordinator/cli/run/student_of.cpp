#include "coordinator/cli/run/student_of.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "coordinator/cli/command.hpp"
#include "coordinator/state/events.hpp"
#include "coordinator/state/fold.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/journal/journal.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::RunLayout;

// Of the last stage, what others are cut by or learn from.
constexpr std::array<std::string_view, 6> kShared = {"finetune.enabled",
                                                     "finetune.objective",
                                                     "finetune.top_k",
                                                     "finetune.max_steps",
                                                     "finetune.sequences_per_step",
                                                     "finetune.repeat_captured"};

bool is_of_last_stage(const TaskId& id) {
  return id.stage == Stage::kFinetune ||
         (id.stage == Stage::kEvaluate && id.subject == coordinator::Subject::kLora);
}

// "finetune.rank: 8 -> 4" differs in finetune.rank.
std::string field_of(const std::string& change) { return change.substr(0, change.find(':')); }

// The records that count in the new run, in their order: those of tasks that are kept.
class Records {
 public:
  explicit Records(bool logits_are_gone) : logits_are_gone_(logits_are_gone) {}

  [[nodiscard]] bool keeps(const Event& event) {
    return std::visit([this](const auto& record) { return keeps_record(record); }, event);
  }

 private:
  [[nodiscard]] bool keeps_task(const TaskId& id) const {
    return !is_of_last_stage(id) && !(logits_are_gone_ && wire::read_by(id.stage));
  }
  // What the new coordinator writes of its own.
  static bool keeps_record(const TermStarted& /*record*/) { return false; }
  static bool keeps_record(const RecipeRecorded& /*record*/) { return false; }
  static bool keeps_record(const LogitsDropped& /*record*/) { return false; }
  static bool keeps_record(const RunStarted& /*record*/) { return true; }
  static bool keeps_record(const FileLost& /*record*/) { return true; }
  static bool keeps_record(const BoundaryDropped& /*record*/) { return true; }
  static bool keeps_record(const Noted& /*record*/) { return true; }
  bool keeps_record(const Granted& record) {
    if (!keeps_task(record.task)) left_out_.insert(record.token);
    return keeps_task(record.task);
  }
  template <typename OfTask>
  requires requires(const OfTask& record) { record.task; }
  bool keeps_record(const OfTask& record) { return keeps_task(record.task); }
  template <typename OfAttempt>
  requires requires(const OfAttempt& record) { record.token; }
  bool keeps_record(const OfAttempt& record) { return !left_out_.contains(record.token); }

  bool logits_are_gone_;
  std::set<std::uint64_t> left_out_;  // tokens
};

void link_or_copy(const fs::path& from, const fs::path& to) {
  if (!fs::exists(from)) return;  // its loss is told as that of any committed file
  fs::create_directories(to.parent_path());
  if (fs::exists(to)) return;  // by a call that was killed behind it
  std::error_code elsewhere;   // another file system, or one without links
  fs::create_hard_link(from, to, elsewhere);
  if (!elsewhere) return;
  const fs::path partial = to.string() + ".partial";
  fs::copy_file(from, partial, fs::copy_options::overwrite_existing);
  fs::rename(partial, to);
}

}  // namespace

void require_same_student(const RunLayout& from, const storage::Recipe& recipe) {
  const State state = fold(replay_if_any(from)).state;
  require(state.geometry && state.task(TaskId::assemble()).state == TaskState::kDone,
          "--student-of " + from.root().string() +
              ": it has no student yet; let it come to its last stage first");
  const storage::RecipeDifference changes = storage::difference(recipe_of_run(from, state), recipe);
  std::string wrong;
  for (const std::string& change : changes.unsafe) {
    const std::string field = field_of(change);
    if (field.starts_with("finetune.") && std::ranges::find(kShared, field) == kShared.end())
      continue;
    wrong += (wrong.empty() ? "" : "; ") + change;
  }
  require(wrong.empty(),
          "--student-of " + from.root().string() +
              ": the recipe differs from that run's in more than its last stage: " + wrong +
              "; change it back, or begin a run of its own");
}

void take_student_of(const RunLayout& from, const RunLayout& to) {
  const storage::ReplayResult history = storage::replay_history(from);
  const auto is_dropped = [](const storage::JournalRecord& record) {
    return std::holds_alternative<LogitsDropped>(event_from_json(record.event));
  };
  Records records(std::ranges::any_of(history.records, is_dropped));
  storage::Journal journal = storage::Journal::start_term(to, replay_if_any(to));
  const auto take = [&](const storage::FileRecord& file) {
    link_or_copy(from.resolve(file.name), to.resolve(file.name));
  };
  for (const std::string& name : from.existing_tokens())
    link_or_copy(from.resolve(name), to.resolve(name));
  if (fs::exists(from.plan())) link_or_copy(from.plan(), to.plan());
  for (const storage::JournalRecord& record : history.records) {
    const Event event = event_from_json(record.event);
    if (!records.keeps(event)) continue;
    if (const auto* shard = std::get_if<ShardCommitted>(&event)) take(shard->file);
    if (const auto* done = std::get_if<TaskDone>(&event)) std::ranges::for_each(done->files, take);
    journal.append(record.event, record.at);
  }
  journal.commit();
}

}  // namespace hedgerow::coordinator::cli
