// The writing and comparing visitors of recipe_fields.hpp.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <span>

#include "storage/base/error.hpp"
#include "storage/files/hash.hpp"
#include "storage/recipe/recipe_fields.hpp"

namespace hedgerow::storage {
namespace {

constexpr std::size_t kCommentColumn = 40;
constexpr unsigned char kDelete = 0x7F;
// In the journal it is one record, of at most 1 MiB with its quotes and line ends escaped.
constexpr std::size_t kMaxRunRecipeBytes = 768 << 10;

template <typename T>
std::string list_text(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) text += (text.size() > 1 ? ", " : "") + toml_text(value);
  return text + "]";
}

// key = value as strings, under the dotted name.
struct FieldText {
  std::string name;
  std::string text;
  bool safe_to_change = false;
};

class InlineTable {
 public:
  template <typename T>
  void field(std::string_view key, const T& value, const FieldRules&) {
    if (value == T{}) return;
    text_ += (text_.empty() ? "{ " : ", ") + std::string(key) + " = " + toml_text(value);
  }
  [[nodiscard]] std::string text() const { return text_.empty() ? "{}" : text_ + " }"; }

 private:
  std::string text_;
};

std::string variants_text(const Recipe& recipe);

class Writer {
 public:
  void section(std::string_view name, std::string_view comment) {
    text_ += "\n";
    if (!comment.empty()) text_ += "# " + std::string(comment) + "\n";
    text_ += "[" + std::string(name) + "]\n";
  }

  template <typename T>
  void field(std::string_view key, const T& value, const FieldRules& rules) {
    std::string line = std::string(key) + " = " + toml_text(value);
    if (!rules.comment.empty()) {
      line.resize(std::max(line.size() + 1, kCommentColumn), ' ');
      line += "# " + std::string(rules.comment);
    }
    text_ += line + "\n";
  }

  void sources(const std::vector<DataSource>& sources) {
    text_ += "sources = [\n";
    for (const DataSource& source : sources) text_ += "  " + toml_text(source) + ",\n";
    text_ += "]\n";
  }
  void texts(const std::vector<NamedText>& texts) {
    text_ += "texts = [  # evaluated too, each whole: { name = \"...\", path = \"...\" }\n";
    for (const NamedText& text : texts) text_ += "  " + toml_text(text) + ",\n";
    text_ += "]\n";
  }

  void variants(const Recipe& recipe) { text_ += variants_text(recipe); }

  template <typename Data>
  void inherit(const Data&, const Data&) {}

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class Collector {
 public:
  void variants(const Recipe& recipe) {
    fields_.push_back({.name = "variants", .text = variants_text(recipe)});
  }
  void section(std::string_view name, std::string_view) { section_ = std::string(name) + "."; }

  template <typename T>
  void field(std::string_view key, const T& value, const FieldRules& rules) {
    fields_.push_back({.name = section_ + std::string(key),
                       .text = toml_text(value),
                       .safe_to_change = rules.safe_to_change});
  }
  void sources(const std::vector<DataSource>& sources) { field("sources", sources, {""}); }
  void texts(const std::vector<NamedText>& texts) { field("texts", texts, {""}); }

  template <typename Data>
  void inherit(const Data&, const Data&) {}

  [[nodiscard]] const std::vector<FieldText>& fields() const { return fields_; }

 private:
  std::string section_;
  std::vector<FieldText> fields_;
};

// [[variants]], each with what it has otherwise than the recipe.
std::string variants_text(const Recipe& recipe) {
  Collector own;
  const Variant same{.name = {}, .attention = recipe.attention, .transfer = recipe.transfer};
  visit_variant(same, own);
  std::string text;
  for (const Variant& variant : recipe.variants) {
    Collector other;
    visit_variant(variant, other);
    text += "\n[[variants]]\n";
    for (std::size_t i = 0; i < own.fields().size(); ++i) {
      const FieldText& field = other.fields()[i];
      if (field.text != own.fields()[i].text || field.name == "name")
        text += field.name + " = " + field.text + "\n";
    }
  }
  return text;
}

}  // namespace

std::string toml_text(bool value) { return value ? "true" : "false"; }
std::string toml_text(AddBos value) {
  return value == AddBos::kAuto ? "\"auto\"" : toml_text(value == AddBos::kYes);
}
std::string toml_text(int value) { return std::to_string(value); }
std::string toml_text(std::int64_t value) { return std::to_string(value); }
std::string toml_text(std::uint64_t value) { return std::to_string(value); }

std::string toml_text(double value) {
  std::array<char, 64> digits{};
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  std::string text(digits.data(), result.ptr);
  // A TOML float needs a point or an exponent to be one.
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string toml_text(std::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text += std::string("\\") + c;
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else if (byte < ' ' || byte == kDelete) {
      std::array<char, 8> escaped{};
      std::snprintf(escaped.data(), escaped.size(), "\\u%04x", byte);
      text += escaped.data();
    } else {
      text += c;
    }
  }
  return text + "\"";
}

std::string toml_text(const std::string& value) { return toml_text(std::string_view(value)); }
std::string toml_text(FeatureMapKind value) { return toml_text(to_string(value)); }
std::string toml_text(FeatureMapStart value) { return toml_text(to_string(value)); }
std::string toml_text(WindowLayout value) { return toml_text(to_string(value)); }
std::string toml_text(KeyMaps value) { return toml_text(to_string(value)); }
std::string toml_text(const std::vector<int>& values) { return list_text(values); }
std::string toml_text(const SoftmaxLayers& value) {
  if (value.uniform > 0)
    return toml_text(std::string(SoftmaxLayers::kUniform) + std::to_string(value.uniform));
  return value.all ? "\"all\"" : toml_text(value.layers);
}
std::string toml_text(const std::vector<std::string>& values) { return list_text(values); }
std::string toml_text(const std::vector<DataSource>& sources) { return list_text(sources); }
std::string toml_text(const std::vector<NamedText>& texts) { return list_text(texts); }

std::string toml_text(const DataSource& source) {
  InlineTable visitor;
  visit_source(source, visitor);
  return visitor.text();
}

std::string toml_text(const NamedText& text) {
  InlineTable visitor;
  visit_text(text, visitor);
  return visitor.text();
}

std::string Recipe::to_toml() const {
  Writer writer;
  visit_settings(*this, writer);
  writer.variants(*this);
  // made_by names the build that resolved a run's recipe; a recipe without a run has none.
  if (made_by != MadeBySection{}) visit_made_by(*this, writer);
  return "# A hedgerow recipe. Keys left out keep their defaults; unknown keys are errors.\n" +
         writer.text();
}

std::string Recipe::to_run_toml() const {
  const std::string text = to_toml();
  if (text.size() > kMaxRunRecipeBytes) {
    throw Error(ErrorKind::kUsage,
                "the recipe with every default written out has " + std::to_string(text.size()) +
                    " bytes, at most " + std::to_string(kMaxRunRecipeBytes) +
                    " are recorded; name fewer or longer sources");
  }
  return std::string(kRunHashLine) + hash128(std::as_bytes(std::span(text))).hex() + "\n" + text;
}

RecipeDifference difference(const Recipe& before, const Recipe& after) {
  Collector old_fields;
  Collector new_fields;
  visit_recipe(before, old_fields);
  visit_recipe(after, new_fields);
  RecipeDifference result;
  for (std::size_t i = 0; i < old_fields.fields().size(); ++i) {
    const FieldText& was = old_fields.fields()[i];
    const FieldText& is = new_fields.fields()[i];
    if (was.text == is.text) continue;
    // More steps go on from the last checkpoint; fewer would undo steps that were taken, and a
    // schedule over all steps gave those that were taken their rate.
    const std::string& schedule = before.finetune.schedule;
    const bool grows =
        was.name == "finetune.max_steps" && after.finetune.max_steps > before.finetune.max_steps;
    const bool is_spanned = schedule == "cosine" || schedule == "linear";
    // Where finetune has its own text, logits are captured of what the first number of steps
    // visits.
    const bool limits_logits =
        before.finetune.learns_from_teacher() && !(before.data_finetune == before.data_transfer);
    std::string why;
    if (grows && is_spanned) {
      why = " (finetune.schedule = \"" + schedule + "\" spans them: steps taken had another rate)";
    } else if (grows && limits_logits) {
      why = " (the teacher's logits are of the sequences that the first number of steps visits)";
    }
    const bool safe = was.safe_to_change || (grows && why.empty());
    (safe ? result.safe : result.unsafe)
        .push_back(was.name + ": " + was.text + " -> " + is.text + why);
  }
  return result;
}

}  // namespace hedgerow::storage
