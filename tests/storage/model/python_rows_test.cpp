// The rows of kernels/options/feature_maps.hpp and storage/model/architecture.cpp as an export's
// Python has them: these tests write the files with HEDGEROW_WRITE=1 in the environment, and else
// compare them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "kernels/options/feature_maps.hpp"
#include "storage/model/architecture.hpp"

namespace hedgerow::storage {
namespace {

using kernels::FeatureMapRow;

constexpr const char* kMapsHead =
    R"("""Every feature map, as kernels/options/feature_maps.hpp has it and says what it means.

Written from there by tests/storage/model/python_rows_test.cpp (HEDGEROW_WRITE=1): not edited by hand.
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

std::string feature_map_rows() {
  std::string text = kMapsHead;
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

constexpr const char* kArchitecturesHead =
    R"("""Every family of teachers, as storage/model/architecture.hpp has it and says what it means; 0: none.

Written from there by tests/storage/model/python_rows_test.cpp (HEDGEROW_WRITE=1): not edited by hand.
"""

from __future__ import annotations

from typing import NamedTuple


class ArchitectureRow(NamedTuple):
    num_key_value_heads: int = 0
    head_dim: int = 0
    bias: str = "none"
    reads_mlp_bias: bool = False
    ties_embeddings: bool = False
    rms_norm_eps: float = 1e-06
    rope_theta: float = 10000.0
    reads_no_rope_layers: bool = False
    sliding: str = "never"
    sliding_window: int = 0
    norm_place: str = "before"
    qk_norm: str = "none"


ARCHITECTURES = {
)";

std::string architecture_rows() {
  using Bias = Architecture::Bias;
  using Sliding = Architecture::Sliding;
  const auto quoted = [](const char* word) { return '"' + std::string(word) + '"'; };
  const auto bias = [&](Bias of) {
    return quoted(of == Bias::kNone ? "none" : of == Bias::kQkv ? "qkv" : "by_key");
  };
  const auto sliding = [&](Sliding of) {
    return quoted(of == Sliding::kNever       ? "never"
                  : of == Sliding::kAllLayers ? "all_layers"
                  : of == Sliding::kByLayer   ? "by_layer"
                                              : "without_rope");
  };
  const auto place = [&](NormPlace of) {
    return quoted(of == NormPlace::kBefore ? "before" : "after");
  };
  const auto qk_norm = [&](QkNorm of) {
    return quoted(of == QkNorm::kNone ? "none" : of == QkNorm::kHead ? "head" : "width");
  };
  const auto number = [](double value) {
    std::ostringstream text;
    text << value;
    const bool is_whole = text.str().find_first_of(".e") == std::string::npos;
    return text.str() + (is_whole ? ".0" : "");
  };
  std::string text = kArchitecturesHead;
  const Architecture plain{};
  for (const Architecture& row : architectures()) {
    std::string fields;
    const auto add = [&](const char* name, const auto& value, const auto& usual, const auto& told) {
      if (value == usual) return;
      fields += (fields.empty() ? "" : ", ") + std::string(name) + "=" + std::string(told(value));
    };
    const auto whole = [](int value) { return std::to_string(value); };
    add("num_key_value_heads", row.num_key_value_heads, plain.num_key_value_heads, whole);
    add("head_dim", row.head_dim, plain.head_dim, whole);
    add("bias", row.bias, plain.bias, bias);
    add("reads_mlp_bias", row.reads_mlp_bias, plain.reads_mlp_bias, python);
    add("ties_embeddings", row.ties_embeddings, plain.ties_embeddings, python);
    add("rms_norm_eps", row.rms_norm_eps, plain.rms_norm_eps, number);
    add("rope_theta", row.rope_theta, plain.rope_theta, number);
    add("reads_no_rope_layers", row.reads_no_rope_layers, plain.reads_no_rope_layers, python);
    add("sliding", row.sliding, plain.sliding, sliding);
    add("sliding_window", row.sliding_window, plain.sliding_window, whole);
    add("norm_place", row.norm_place, plain.norm_place, place);
    add("qk_norm", row.qk_norm, plain.qk_norm, qk_norm);
    text += "    \"" + std::string(row.model_type) + "\": ArchitectureRow(" + fields + "),\n";
  }
  return text + "}\n";
}

void expect_file(const std::string& name, const std::string& expected) {
  const std::string path = HEDGEROW_SOURCE_DIR "/deploy/huggingface/modeling/" + name;
  if (std::getenv("HEDGEROW_WRITE") != nullptr) std::ofstream(path) << expected;
  std::stringstream found;
  found << std::ifstream(path).rdbuf();
  EXPECT_EQ(found.str(), expected)
      << "run this test with HEDGEROW_WRITE=1 in the environment, which writes " << path;
}

TEST(PythonRows, OfFeatureMapsAreThoseOfTheKernels) {
  expect_file("feature_map_rows_hedgerow.py", feature_map_rows());
}

TEST(PythonRows, OfFamiliesAreThoseOfTheModelReader) {
  expect_file("architecture_rows_hedgerow.py", architecture_rows());
}

}  // namespace
}  // namespace hedgerow::storage
