#include "worker/probe/attention_corners.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "storage/base/error.hpp"
#include "worker/transfer/attention_rows.hpp"

namespace hedgerow::worker {
namespace {

constexpr std::int64_t kCorner = 32;  // tokens a side, as in the paper's pictures

[[noreturn]] void refuse_head(const std::string& word, const std::string& what) {
  throw storage::Error(storage::ErrorKind::kUsage, "--maps " + word + ": " + what);
}

std::vector<std::int64_t> tokens_from(std::int64_t begin, std::int64_t count) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), begin);
  return tokens;
}

nlohmann::json rows_json(const at::Tensor& weights) {
  const at::Tensor x = weights.to(at::kDouble).cpu().contiguous();
  nlohmann::json rows = nlohmann::json::array();
  for (std::int64_t r = 0; r < x.size(0); ++r) {
    const double* begin = x.data_ptr<double>() + r * x.size(1);
    rows.push_back(std::vector<double>(begin, begin + x.size(1)));
  }
  return rows;
}

}  // namespace

std::set<LayerAndHead> layers_and_heads(const std::vector<std::string>& words,
                                        const storage::ModelConfig& model) {
  std::set<LayerAndHead> chosen;
  for (const std::string& word : words) {
    int layer = 0, head = 0;
    const char* const end = word.data() + word.size();
    const auto slash = std::from_chars(word.data(), end, layer);
    const bool has_slash = slash.ec == std::errc() && slash.ptr != end && *slash.ptr == '/';
    const auto rest = std::from_chars(has_slash ? slash.ptr + 1 : end, end, head);
    if (!has_slash || rest.ec != std::errc() || rest.ptr != end)
      refuse_head(word, "expected LAYER/HEAD, as 14/3");
    if (layer < 0 || layer >= model.num_hidden_layers)
      refuse_head(word, "the model has layers 0 to " + std::to_string(model.num_hidden_layers - 1));
    if (head < 0 || head >= model.num_attention_heads)
      refuse_head(word, "a layer has heads 0 to " + std::to_string(model.num_attention_heads - 1));
    chosen.insert({layer, head});
  }
  return chosen;
}

nlohmann::json attention_corners(const Qkv& qkv,
                                 int head,
                                 const std::optional<kernels::HybridParameters>& maps,
                                 const kernels::HybridOptions& options) {
  const at::Tensor q = qkv.q[0], k = qkv.k[0];
  const std::int64_t T = q.size(1), side = std::min(kCorner, T);
  const std::vector<std::int64_t> last = tokens_from(T - side, side);
  const auto corners = [&](const at::Tensor& weights) {
    const at::Tensor of_head = weights[head];
    return nlohmann::json{{"first", rows_json(of_head.narrow(1, 0, side))},
                          {"last", rows_json(of_head.narrow(1, T - side, side))}};
  };
  nlohmann::json found = {{"queries", last},
                          {"first_keys", tokens_from(0, side)},
                          {"last_keys", last},
                          {"softmax", corners(teacher_rows(q, k, last))}};
  if (maps) {
    const StudentRows student = student_rows(q, k, *maps, options, last);
    found["student"] = corners(student.window + student.linear);
  }
  return found;
}

}  // namespace hedgerow::worker
