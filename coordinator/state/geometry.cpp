#include "coordinator/state/geometry.hpp"

#include <algorithm>

#include "coordinator/wire/json_fields.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {

using nlohmann::json;
using namespace wire;  // the strict field readers
using storage::Error;
using storage::ErrorKind;

namespace {

constexpr int kMaxLayers = 100'000;
constexpr std::int64_t kMaxShards = 5'000'000;
constexpr std::size_t kMaxEvaluations = 100;

std::vector<int> ints_field(const json& object, const char* key) {
  std::vector<int> values;
  const json& array = field(object, key);
  if (!array.is_array()) throw_ill_typed(key, "an array", array);
  for (const json& value : array) {
    values.push_back(int_field({{key, value}}, key));
  }
  return values;
}

}  // namespace

int Geometry::layers_of(int block) const {
  return std::min(layers_per_block, num_layers - first_layer(block));
}

bool Geometry::trains(int block) const {
  return std::find(untrained_blocks.begin(), untrained_blocks.end(), block) ==
         untrained_blocks.end();
}

int Geometry::last_boundary() const {
  int last = num_blocks() - 1;
  while (last > 0 && !trains(last)) --last;
  return std::max(last, 0);
}

json geometry_to_json(const Geometry& g) {
  json subjects = json::array();
  for (const Subject subject : g.evaluates) subjects.push_back(to_string(subject));
  json out = {{"num_layers", g.num_layers},
              {"layers_per_block", g.layers_per_block},
              {"num_shards", g.num_shards},
              {"shards_per_capture", g.shards_per_capture},
              {"sequences_per_shard", g.sequences_per_shard},
              {"seed", g.seed},
              {"finetunes", g.finetunes},
              {"untrained_blocks", g.untrained_blocks},
              {"evaluates", subjects}};
  if (g.num_logit_pieces > 0) {
    out["logits"] = {{"pieces", g.num_logit_pieces},
                     {"from_boundary", g.logits_from_boundary},
                     {"sequences_per_piece", g.sequences_per_logit_piece}};
  }
  return out;
}

Geometry geometry_from_json(const json& in) {
  Geometry g{.num_layers = int_field(in, "num_layers"),
             .layers_per_block = int_field(in, "layers_per_block"),
             .num_shards = int_field(in, "num_shards"),
             .shards_per_capture = int_field(in, "shards_per_capture"),
             .sequences_per_shard = int64_field(in, "sequences_per_shard"),
             .seed = uint_field(in, "seed"),
             .finetunes = bool_field(in, "finetunes"),
             .untrained_blocks = ints_field(in, "untrained_blocks"),
             .evaluates = {}};
  for (const std::string& word : strings_field(in, "evaluates")) {
    const std::optional<Subject> subject = subject_from_string(word);
    if (!subject) {
      throw Error(ErrorKind::kCorrupt,
                  "journal: a run that evaluates '" + word.substr(0, 80) +
                      "', expected lora, teacher or transfer");
    }
    g.evaluates.push_back(*subject);
  }
  if (in.contains("logits")) {
    const json& logits = object_field(in, "logits");
    g.num_logit_pieces = int_field(logits, "pieces");
    g.logits_from_boundary = bool_field(logits, "from_boundary");
    g.sequences_per_logit_piece = int64_field(logits, "sequences_per_piece");
  }
  if (g.num_layers < 1 || g.layers_per_block < 1 || g.num_shards < 1 || g.shards_per_capture < 1) {
    throw Error(ErrorKind::kCorrupt, "journal: run_started describes an empty run");
  }
  // A state has a record for each; 206 TB of hidden states are below a million shards.
  const std::int64_t blocks =
      (std::int64_t{g.num_layers} + g.layers_per_block - 1) / g.layers_per_block;
  if (g.num_layers > kMaxLayers || (blocks + 1) * g.num_shards > kMaxShards ||
      g.num_logit_pieces > kMaxShards ||
      (g.logits_from_boundary && g.num_logit_pieces != g.num_pieces()) ||
      g.evaluates.size() > kMaxEvaluations) {
    throw Error(ErrorKind::kCorrupt, "journal: run_started describes a run that no disk holds");
  }
  return g;
}

json inputs_to_json(const RunInputs& inputs) {
  return {{"teacher", inputs.teacher}, {"tokens", records_to_json(inputs.tokens)}};
}

RunInputs inputs_from_json(const json& in) {
  return {string_field(in, "teacher"), records_from_json(in, "tokens")};
}

}  // namespace hedgerow::coordinator
