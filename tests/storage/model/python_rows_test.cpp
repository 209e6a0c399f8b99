// The rows of kernels/options/feature_maps.hpp and storage/model/architecture.cpp as an export's
// Python has them: these tests write the files with HEDGEROW_WRITE=1 in the environment, and else
// compare them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <string>

#include "kernels/options/attention_options.hpp"
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

constexpr const char* kOptionsHead =
    R"("""Every option of the hybrid, as kernels/options/attention_options.hpp has it and says what it means.

Written from there by tests/storage/model/python_rows_test.cpp (HEDGEROW_WRITE=1): not edited by hand.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class OptionRow(NamedTuple):
    default: Any
    least: float | None = None  # of a number
    most: float | None = None
    above_least: bool = False  # the least itself is not allowed
    of_window: bool = False  # 0 without a window
    within_window: bool = False  # at most window_size
    later: bool = False  # exports and operators of earlier builds lack it and mean the default


WINDOWS = ()";

std::string option_rows() {
  std::string text = kOptionsHead;
  for (const auto& window : kernels::kWindowLayouts)
    text += (&window == &kernels::kWindowLayouts.front() ? "\"" : ", \"") +
            std::string(window.word) + "\"";
  text += ")\n\nOPTIONS = {\n";
  const auto number = [](double value) {
    std::ostringstream out;
    out << std::setprecision(12) << value;
    return out.str();
  };
  const kernels::HybridOptions defaults;
  kernels::visit_options(
      defaults, [&](const char* key, const auto& value, const kernels::OptionRules& rules) {
        using Value = std::decay_t<decltype(value)>;
        std::string row;
        if constexpr (std::is_enum_v<Value>) {
          row = "\"" + std::string(to_string(value)) + "\"";
        } else if constexpr (std::is_same_v<Value, bool>) {
          row = python(value);
        } else {
          row = number(static_cast<double>(value)) + (std::is_integral_v<Value> ? "" : ".0");
        }
        if (rules.max > rules.min)
          row += ", least=" + number(rules.min) + ", most=" + number(rules.max);
        if (rules.above_min) row += ", above_least=True";
        if (!rules.without_window.empty()) row += ", of_window=True";
        if (rules.within_window) row += ", within_window=True";
        if (rules.later) row += ", later=True";
        text += "    \"" + std::string(key) + "\": OptionRow(" + row + "),\n";
      });
  return text + "}\n";
}

constexpr const char* kArchitecturesHead =
    R"("""Every family of teachers, as storage/model/architecture.hpp has it and says what it means; 0: none.

Written from there by tests/storage/model/python_rows_test.cpp (HEDGEROW_WRITE=1): not edited by hand.
"""

from __future__ import annotations

from typing import NamedTuple


class ArchitectureRow(NamedTuple):
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
  const auto whole = [](int value) { return std::to_string(value); };
  const auto each_field = [&](const auto& field) {
    field("num_key_value_heads", "int", &Architecture::num_key_value_heads, whole);
    field("head_dim", "int", &Architecture::head_dim, whole);
    field("bias", "str", &Architecture::bias, bias);
    field("reads_mlp_bias", "bool", &Architecture::reads_mlp_bias, python);
    field("ties_embeddings", "bool", &Architecture::ties_embeddings, python);
    field("rms_norm_eps", "float", &Architecture::rms_norm_eps, number);
    field("rope_theta", "float", &Architecture::rope_theta, number);
    field("reads_no_rope_layers", "bool", &Architecture::reads_no_rope_layers, python);
    field("sliding", "str", &Architecture::sliding, sliding);
    field("sliding_window", "int", &Architecture::sliding_window, whole);
    field("norm_place", "str", &Architecture::norm_place, place);
    field("qk_norm", "str", &Architecture::qk_norm, qk_norm);
  };
  std::string text = kArchitecturesHead;
  const Architecture plain{};
  each_field([&](std::string name, const char* type, auto member, const auto& told) {
    text += "    " + name + ": " + type + " = " + told(plain.*member) + "\n";
  });
  text += "\n\nARCHITECTURES = {\n";
  for (const Architecture& row : architectures()) {
    std::string fields;
    each_field([&](std::string name, const char* /*type*/, auto member, const auto& told) {
      if (row.*member == plain.*member) return;
      fields += (fields.empty() ? "" : ", ") + name + "=" + told(row.*member);
    });
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

TEST(PythonRows, OfOptionsAreThoseOfTheKernels) {
  expect_file("option_rows_hedgerow.py", option_rows());
}

TEST(PythonRows, OfFamiliesAreThoseOfTheModelReader) {
  expect_file("architecture_rows_hedgerow.py", architecture_rows());
}

}  // namespace
}  // namespace hedgerow::storage
