#include "storage/shape/mesh.hpp"

#include <algorithm>
#include <charconv>

#include "storage/base/error.hpp"
#include "storage/shape/layer_shape.hpp"

namespace hedgerow::storage {
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
  // One stage has no other to take turns with.
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
  return static_cast<double>(model.vocab_size) * model.hidden_size /
         static_cast<double>(matrix_parameters(model));
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
  // All but the last range differ by one layer at most; it has as many as cost least.
  const double head = head_in_layers(model);
  const int others = num_ranges - 1;
  int last = others == 0 ? num_layers : 1;
  const auto cost = [&](int of_last) {
    const int longest = (num_layers - of_last + others - 1) / others;
    return std::max(static_cast<double>(longest), of_last + head);
  };
  while (others > 0 && last + 1 <= num_layers - others && cost(last + 1) <= cost(last)) ++last;
  std::vector<LayerRange> ranges;
  int begin = 0;
  for (int range = 0; range < others; ++range) {
    const int left = num_layers - last - begin;
    const int size = left / (others - range);
    ranges.push_back({begin, begin + size});
    begin += size;
  }
  ranges.push_back({begin, num_layers});
  return ranges;
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
