#include "coordinator/cli/doctor/calibration.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "storage/base/error.hpp"
#include "storage/base/words.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::Error;
using storage::ErrorKind;
using storage::NodeKind;

// Three significant digits, or the whole number where it has more.
std::string figure_text(double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), value < 100 ? "%.3g" : "%.0f", value);
  return text.data();
}

// What JSON quotes is a TOML string.
std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string names(const storage::Cluster& cluster) {
  std::string all;
  for (const NodeKind& node : cluster.nodes)
    all += (all.empty() ? "\"" : ", \"") + node.name + "\"";
  return all;
}

}  // namespace

ComputeSpeed speed_of(const measure::LayerSeconds& seconds,
                      const Work& capture,
                      const Work& transfer) {
  const double other = seconds.capture + seconds.transfer - 2.0 * seconds.products;
  if (!(seconds.products > 0.0) || !(other > 0.0)) {
    throw Error(ErrorKind::kUnavailable,
                "a layer took " + figure_text(1e3 * seconds.products) +
                    " ms for its products, with the teacher's attention " +
                    figure_text(1e3 * seconds.capture) + " ms and with a step of transfer " +
                    figure_text(1e3 * seconds.transfer) +
                    " ms, which tells no speed of attention; try again while the machine does "
                    "nothing else");
  }
  return {capture.products / seconds.products, (capture.other + transfer.other) / other};
}

std::size_t entry_of(const storage::Cluster& cluster,
                     const std::string& wanted,
                     bool has_gpus,
                     const std::string& file) {
  const std::string here =
      has_gpus ? "this machine computes on GPUs" : "this machine computes on its cores";
  std::vector<std::size_t> alike;
  for (std::size_t i = 0; i < cluster.nodes.size(); ++i) {
    const NodeKind& node = cluster.nodes[i];
    const bool fits = (node.gpus > 0) == has_gpus;
    if (fits) alike.push_back(i);
    if (node.name != wanted) continue;
    if (fits) return i;
    throw Error(ErrorKind::kUsage,
                file + ": nodes \"" + wanted + "\" have " + std::to_string(node.gpus) +
                    " GPUs, and " + here + "; calibrate on such a node, with a build that " +
                    (has_gpus ? "is for its cores" : "has CUDA"));
  }
  if (!wanted.empty()) {
    std::vector<std::string> known;
    for (const NodeKind& node : cluster.nodes) known.push_back(node.name);
    const std::string near = storage::nearest_word(wanted, known);
    throw Error(ErrorKind::kUsage,
                "--node " + wanted + ": " + file + " has no such nodes, only " + names(cluster) +
                    (near.empty() ? "" : ", did you mean '" + near + "'?"));
  }
  if (alike.size() == 1) return alike.front();
  if (alike.empty()) {
    throw Error(ErrorKind::kUsage,
                file + ": of its nodes (" + names(cluster) + ") none is like this one: " + here +
                    "; calibrate on such a node, or add an entry for this one");
  }
  throw Error(ErrorKind::kUsage,
              file + ": several of its nodes (" + names(cluster) +
                  ") may be this machine; say which with --node NAME");
}

std::string with_entry(const std::string& toml, const NodeKind& node) {
  std::string text = toml;
  if (!text.empty()) text += text.ends_with('\n') ? "\n" : "\n\n";
  text += "[[nodes]]\nname = " + quoted(node.name) + "\ncount = 1\n";
  for (const auto& [key, value] : {std::pair("gpus", static_cast<double>(node.gpus)),
                                   {"gpu_memory_gb", node.gpu_memory_gb},
                                   {"memory_gb", node.memory_gb},
                                   {"cores", static_cast<double>(node.cores)},
                                   {"product_tflops", node.product_tflops},
                                   {"other_tflops", node.other_tflops},
                                   {"disk_gb_s", node.disk_gb_s},
                                   {"worker_start_s", node.worker_start_s}}) {
    if (value > 0) text += std::string(key) + " = " + figure_text(value) + "\n";
  }
  return text + "measured = " + quoted(node.measured) + "\n";
}

std::string measured_text(const std::vector<NodeKind>& before, const NodeKind& node) {
  std::string text =
      "# Of 'hedgerow doctor --calibrate'. These figures count, not those of the cluster file.\n";
  for (const NodeKind& other : before) {
    if (other.name != node.name) text = with_entry(text, other);
  }
  return with_entry(text, node);
}

}  // namespace hedgerow::coordinator::cli
