// The one place that knows how a file of a run directory is called.
// Names that stand in the journal are relative to the run directory and carry the fencing token of
// the attempt that wrote them, so that no two attempts and no two coordinators ever write the same
// name.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "storage/files/hash.hpp"

namespace hedgerow::storage {

using FencingToken = std::uint64_t;

enum class DataStage { kTransfer, kFinetune, kEvaluate };
[[nodiscard]] const char* to_string(DataStage stage);  // "transfer", "finetune", "evaluate"

// Which tokens file of a run: a data section's, or that of one text of data.evaluate.texts.
struct TokensOf {
  // Implicit: a section alone names its file.
  TokensOf(DataStage of, std::string named = {}) : stage(of), text(std::move(named)) {}
  DataStage stage;
  std::string text;  // the text's name; empty: the section's own split
  auto operator<=>(const TokensOf&) const = default;
};

class RunLayout {
 public:
  explicit RunLayout(std::filesystem::path root) : root_(std::move(root)) {}

  [[nodiscard]] const std::filesystem::path& root() const noexcept { return root_; }
  [[nodiscard]] std::filesystem::path recipe() const { return root_ / "run.toml"; }
  // What `hedgerow evaluate --tasks` found: its user's, not the journal's.
  [[nodiscard]] std::filesystem::path task_scores() const { return root_ / "evaluate/tasks.json"; }
  // What each layer's return to softmax gives, by "layers" or "heads".
  [[nodiscard]] std::filesystem::path returns(const std::string& by) const {
    return root_ / ("evaluate/returns-" + by + ".json");
  }
  // The cluster file that the run was planned for, where there was one.
  [[nodiscard]] std::filesystem::path cluster() const { return root_ / "cluster.toml"; }
  // What it was planned to take when it began: coordinator/plan/recorded_plan.hpp.
  [[nodiscard]] std::filesystem::path plan() const { return root_ / "plan.json"; }
  [[nodiscard]] std::filesystem::path journal_directory() const { return root_ / "journal"; }
  [[nodiscard]] std::filesystem::path journal_segment(
      std::uint64_t term) const;  // journal/000007.jsonl
  [[nodiscard]] std::filesystem::path snapshot(
      std::uint64_t term) const;  // journal/000007.snapshot.json
  // What was measured: storage/history/history_file.hpp.
  [[nodiscard]] std::filesystem::path history_directory() const { return root_ / "history"; }
  // history/000007.history; of a term that has several, history/000007_2.history and so on, which
  // names sort behind it.
  [[nodiscard]] std::filesystem::path history_segment(std::uint64_t term, int part = 1) const;
  [[nodiscard]] std::filesystem::path coordinator_file() const {
    return root_ / "coordinator.json";
  }
  // Who makes the run ready (tokens) before there is a coordinator.
  [[nodiscard]] std::filesystem::path tokenize_stage_file() const {
    return root_ / "preparing.json";
  }
  [[nodiscard]] std::filesystem::path logs() const { return root_ / "logs"; }
  // The keys that 'hedgerow keygen' makes; what is in it: coordinator/wire/run_keys.hpp.
  [[nodiscard]] std::filesystem::path keys_directory() const { return root_ / "keys"; }
  // Who knows it may see the run's page: coordinator/web/access.hpp.
  [[nodiscard]] std::filesystem::path web_secret_file() const { return root_ / "web.secret"; }
  // What 'hedgerow submit' writes: job scripts, logs, the recipe that the run begins with. The name
  // alone is for scripts, to which the run is a variable, and for resolve().
  static constexpr const char* kSlurm = "slurm";
  [[nodiscard]] std::filesystem::path slurm_directory() const { return root_ / kSlurm; }
  // How ranks that others started get the finetune stage: coordinator/wire/stage_start.hpp.
  [[nodiscard]] std::filesystem::path stage_request_file() const {
    return root_ / "finetune.request.json";
  }
  [[nodiscard]] std::filesystem::path stage_start_file() const {
    return root_ / "finetune.start.json";
  }
  // While it is there, the run is asked to stop.
  [[nodiscard]] std::filesystem::path stop_file() const { return root_ / "stop"; }

  // Relative names, as the journal writes them.
  [[nodiscard]] static std::string tokens(
      const TokensOf& of);  // tokens/transfer.h5, tokens/evaluate-NAME.h5
  // Those that are there, whatever the recipe says now.
  [[nodiscard]] std::vector<std::string> existing_tokens() const;
  [[nodiscard]] static std::string hidden_shard(int boundary,
                                                int shard,
                                                FencingToken token);  // hidden/b0003/s00012.t41.h5
  // What finetune learns from: the teacher's top logits of a range of sequences.
  [[nodiscard]] static std::string logits(int piece, FencingToken token);  // logits/p00012.t41.h5
  [[nodiscard]] static bool is_logits(std::string_view name) { return name.starts_with("logits/"); }
  // The last of each piece that is there, whatever the journal says: for a finetune without it.
  [[nodiscard]] std::vector<std::string> existing_logits() const;
  [[nodiscard]] static std::string block_artifact(
      int block, FencingToken token);  // blocks/b0003/artifact.t41.safetensors
  [[nodiscard]] static std::string attempt_directory(FencingToken token);  // attempts/t41
  // attempts/t41/checkpoint.s8.<hash of the whole file>.safetensors: the name says its step and
  // what it must hold.
  [[nodiscard]] static std::string checkpoint(FencingToken token,
                                              std::int64_t step,
                                              const Hash128& hash);
  // Where several ranks hold a state (`stage` above 0), the file of one of them, which the
  // checkpoint names: attempts/t41/part.s8.p1.<hash>.safetensors.
  [[nodiscard]] static std::string checkpoint_part(FencingToken token,
                                                   std::int64_t step,
                                                   int stage,
                                                   const Hash128& hash);
  struct CheckpointName {
    std::int64_t step = 0;
    Hash128 hash;
  };
  // What such a name, without its directory, says; nullopt: it is of another form.
  [[nodiscard]] static std::optional<CheckpointName> parse_checkpoint(const std::string& base_name);
  // Where an attempt writes what is committed as `name`: below its own directory, under what stands
  // behind the token's folder in that name, or else under the file's own.
  [[nodiscard]] static std::string attempt_file(FencingToken token, const std::string& name);
  [[nodiscard]] static std::string student_directory(FencingToken token);  // student/t41
  [[nodiscard]] static std::string adapter_directory(FencingToken token);  // adapter/t41
  [[nodiscard]] static std::string evaluation(const std::string& subject,
                                              FencingToken token);  // evaluate/teacher.t41.json
  [[nodiscard]] static std::string evaluation_piece(
      const std::string& subject,
      int piece,
      FencingToken token);  // evaluate/teacher.p03.t41.json

  // weights/l0003.hash, weights/outer.hash for what lies outside the layers (-1): who writes them
  // is in storage/model/weight_hashes.hpp.
  [[nodiscard]] static std::string weight_hash(int layer_idx);

  // root / relative. Throws kUsage if the name is absolute, leaves the run directory ("..",
  // symbolic link out), means the directory itself, or cannot be a name. Code that writes a file of
  // the run, or reads one whose name came from outside, gets its path here.
  [[nodiscard]] std::filesystem::path resolve(const std::string& relative) const;

  // The fencing token in a file name of the forms above (".t41." or "/t41"), 0 if there is none. A
  // new term's first token exceeds every one seen in the journal and in file names.
  [[nodiscard]] static FencingToken token_in_name(const std::string& relative);

  // A directory of the forms above that holds files with tokens in their names and has none itself:
  // hidden/b0003, blocks/b0003.
  [[nodiscard]] static bool is_own_directory(const std::string& relative);

 private:
  std::filesystem::path root_;
};

}  // namespace hedgerow::storage
