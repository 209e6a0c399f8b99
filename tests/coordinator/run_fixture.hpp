// A run directory with a journal and no model: what the dispatcher, the assembler and the
// coordinator need, with files small enough to write by hand.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "coordinator/serve/assembler.hpp"
#include "coordinator/state/state.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/journal/journal.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/recipe.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator {

class RunFixture : public ::testing::Test {
 protected:
  RunFixture();

  // The state that the journal on disk gives.
  [[nodiscard]] State replayed() const;
  // Starts the next term.
  [[nodiscard]] storage::Journal open_journal() const;
  // Records of one type in the journal on disk.
  [[nodiscard]] int num_records(const std::string& type) const;

  // Writes attempts/t<token>/<base name of `name`>.
  storage::FileRecord write_attempt(std::uint64_t token,
                                    const std::string& name,
                                    const std::string& text) const;
  // An artifact as the worker writes it, for the layers of a block.
  storage::FileRecord write_artifact(int block, std::uint64_t token) const;
  // `except`: this tensor is left out; `surplus`: added; `reshaped`: has one column more.
  struct Defect {
    std::string except, surplus, reshaped;
  };
  storage::FileRecord write_artifact(int block, std::uint64_t token, const Defect& defect) const;
  [[nodiscard]] AssemblyInput assembly() const {
    return {recipe_, model_, "/models/tiny", "fingerprint"};
  }

  tests::TemporaryDirectory directory_;
  storage::RunLayout layout_;
  storage::Recipe recipe_;
  storage::ModelConfig model_;
  Geometry geometry_;
};

}  // namespace hedgerow::coordinator
