#include "storage/recipe/mesh.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "storage/base/error.hpp"

namespace hedgerow::storage {
namespace {

double layer_weights(const ModelConfig& model) {
  const double hidden = model.hidden_size;
  const double head_dim = model.head_dim;
  return hidden * head_dim * 2.0 * (model.num_attention_heads + model.num_key_value_heads) +
         3.0 * hidden * model.intermediate_size;
}

// Ranges of at most `most` cost each, filled from the first layer on; empty: more than `num_ranges`
// would be needed.
std::vector<LayerRange> filled(int num_layers, int num_ranges, double head, double most) {
  std::vector<LayerRange> ranges;
  int begin = 0;
  for (int range = 0; range < num_ranges; ++range) {
    const int left = num_ranges - range - 1;  // each takes a layer at least
    const auto room = static_cast<int>(std::floor(most + 1e-9));
    const int end = left == 0 ? num_layers : std::min(begin + room, num_layers - left);
    if (end <= begin || (left == 0 && end - begin + head > most + 1e-9)) return {};
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

}  // namespace

std::optional<Mesh> parse_mesh(std::string_view text) {
  std::vector<int> sizes;
  const char* next = text.data();
  const char* end = text.data() + text.size();
  while (true) {
    int size = 0;
    const auto [stopped, error] = std::from_chars(next, end, size);
    if (error != std::errc{} || size < 1 || size > 1'000'000 || *next == '-') return std::nullopt;
    sizes.push_back(size);
    if (stopped == end) break;
    if (*stopped != 'x') return std::nullopt;
    next = stopped + 1;
  }
  if (sizes.size() != 2 && sizes.size() != 3) return std::nullopt;
  const Mesh mesh{sizes[0], sizes[1], sizes.size() == 3 ? sizes[2] : 1};
  // One stage has nobody to take turns with.
  if (mesh.pipeline == 1 && mesh.chunks != 1) return std::nullopt;
  return mesh;
}

std::string mesh_text(const Mesh& mesh) {
  std::string text = std::to_string(mesh.data) + "x" + std::to_string(mesh.pipeline);
  if (mesh.chunks != 1) text += "x" + std::to_string(mesh.chunks);
  return text;
}

Mesh shortest_mesh(int ranks, int num_micro_batches) {
  int stages = 1;
  while (ranks % stages != 0 || ranks / stages > num_micro_batches) ++stages;
  return {ranks / stages, stages};
}

double head_in_layers(const ModelConfig& model) {
  return static_cast<double>(model.vocab_size) * model.hidden_size / layer_weights(model);
}

std::vector<LayerRange> split_layers(const ModelConfig& model, const Mesh& mesh) {
  const int num_layers = model.num_hidden_layers;
  const int num_ranges = mesh.num_ranges();
  if (num_ranges > num_layers) {
    throw Error(ErrorKind::kUsage,
                "a mesh of " + mesh_text(mesh) + " has " + std::to_string(num_ranges) +
                    " ranges of layers in a pipeline, but the model has " +
                    std::to_string(num_layers) + " layers; lower the pipeline's stages");
  }
  const double head = head_in_layers(model);
  // The cheapest maximum is a whole number of layers, or the head with some.
  std::vector<LayerRange> best;
  double best_cost = 0.0;
  const auto consider = [&](double most) {
    if (!best.empty() && most >= best_cost) return;
    const auto ranges = filled(num_layers, num_ranges, head, most);
    if (ranges.empty()) return;
    best = ranges;
    best_cost = most;
  };
  for (int layers = 1; layers <= num_layers; ++layers) {
    consider(layers);
    consider(layers + head);
  }
  return best;
}

std::vector<LayerRange> ranges_of_stage(const std::vector<LayerRange>& ranges,
                                        const Mesh& mesh,
                                        int stage) {
  std::vector<LayerRange> own;
  for (int chunk = 0; chunk < mesh.chunks; ++chunk)
    own.push_back(ranges[static_cast<std::size_t>(chunk * mesh.pipeline + stage)]);
  return own;
}

}  // namespace hedgerow::storage
