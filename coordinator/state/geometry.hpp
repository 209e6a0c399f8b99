// The shape of a run and what it is made from: fixed by its first event, the same ever after.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "coordinator/state/task_id.hpp"
#include "storage/files/file_record.hpp"
#include "storage/json/fields.hpp"

namespace hedgerow::coordinator {

// The shape of a run, fixed by its first term.
struct Geometry {
  int num_layers = 0;
  int layers_per_block = 1;
  int num_shards = 0;  // of every boundary
  int shards_per_capture = 1;
  std::int64_t sequences_per_shard = 0;
  std::uint64_t seed = 0;
  bool finetunes = false;
  // Files of the teacher's top logits, which finetune learns from; 0: none. From a boundary, piece
  // i is of the sequences of capture piece i and is computed from the last boundary; else of
  // sequences_per_logit_piece sequences of finetune's own text.
  int num_logit_pieces = 0;
  bool logits_from_boundary = false;
  std::int64_t sequences_per_logit_piece = 0;
  std::vector<int> untrained_blocks;  // all their layers stay softmax
  std::vector<Subject> evaluates;     // in order
  int num_evaluate_pieces = 0;        // of each; 0: one task evaluates all sequences
  bool operator==(const Geometry&) const = default;

  [[nodiscard]] int num_blocks() const {
    return (num_layers + layers_per_block - 1) / layers_per_block;
  }
  [[nodiscard]] int first_layer(int block) const { return block * layers_per_block; }
  [[nodiscard]] int layers_of(int block) const;
  [[nodiscard]] int num_pieces() const {
    return (num_shards + shards_per_capture - 1) / shards_per_capture;
  }
  [[nodiscard]] bool trains(int block) const;
  // The last boundary that some block trains on; 0 when only block 0 trains. Later ones are never
  // captured.
  [[nodiscard]] int last_boundary() const;
};

// The files that a run is made from, as they were when it began.
struct RunInputs {
  std::string teacher;                      // storage::ModelDirectory::fingerprint
  std::vector<storage::FileRecord> tokens;  // those that exist of tokens/*.h5
  bool operator==(const RunInputs&) const = default;
};

// The journal's object "logits" of a geometry; absent without any.
struct LogitPieces {
  int pieces = 0;
  bool from_boundary = false;
  std::int64_t sequences_per_piece = 0;
};
template <typename Visitor, storage::Is<LogitPieces> T>
void visit_fields(Visitor& visitor, T& logits) {
  visitor.field("pieces", logits.pieces);
  visitor.field("from_boundary", logits.from_boundary);
  visitor.field("sequences_per_piece", logits.sequences_per_piece);
}
// Throws kCorrupt for a run that cannot be: an empty one, or more than a disk holds.
void check_geometry(const Geometry& geometry);
template <typename Visitor, storage::Is<Geometry> T>
void visit_fields(Visitor& visitor, T& g) {
  visitor.field("num_layers", g.num_layers);
  visitor.field("layers_per_block", g.layers_per_block);
  visitor.field("num_shards", g.num_shards);
  visitor.field("shards_per_capture", g.shards_per_capture);
  visitor.field("sequences_per_shard", g.sequences_per_shard);
  visitor.field("seed", g.seed);
  visitor.field("finetunes", g.finetunes);
  visitor.field("untrained_blocks", g.untrained_blocks);
  visitor.field("evaluates", g.evaluates);
  std::optional<int> evaluate_pieces;  // absent without any
  if (g.num_evaluate_pieces > 0) evaluate_pieces = g.num_evaluate_pieces;
  visitor.field("evaluate_pieces", evaluate_pieces);
  std::optional<LogitPieces> logits;
  if (g.num_logit_pieces > 0)
    logits = {g.num_logit_pieces, g.logits_from_boundary, g.sequences_per_logit_piece};
  visitor.field("logits", logits);
  if constexpr (!std::is_const_v<T>) {
    g.num_evaluate_pieces = evaluate_pieces.value_or(0);
    if (logits) {
      g.num_logit_pieces = logits->pieces;
      g.logits_from_boundary = logits->from_boundary;
      g.sequences_per_logit_piece = logits->sequences_per_piece;
    }
    check_geometry(g);
  }
}
template <typename Visitor, storage::Is<RunInputs> T>
void visit_fields(Visitor& visitor, T& inputs) {
  visitor.field("teacher", inputs.teacher);
  visitor.field("tokens", inputs.tokens);
}

}  // namespace hedgerow::coordinator
