// Strict assembly of the student: the artifacts of all blocks become one file by copying bytes, and
// every tensor is accounted for. Works without LibTorch, in the coordinator. A missing, surplus,
// misshaped or stale tensor is an error that names it; nothing is guessed or padded.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/state/state.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/model/weight_hashes.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator {

struct AssemblyInput {
  const storage::Recipe& recipe;
  const storage::ModelConfig& model;
  std::string teacher_path;
  std::string teacher_fingerprint;
};

// The hashes of the teacher's layers that the run has read by the time it assembles, whatever else
// it did; empty if one is missing (a run that an older build began).
[[nodiscard]] storage::WeightHashes teacher_weights(const storage::RunLayout& layout,
                                                    const Geometry& geometry);

// Thrown by assemble when an artifact is damaged, so that the caller can journal it as lost.
class DamagedArtifact : public storage::Error {
 public:
  DamagedArtifact(std::string name, const std::string& message)
      : Error(storage::ErrorKind::kCorrupt, message), name_(std::move(name)) {}
  [[nodiscard]] const std::string& name() const noexcept {
    return name_;
  }  // as the journal calls it

 private:
  std::string name_;
};

// The tensors that a layer's trained attention consists of, with their shapes (LoLCATs key names,
// all fp32).
[[nodiscard]] std::vector<storage::TensorShape> layer_map_tensors(
    const storage::AttentionSpec& attention, const storage::ModelConfig& model, int layer_idx);

// Writes feature_maps.safetensors, hedgerow.json and provenance.json into attempts/t<token>/ and
// returns their records under the final names. Equal artifacts give equal bytes of the first two,
// whatever attempts they took. Needs all transfers done. Throws DamagedArtifact, kExhausted,
// kInternal.
[[nodiscard]] std::vector<storage::FileRecord> assemble_student(const storage::RunLayout& layout,
                                                                const State& state,
                                                                const AssemblyInput& input,
                                                                std::uint64_t token);

}  // namespace hedgerow::coordinator
