#include "storage/recipe/tokens_section.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "storage/recipe/capture_plan.hpp"
#include "storage/recipe/recipe_fields.hpp"

namespace hedgerow::storage {
namespace {

// A data section, and whether a stage learns it.
struct StageData {
  std::string section;
  const DataSection& data;
  bool trains;
};

std::vector<StageData> stages_of(const Recipe& recipe) {
  std::vector<StageData> stages = {{"data.transfer", recipe.data_transfer, true}};
  if (recipe.finetune.enabled) stages.push_back({"data.finetune", recipe.data_finetune, true});
  stages.push_back({"data.evaluate", recipe.data_evaluate, false});
  return stages;
}

bool reads_the_same(const DataSource& a, const DataSource& b, PathOf path_of) {
  return path_of(a) == path_of(b) && a.format == b.format && a.template_ == b.template_ &&
         a.shots == b.shots;
}

bool names_text(const DataSection& data, const DataSource& source, PathOf path_of) {
  return std::ranges::any_of(
      data.sources, [&](const DataSource& other) { return path_of(other) == path_of(source); });
}

// Two stages that hold out the same number of tokens hold out the same text. Documents are counted
// without what a stage puts around them, sequences are not.
bool cut_alike(const DataSection& a, const DataSection& b, PathOf path_of) {
  if (a.split != b.split) return false;
  const bool by_documents = a.split == "documents";
  if (!by_documents && (a.add_bos != b.add_bos || a.eos_token_id != b.eos_token_id)) return false;
  return std::ranges::equal(a.sources, b.sources, [&](const DataSource& x, const DataSource& y) {
    return reads_the_same(x, y, path_of) && (by_documents || x.label_mask == y.label_mask);
  });
}

// What `judge` holds out at the end of its list, a stage with the same list holds out as well
// (held_out). Of any other list that names one of its texts, the part that is learned is unknown.
// False: a problem was added.
bool check_pair_apart(const StageData& learner,
                      const StageData& judge,
                      PathOf path_of,
                      RecipeProblems& problems) {
  const bool judges_all = !judge.trains && judge.data.validation_sequences == 0;
  for (const DataSource& source : judge.data.sources) {
    const auto count = std::ranges::count_if(learner.data.sources, [&](const DataSource& other) {
      return path_of(other) == path_of(source);
    });
    if (count == 0) continue;
    if (count == 1 && !judges_all && cut_alike(learner.data, judge.data, path_of)) continue;
    if (judges_all) {
      problems.add(judge.section + ".validation_sequences",
                   "= 0 evaluates all of " + source.path + ", which " + learner.section +
                       " learns; set it to 1 or more, or name another text");
    } else if (count > 1) {
      problems.add(learner.section + ".sources",
                   "names " + source.path +
                       " twice: what is held out at its end would be learned from its other "
                       "place; name it once");
    } else {
      problems.add(judge.section + ".sources",
                   "names " + source.path + ", and so does " + learner.section +
                       ".sources, but the two do not hold out the same end of it: what one is "
                       "judged by the other would learn; give both the same list of sources and "
                       "the same split (for \"sequences\" also label_mask, add_bos and "
                       "eos_token_id), or separate texts");
    }
    return false;
  }
  return true;
}

// Tokens at the end of its texts that no stage learns: what the stage with these sources that holds
// out the most is judged by.
std::int64_t held_out(const Recipe& recipe, const DataSection& own) {
  std::int64_t most = 0;
  for (const StageData& stage : stages_of(recipe)) {
    const bool shares_a_text = std::ranges::any_of(own.sources, [&](const DataSource& source) {
      return names_text(stage.data, source, real_path_of);
    });
    if (shares_a_text)
      most = std::max(most, std::int64_t{stage.data.validation_sequences} * stage.data.seq_len);
  }
  return most;
}

// The writing visitor of a data section as JSON.
class JsonWriter {
 public:
  template <typename T>
  void field(std::string_view key, const T& value, const FieldRules&) {
    nlohmann::json& entry = json_[std::string(key)];
    if constexpr (!std::is_same_v<T, AddBos>) {
      entry = value;
    } else if (value == AddBos::kAuto) {
      entry = "auto";
    } else {
      entry = value == AddBos::kYes;
    }
  }
  void sources(const std::vector<DataSource>& sources) {
    nlohmann::json& list = json_["sources"] = nlohmann::json::array();
    for (const DataSource& source : sources) {
      JsonWriter entry;
      visit_source(source, entry);
      if (source.shots <= 1) entry.json_.erase("shots");  // the bytes of runs before there were any
      list.push_back(entry.json());
    }
  }
  [[nodiscard]] const nlohmann::json& json() const { return json_; }

 private:
  nlohmann::json json_;
};

}  // namespace

std::string written_path(const DataSource& source) {
  return std::filesystem::path(source.path).lexically_normal().string();
}

std::string real_path_of(const DataSource& source) {
  std::error_code unreadable;  // on a machine without the texts their names have to do
  const std::filesystem::path path = std::filesystem::weakly_canonical(source.path, unreadable);
  return unreadable ? written_path(source) : path.string();
}

std::string text_field(std::size_t index) {
  return "data.evaluate.texts[" + std::to_string(index) + "]";
}

// One problem is enough: the next pair of stages would say the same.
void check_apart(const Recipe& recipe, PathOf path_of, RecipeProblems& problems) {
  const std::vector<StageData> stages = stages_of(recipe);
  for (const StageData& judge : stages) {
    if (judge.trains && judge.data.validation_sequences == 0) continue;
    for (const StageData& learner : stages) {
      if (learner.trains && !check_pair_apart(learner, judge, path_of, problems)) return;
    }
  }
}

void check_text_apart(const Recipe& recipe,
                      std::size_t index,
                      PathOf path_of,
                      RecipeProblems& problems) {
  const DataSource& source = recipe.texts[index].source;
  for (const StageData& learner : stages_of(recipe)) {
    if (!learner.trains || !names_text(learner.data, source, path_of)) continue;
    problems.add(text_field(index) + ".path",
                 "names " + source.path + ", which " + learner.section +
                     " learns; what is held out of it is evaluated as \"validation\", so name "
                     "another text");
    return;
  }
}

bool Recipe::validates_in_domain() const {
  const auto is_learned = [this](const DataSource& source) {
    return std::ranges::any_of(stages_of(*this), [&](const StageData& stage) {
      return stage.trains && names_text(stage.data, source, real_path_of);
    });
  };
  return std::ranges::any_of(data_evaluate.sources, is_learned);
}

std::optional<TokensOf> shares_tokens_of(const Recipe& recipe, const TokensOf& of) {
  if (of.stage == DataStage::kFinetune && recipe.data_finetune == recipe.data_transfer)
    return DataStage::kTransfer;
  return std::nullopt;
}

nlohmann::json tokens_section(const Recipe& recipe, const TokensOf& of) {
  Recipe asked = recipe;
  // `hedgerow tokenize` may ask for a stage that a run would leave out.
  if (of.stage == DataStage::kFinetune) asked.finetune.enabled = true;
  RecipeProblems problems("the recipe");
  check_apart(asked, real_path_of, problems);
  for (std::size_t i = 0; i < asked.texts.size(); ++i)
    check_text_apart(asked, i, real_path_of, problems);
  problems.throw_if_any();

  DataSection data = asked.data(of.stage);
  data.sources = asked.sources(of).list;
  if (!of.text.empty()) data.validation_sequences = 0;
  const bool trains = of.stage != DataStage::kEvaluate;
  const bool keeps_all = !trains && data.validation_sequences == 0;
  if (trains) {
    // A section of its own count that equals another stage's is read as far as the longer one.
    std::int64_t visited = std::max<std::int64_t>(1, visited_sequences(asked, of.stage));
    for (const DataStage other : {DataStage::kTransfer, DataStage::kFinetune}) {
      const bool trains_too = other == DataStage::kTransfer || asked.finetune.enabled;
      if (trains_too && asked.data(other) == data)
        visited = std::max(visited, visited_sequences(asked, other));
    }
    data.max_sequences = static_cast<int>(std::min<std::int64_t>(
        visited, data.max_sequences > 0 ? data.max_sequences : std::numeric_limits<int>::max()));
  }
  JsonWriter writer;
  visit_data(data, writer);
  nlohmann::json section = writer.json();
  section["stage"] = to_string(of.stage);
  section["text"] = of.text;
  section["keep"] = keeps_all ? "all" : trains ? "both" : "validation";
  section["held_out"] = keeps_all ? 0 : held_out(asked, data);
  return section;
}

}  // namespace hedgerow::storage
