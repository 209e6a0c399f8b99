#include "coordinator/cli/run/inspection.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "coordinator/host/run_ownership.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/status/status.hpp"
#include "storage/check.hpp"
#include "storage/files/file.hpp"
#include "storage/model/weight_hashes.hpp"
#include "storage/shards/tokens_file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::CommittedFile;
using storage::Error;
using storage::ErrorKind;
using storage::FileKind;
using storage::FileRecord;
using storage::RunLayout;

constexpr int kThreads = 4;  // one file each: network file systems answer several at once

std::vector<CommittedFile> committed_files(const State& state) {
  std::vector<CommittedFile> files;
  for (const auto& boundary : state.shards) {
    for (const ShardRecord& shard : boundary) {
      if (shard.state == ShardState::kCommitted)
        files.push_back({FileKind::kHiddenShard, shard.file});
    }
  }
  for (const auto& [id, task] : state.tasks) {
    if (task.state == TaskState::kDropped) continue;  // the names stay, the files are gone
    // What is no result but read by a later kind is written as hidden states are.
    const FileKind kind = wire::read_by(id.stage) ? FileKind::kHiddenShard : FileKind::kWhole;
    for (const FileRecord& file : task.files) files.push_back({kind, file});
    if (task.checkpoint && task.state != TaskState::kDone)
      files.push_back({FileKind::kWhole, task.checkpoint->file});
  }
  return files;
}

void inspect_journal(const RunLayout& layout,
                     const storage::ReplayResult& replayed,
                     Inspection& inspection) {
  for (const storage::JournalDamage& damage : replayed.damage) {
    if (damage.is_torn_tail) continue;  // how a crash looks; replay cuts it
    if (damage.is_settled) {
      ++inspection.num_settled;
      continue;
    }
    inspection.damage.push_back(
        {fs::relative(layout.journal_segment(damage.term), layout.root()).string(),
         "line " + std::to_string(damage.line),
         damage.reason,
         Repair::kSettle});
  }
}

void inspect_recipe(const RunLayout& layout, const State& state, Inspection& inspection) {
  ++inspection.num_files;
  std::error_code ignored;  // that it is missing is said below
  const std::uintmax_t size = fs::file_size(layout.recipe(), ignored);
  if (!ignored) inspection.num_bytes += size;
  if (auto problem = recipe_problem(layout, state)) {
    inspection.damage.push_back({layout.recipe().filename().string(),
                                 "whole file",
                                 *std::move(problem),
                                 state.recipe.text.empty() ? Repair::kNone : Repair::kPutBack});
  }
}

void inspect_tokens(const RunLayout& layout,
                    int vocab_size,
                    const RunInputs& inputs,
                    Inspection& inspection) {
  for (const std::string& name : layout.existing_tokens()) {
    const fs::path path = layout.root() / name;
    ++inspection.num_files;
    inspection.num_bytes += fs::file_size(path);
    try {
      const auto recorded = std::find_if(inputs.tokens.begin(),
                                         inputs.tokens.end(),
                                         [&](const FileRecord& file) { return file.name == name; });
      std::ignore = storage::load_tokens(
          path,
          vocab_size,
          recorded == inputs.tokens.end() ? std::nullopt : std::optional(*recorded));
    } catch (const Error& error) {
      inspection.damage.push_back(
          {name,
           "whole file",
           error.what(),
           error.kind() == ErrorKind::kCorrupt ? Repair::kMarkLost : Repair::kNone});
    }
  }
}

std::uint64_t bytes_under(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return fs::file_size(path, ignored);
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path, ignored)) {
    if (entry.is_regular_file(ignored)) bytes += entry.file_size(ignored);
  }
  return bytes;
}

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored))
    entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

// A boundary of which a piece is being captured cannot be dropped; the next run settles it.
bool may_be_dropped(const State& state, int boundary) {
  for (int piece = 0; piece < state.geometry->num_pieces(); ++piece) {
    const TaskState capture = state.task(TaskId::capture(boundary - 1, piece)).state;
    if (capture != TaskState::kDone && capture != TaskState::kDropped) return false;
    if (piece_needed(state, boundary, piece)) return false;
  }
  return true;
}

void add_surplus_boundaries(const State& state, std::vector<Surplus>& surplus) {
  for (std::size_t b = 1; b < state.shards.size(); ++b) {
    std::uint64_t bytes = 0;
    for (const ShardRecord& shard : state.shards[b]) {
      if (shard.state == ShardState::kCommitted) bytes += shard.file.size;
    }
    const int boundary = static_cast<int>(b);
    if (bytes == 0 || !may_be_dropped(state, boundary)) continue;
    const std::string first = state.shards[b].front().file.name;
    surplus.push_back({fs::path(first).parent_path().string(),
                       "no task reads this boundary any more",
                       bytes,
                       BoundaryDropped{boundary}});
  }
}

// Once finetune is done. The next finetune, should its adapter be lost, makes them again.
void add_surplus_logits(const State& state, std::vector<Surplus>& surplus) {
  if (state.index.count(Stage::kFinetune, TaskState::kDone) == 0) return;
  std::uint64_t bytes = 0;
  for (int piece = 0; piece < state.geometry->num_logit_pieces; ++piece) {
    const TaskRecord& task = state.task(TaskId::logits(piece));
    if (task.state != TaskState::kDone) continue;
    for (const FileRecord& file : task.files) bytes += file.size;
  }
  if (bytes == 0) return;
  surplus.push_back(
      {"logits", "the finetune stage, which read these logits, is done", bytes, LogitsDropped{}});
}

void add_surplus_attempts(const RunLayout& layout,
                          const State& state,
                          std::vector<Surplus>& surplus) {
  std::set<std::string> used;  // directories that a held lease or a needed checkpoint lies in
  for (const auto& [token, id] : state.grants) used.insert(RunLayout::attempt_directory(token));
  for (const auto& [id, task] : state.tasks) {
    if (task.checkpoint && task.state != TaskState::kDone) {
      used.insert(
          RunLayout::attempt_directory(RunLayout::token_in_name(task.checkpoint->file.name)));
    }
  }
  for (const fs::path& path : entries_of(layout.root() / "attempts")) {
    const std::string name = "attempts/" + path.filename().string();
    if (!used.contains(name)) surplus.push_back({name, "this attempt is over", bytes_under(path)});
  }
}

void add_nameless_shards(const RunLayout& layout,
                         const State& state,
                         std::vector<Surplus>& surplus) {
  std::set<std::string> named;
  for (const CommittedFile& file : committed_files(state)) named.insert(file.record.name);
  for (const fs::path& boundary : entries_of(layout.root() / "hidden")) {
    for (const fs::path& path : entries_of(boundary)) {
      const std::string name = fs::relative(path, layout.root()).string();
      if (!named.contains(name))
        surplus.push_back({name, "no record names this shard", bytes_under(path)});
    }
  }
}

// What holds the hash of a layer of the teacher, and nothing that was made.
void inspect_weights(const RunLayout& layout, const State& state, Inspection& inspection) {
  if (!state.geometry) return;
  try {
    static_cast<void>(storage::recorded_weights(layout, state.geometry->num_layers));
  } catch (const Error& error) {
    inspection.damage.push_back({"weights", "the teacher's hashes", error.what(), Repair::kNone});
  }
}

}  // namespace

std::uint64_t committed_bytes(const State& state) {
  std::uint64_t bytes = 0;
  for (const CommittedFile& file : committed_files(state)) bytes += file.record.size;
  return bytes;
}

Inspection inspect(const RunLayout& layout,
                   const storage::ReplayResult& replayed,
                   const State& state,
                   int vocab_size,
                   const std::function<bool(double)>& progress) {
  Inspection inspection;
  inspect_journal(layout, replayed, inspection);
  inspect_recipe(layout, state, inspection);
  inspect_weights(layout, state, inspection);
  inspect_tokens(layout, vocab_size, state.inputs, inspection);
  const storage::CheckResult result = storage::check_run(
      layout, committed_files(state), kThreads, [&](std::uint64_t done, std::uint64_t total) {
        return progress(total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total));
      });
  inspection.num_files += result.files_checked;
  inspection.num_bytes += result.bytes_checked;
  for (const storage::Damage& damage : result.damages) {
    const bool is_lost = damage.kind == ErrorKind::kNotFound || damage.kind == ErrorKind::kCorrupt;
    inspection.damage.push_back(
        {damage.name, damage.where, damage.what, is_lost ? Repair::kMarkLost : Repair::kNone});
  }
  return inspection;
}

std::vector<Surplus> find_surplus(const RunLayout& layout, const State& state) {
  std::vector<Surplus> surplus;
  if (!state.geometry) return surplus;
  add_surplus_boundaries(state, surplus);
  add_surplus_logits(state, surplus);
  add_surplus_attempts(layout, state, surplus);
  add_nameless_shards(layout, state, surplus);
  return surplus;
}

void require_idle(const RunLayout& layout, const std::function<void(const std::string&)>& say) {
  std::ignore = read_status(layout);  // names a directory that is no run
  // Not the status, which lags behind a coordinator that has just begun.
  std::ignore = refuse_if_held(layout, {say});
}

void append_events(const RunLayout& layout,
                   const storage::ReplayResult& replayed,
                   const State& state,
                   const std::vector<Event>& events) {
  try {
    storage::Journal journal = storage::Journal::start_term(
        layout, replayed, storage::os_disk(), storage::utc_now(), state.recipe.hash);
    for (const Event& event : events) journal.append(event_to_json(event));
    journal.commit();
  } catch (const storage::Overtaken& error) {
    throw Error(ErrorKind::kUsage, name_winner(layout, error, {}, {}));
  }
}

}  // namespace hedgerow::coordinator::cli
