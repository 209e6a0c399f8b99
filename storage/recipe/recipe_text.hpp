// Values of a recipe as TOML writes them. Private to storage/recipe/recipe*.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "storage/model/attention_spec.hpp"
#include "storage/recipe/recipe_sections.hpp"

namespace hedgerow::storage {

// Before the hash in the first line of a run.toml.
inline constexpr std::string_view kRunHashLine = "# XXH3-128 of the lines below: ";

[[nodiscard]] std::string toml_text(bool value);
[[nodiscard]] std::string toml_text(int value);
[[nodiscard]] std::string toml_text(std::uint64_t value);
[[nodiscard]] std::string toml_text(
    double value);  // shortest digits that read back as the same double
[[nodiscard]] std::string toml_text(std::string_view value);  // quoted and escaped
[[nodiscard]] std::string toml_text(const std::string& value);
[[nodiscard]] std::string toml_text(FeatureMapKind value);
[[nodiscard]] std::string toml_text(FeatureMapStart value);
[[nodiscard]] std::string toml_text(WindowLayout value);
[[nodiscard]] std::string toml_text(KeyMaps value);
[[nodiscard]] std::string toml_text(AddBos value);
[[nodiscard]] std::string toml_text(const std::vector<int>& values);
[[nodiscard]] std::string toml_text(const std::vector<std::string>& values);
[[nodiscard]] std::string toml_text(const DataSource& source);  // an inline table
[[nodiscard]] std::string toml_text(const std::vector<DataSource>& sources);
[[nodiscard]] std::string toml_text(const NamedText& text);
[[nodiscard]] std::string toml_text(const std::vector<NamedText>& texts);

}  // namespace hedgerow::storage
