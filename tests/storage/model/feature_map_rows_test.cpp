// The rows of kernels/options/feature_maps.hpp as an export's Python has them: this test writes the
// file with HEDGEROW_WRITE=1 in the environment, and else compares it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "kernels/options/feature_maps.hpp"

namespace hedgerow::storage {
namespace {

using kernels::FeatureMapRow;

constexpr const char* kFile =
    HEDGEROW_SOURCE_DIR "/deploy/huggingface/modeling/feature_map_rows_hedgerow.py";

constexpr const char* kHead =
    R"("""Every feature map, as kernels/options/feature_maps.hpp has it and says what it means.

Written from there by tests/storage/model/feature_map_rows_test.cpp (HEDGEROW_WRITE=1): not edited by hand.
"""

from __future__ import annotations

from typing import NamedTuple


class FeatureMapRow(NamedTuple):
    activation: str
)";

struct Flag {
  const char* name;
  bool FeatureMapRow::*value;
};
constexpr Flag kFlags[] = {{"projection", &FeatureMapRow::projection},
                           {"negation", &FeatureMapRow::negation},
                           {"temperature", &FeatureMapRow::temperature},
                           {"clamped", &FeatureMapRow::clamped},
                           {"positive", &FeatureMapRow::positive},
                           {"one_draw", &FeatureMapRow::one_draw},
                           {"series", &FeatureMapRow::series}};

const char* python(bool value) { return value ? "True" : "False"; }

std::string python_rows() {
  std::string text = kHead;
  const FeatureMapRow plain{};
  for (const Flag& flag : kFlags)
    text += std::string("    ") + flag.name + ": bool = " + python(plain.*flag.value) + "\n";
  text += "\n\nFEATURE_MAPS = {\n";
  for (const FeatureMapRow& row : kernels::kFeatureMaps) {
    text += "    \"" + std::string(row.word) + "\": FeatureMapRow(\"" +
            std::string(kernels::row_of(row.activation).word) + "\"";
    for (const Flag& flag : kFlags) {
      if (row.*flag.value != plain.*flag.value)
        text += std::string(", ") + flag.name + "=" + python(row.*flag.value);
    }
    text += "),\n";
  }
  return text + "}\n";
}

TEST(FeatureMapRows, OfTheExportsPythonAreThoseOfTheKernels) {
  if (std::getenv("HEDGEROW_WRITE") != nullptr) std::ofstream(kFile) << python_rows();
  std::stringstream found;
  found << std::ifstream(kFile).rdbuf();
  EXPECT_EQ(found.str(), python_rows())
      << "run this test with HEDGEROW_WRITE=1 in the environment, which writes " << kFile;
}

}  // namespace
}  // namespace hedgerow::storage
