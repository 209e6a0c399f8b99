// The commit protocol's file half: an attempt's file becomes the committed one by rename, under the
// name that carries its fencing token, after the token was checked and before the journal record is
// written. Idempotent: a crash between rename and record leaves the final name without a record,
// and the repeated message finds the file there by size and hash. A late rename is harmless,
// because no other attempt writes that name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/state/events.hpp"
#include "coordinator/state/state.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/journal/disk.hpp"

namespace hedgerow::coordinator {

// attempts/t<token>/<base name> -> file.name, durably. Throws kCorrupt (another size or hash than
// announced), kNotFound (neither name exists), kExhausted, kUnavailable.
void commit_file(const storage::RunLayout& layout,
                 std::uint64_t token,
                 const storage::FileRecord& file,
                 storage::Disk& disk = storage::os_disk());

// A file that stays under attempts/: checks that its name does and that it is there. Throws
// kCorrupt, kNotFound.
void check_attempt_file(const storage::RunLayout& layout,
                        std::uint64_t token,
                        const storage::FileRecord& file,
                        const storage::Disk& disk = storage::os_disk());

struct FoundCheckpoint {
  std::int64_t step = 0;
  storage::FileRecord file;
};
// The newest checkpoint under attempts/t<token>/, by the names alone (RunLayout::checkpoint): its
// worker may not have lived to announce it. nullopt: there is none. Throws kUnavailable.
[[nodiscard]] std::optional<FoundCheckpoint> newest_checkpoint(
    const storage::RunLayout& layout,
    std::uint64_t token,
    const storage::Disk& disk = storage::os_disk());

// The final name of a capture's shard under `token`; a worker's name must be that, or one of its
// kind's outputs, so no path of a message ever leads elsewhere.
[[nodiscard]] std::string shard_name(const TaskId& id, int shard, std::uint64_t token);
// Whether a task is done with these: all outputs of its kind (task_kinds), in any order, and
// perhaps the optional ones.
[[nodiscard]] bool are_outputs(const TaskId& id,
                               std::uint64_t token,
                               const std::vector<storage::FileRecord>& files);

// Deletes the files of dropped shards that still exist: those of one boundary after its record,
// all (0) after a restart.
void delete_dropped_shards(const storage::RunLayout& layout,
                           const State& state,
                           int boundary = 0,
                           storage::Disk& disk = storage::os_disk());
void delete_dropped_logits(const storage::RunLayout& layout,
                           const State& state,
                           storage::Disk& disk = storage::os_disk());

// The largest fencing token in any file name under attempts/, hidden/, blocks/, student/, adapter/
// and evaluate/: a new term's first token exceeds it, whatever the journal lost.
[[nodiscard]] std::uint64_t largest_token_on_disk(const storage::RunLayout& layout,
                                                  const storage::Disk& disk = storage::os_disk());

}  // namespace hedgerow::coordinator
