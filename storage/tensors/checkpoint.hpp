// Resumable state without pickle: a safetensors file of named tensors plus a JSON document of
// scalars (optimizer step, plateau, stopper, cursor, RNG), hashed, written under attempts/ and
// committed by the journal like everything else. The same format holds block artifacts and finetune
// checkpoints, keyed by parameter name, so that any mesh loads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "storage/base/dtype.hpp"
#include "storage/files/file_record.hpp"
#include "storage/files/run_layout.hpp"

namespace hedgerow::storage {

struct OwnedTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

struct Checkpoint {
  std::map<std::string, OwnedTensor> tensors;
  nlohmann::json state;  // object of finite numbers; "format" is set by the writer
};

// The checkpoint of `step` of the attempt that holds `token`, durably, under the name that says its
// step and its hash (RunLayout::checkpoint): a file that is not whole never has such a name, so a
// coordinator may go by it when its writer is dead. Same checkpoint, same bytes. Throws kExhausted
// (the partial file is removed), kInternal (a state that JSON cannot hold). `part`: the file of one
// of the ranks that hold the state together, under RunLayout::checkpoint_part; the checkpoint
// itself then names its parts.
inline constexpr int kWholeCheckpoint = -1;
FileRecord write_checkpoint(const RunLayout& layout,
                            FencingToken token,
                            std::int64_t step,
                            const Checkpoint& checkpoint,
                            int part = kWholeCheckpoint);
// Verifies size and hash first when `expected` has a non-zero size. Throws kCorrupt, kNotFound.
[[nodiscard]] Checkpoint read_checkpoint(const std::filesystem::path& path,
                                         const FileRecord& expected = {});

}  // namespace hedgerow::storage
