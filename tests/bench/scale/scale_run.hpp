// A run of many tasks, for the coordinator alone: its journal says that most of them are done, its
// shards are a few bytes long, and nobody ever computes anything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "storage/files/run_layout.hpp"
#include "storage/shards/hidden_shard.hpp"

namespace hedgerow::bench {

struct ScaleRun {
  int num_tasks = 100'000;  // captures, in ten boundaries
  int num_done = 70'000;
  bool has_keys = false;
};

// run.toml, a journal of one term whose first captures are done, keys if wanted.
void make_scale_run(const storage::RunLayout& layout, const ScaleRun& run);

// The production coordinator over that directory, on real sockets, until it is killed.
[[noreturn]] void coordinate(const storage::RunLayout& layout);

// As long as production's, because the coordinator keeps them: a worker's name and device, and what
// it reports of a capture.
[[nodiscard]] std::string worker_name(int number);
inline constexpr const char* kDevice = "NVIDIA H100 80GB HBM3";
[[nodiscard]] nlohmann::json capture_result();

// What a worker leaves behind for a shard, under attempts/t<token>/.
[[nodiscard]] storage::FileRecord write_shard(const storage::RunLayout& layout,
                                              std::uint64_t token,
                                              const std::string& name);

}  // namespace hedgerow::bench
