// A run directory of a few kilobytes with a real journal and real files: three layers in two
// blocks, everything up to the assembled student committed, one finetune still waiting. What
// commands that read a run are tested on.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "coordinator/state/events.hpp"
#include "storage/files/file.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/recipe/recipe.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator::cli {

class SmallRun {
 public:
  SmallRun();

  [[nodiscard]] std::string directory() const { return layout.root().string(); }
  [[nodiscard]] static std::string student() { return storage::RunLayout::student_directory(4); }
  [[nodiscard]] static std::string shard() { return storage::RunLayout::hidden_shard(1, 0, 1); }

  void append(const std::vector<Event>& events) const;
  // Changes one byte of a file.
  void flip_byte(const std::string& name, std::uintmax_t offset) const;

  // Each writes a file of the run and gives its record.
  [[nodiscard]] storage::FileRecord write_shard() const;
  // The content does not matter here, only that it is a safetensors file.
  [[nodiscard]] storage::FileRecord write_maps(const std::string& name) const;
  [[nodiscard]] storage::FileRecord write_description() const;
  [[nodiscard]] storage::FileRecord write_provenance() const;

  tests::TemporaryDirectory scratch;
  storage::RunLayout layout;

 private:
  void transfer(std::vector<Event>& events,
                int block,
                std::uint64_t token,
                const std::vector<double>& mse) const;
  void write_recipe() const;
  void write_tokens() const;
  [[nodiscard]] std::filesystem::path path_for(const std::string& name) const;
  [[nodiscard]] storage::FileRecord record_of(const std::string& name) const;
};

}  // namespace hedgerow::coordinator::cli
