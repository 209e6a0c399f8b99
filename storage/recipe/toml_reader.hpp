// The reading visitor of recipe_fields.hpp and cluster_file.cpp over toml++'s tree: takes what the
// file has for each field that is visited, and reports together all that is wrong with it: wrong
// types, values out of range, and keys that were not visited, each with the one that was probably
// meant. Private to storage/recipe/*.cpp.
#pragma once

// A wrong file is no bug of ours: without NDEBUG toml++ 3.3 asserts what its parser goes on to
// refuse, as a key that begins with a control character.
#define TOML_ASSERT(condition) static_assert(true)
#include <toml++/toml.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "storage/base/error.hpp"
#include "storage/model/attention_spec.hpp"
#include "storage/recipe/recipe_fields.hpp"

namespace hedgerow::storage {

inline void word_to(std::string_view word, FeatureMapKind& value) {
  value = feature_map_kind_from_string(word);
}
inline void word_to(std::string_view word, FeatureMapStart& value) {
  value = feature_map_start_from_string(word);
}
inline void word_to(std::string_view word, WindowLayout& value) {
  value = window_layout_from_string(word);
}
inline void word_to(std::string_view word, KeyMaps& value) { value = key_maps_from_string(word); }

class TomlReader {
 public:
  TomlReader(const toml::table& root, RecipeProblems& problems)
      : root_(root), table_(&root), problems_(problems) {}

  // The fields that follow are those of [name], as "transfer" or "data.transfer"; where the file
  // has no such table, they keep their values. `comment` is for the writing visitor.
  void section(std::string_view name, std::string_view comment);

  // Reads section.key into `value` and holds it to `rules`; without the key it stays as it is.
  template <typename T>
  void field(std::string_view key, T& value, const FieldRules& rules) {
    const std::string name = section_ + std::string(key);
    const toml::node* node = take(key, name);
    if (node == nullptr) return;
    read(*node, name, value);
    check_field(name, value, rules, problems_);
  }

  // Reads section.key, a list of tables of the form `form`; visit(entry, reader) reads the fields
  // of one, whose keys are known as key[i].field.
  template <typename Reader, typename Entry, typename Visit>
  void tables(const char* key,
              const std::string& form,
              std::vector<Entry>& entries,
              const Visit& visit) {
    const std::string name = section_ + key;
    const toml::node* node = take(key, name);
    if (node == nullptr) return;
    const toml::array* list = node->as_array();
    if (list == nullptr) return wrong_type(*node, name, "a list of tables, as [" + form + "]");
    entries.clear();
    for (const toml::node& entry : *list) {
      const std::string own = name + "[" + std::to_string(entries.size()) + "]";
      Entry& made = entries.emplace_back();
      if (!entry.is_table()) {
        wrong_type(entry, own, "a table, as " + form);
        continue;
      }
      Reader reader(*entry.as_table(), problems_);
      reader.section_ = reader.prefix_ = own + ".";
      visit(made, reader);
      reader.report_unknown(*entry.as_table(), reader.prefix_);
    }
  }

  // The file's own key of this name is read elsewhere.
  void known(const std::string& name) { known_.push_back(name); }
  // When all fields have been visited: each key of the file that none of them took is a problem.
  void report_unknown() { report_unknown(root_, ""); }

 protected:
  // What the section has under this key, which is known from now on; nullptr: nothing.
  const toml::node* take(std::string_view key, const std::string& name);
  void wrong_type(const toml::node& node, const std::string& name, const std::string& expected);
  void read(const toml::node& node, const std::string& name, bool& value);
  void read(const toml::node& node, const std::string& name, AddBos& value);
  void read(const toml::node& node, const std::string& name, SoftmaxLayers& value);
  void read(const toml::node& node, const std::string& name, double& value);
  void read(const toml::node& node, const std::string& name, int& value);
  void read(const toml::node& node, const std::string& name, std::int64_t& value);
  void read(const toml::node& node, const std::string& name, std::uint64_t& value);
  void read(const toml::node& node, const std::string& name, std::string& value);
  // Words of an enum, by its word_to() above.
  template <typename Enum>
  requires std::is_enum_v<Enum>
  void read(const toml::node& node, const std::string& name, Enum& value) {
    if (!node.is_string()) return wrong_type(node, name, "a string");
    try {
      word_to(**node.as_string(), value);
    } catch (const Error& error) {
      problems_.add_sentence(name, error.what());
    }
  }
  template <typename T>
  void read(const toml::node& node, const std::string& name, std::vector<T>& values) {
    if (!node.is_array()) return wrong_type(node, name, "a list");
    values.clear();
    for (const toml::node& entry : *node.as_array()) {
      T value{};
      read(entry, name, value);
      values.push_back(value);
    }
  }
  void report_unknown(const toml::table& table, const std::string& prefix);

  const toml::table& root_;
  const toml::table* table_;
  RecipeProblems& problems_;
  std::string section_;
  std::string prefix_{};  // of an entry of tables(): names stand inside it

 private:
  [[nodiscard]] std::string suggestion(const std::string& name) const;

  std::vector<std::string> known_;
  std::vector<std::string> sections_;
};

// The text of a recipe or a cluster file. Throws kUsage, also for one over a MiB.
[[nodiscard]] std::string read_toml(const std::filesystem::path& path);
// Throws kUsage with the place where the text is no TOML. `name` is the file's, for messages.
[[nodiscard]] toml::table parse_toml(const std::string& text, const std::string& name);

}  // namespace hedgerow::storage
