// Checkpoints of the finetune stage, written while it trains on. Each stage of the mesh has a part
// (its first replica writes it); that of rank 0 names the others with their hashes, and is written
// and published last, once all ranks have heard that the parts lie on disk. Who meets whom is said
// in the word that the ranks exchange before each step. Called on the computing thread of every
// rank.
#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "storage/recipe/mesh.hpp"
#include "storage/tensors/checkpoint.hpp"
#include "worker/comm/communicator.hpp"
#include "worker/task/attempt_files.hpp"

namespace hedgerow::worker {

class StageCheckpoint {
 public:
  // All outlive it.
  StageCheckpoint(const storage::RunLayout& layout,
                  storage::FencingToken token,
                  const storage::Mesh& mesh,
                  Communicator& communicator,
                  AttemptFiles& files);
  ~StageCheckpoint();

  // Begins one of this rank's state; rank 0's has the task's besides. Waits for the one before.
  // Collective.
  void begin(std::int64_t step, storage::Checkpoint state);
  [[nodiscard]] bool has(std::int64_t step) const;
  // Before each step, with whether this rank was told to stop. Collective. Whether any was.
  bool meet(bool stops);
  // Until the one that is under way is published. Collective.
  void finish();
  // The same on rank 0 without the others, which are given up: of one stage.
  void finish_alone();
  // All stages' states of this step as one, on rank 0 alone. Collective.
  [[nodiscard]] storage::Checkpoint gather(std::int64_t step, storage::Checkpoint state);

 private:
  struct Part {
    std::int64_t step = -1;
    std::uint64_t size = 0;
    storage::Hash128 hash{};
  };
  // What a rank says before a step.
  struct Word {
    std::int64_t stops = 0;
    Part written;
  };
  [[nodiscard]] bool writes() const { return mesh_.data_index(communicator_.rank()) == 0; }
  [[nodiscard]] bool is_root() const { return communicator_.rank() == 0; }
  [[nodiscard]] int stage() const { return mesh_.stage(communicator_.rank()); }
  [[nodiscard]] std::future<storage::FileRecord> write(storage::Checkpoint state);
  [[nodiscard]] Word own_word(bool stops, bool waits);
  [[nodiscard]] std::vector<Word> exchange(const Word& own);
  // On rank 0.
  void go_on(const std::vector<Word>& words);
  void publish_if_written(bool waits);
  [[nodiscard]] std::string part_name(int of_stage, const Part& part) const;

  const storage::RunLayout& layout_;
  storage::FencingToken token_;
  const storage::Mesh& mesh_;
  Communicator& communicator_;
  AttemptFiles& files_;

  std::int64_t step_ = -1;                    // of the newest that was begun
  std::optional<storage::Checkpoint> state_;  // rank 0's, until the parts are there
  std::future<storage::FileRecord> file_;     // of this rank, while it is written
  Part written_;                              // of this rank
  std::vector<std::string> parts_;            // of the one that rank 0 writes
};

// Adds the tensors of the parts that a checkpoint names. Throws kCorrupt, kNotFound, and what JSON
// throws.
void read_parts(const storage::RunLayout& layout, storage::Checkpoint& checkpoint);

}  // namespace hedgerow::worker
