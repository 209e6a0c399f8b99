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

constexpr const char* kSpace = " \t\r";

// Three significant digits, or the whole number where it has more.
std::string figure_text(double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), value < 100 ? "%.3g" : "%.0f", value);
  return text.data();
}

struct Figure {
  std::string key, value;  // as TOML
};

// What JSON quotes is a TOML string.
std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::vector<Figure> figures_of(const NodeKind& node) {
  std::vector<Figure> figures;
  for (const auto& [key, value] : {std::pair("memory_gb", node.memory_gb),
                                   {"gpu_memory_gb", node.gpu_memory_gb},
                                   {"cores", static_cast<double>(node.cores)},
                                   {"product_tflops", node.product_tflops},
                                   {"other_tflops", node.other_tflops},
                                   {"disk_gb_s", node.disk_gb_s},
                                   {"worker_start_s", node.worker_start_s}}) {
    if (value > 0) figures.push_back({key, figure_text(value)});
  }
  figures.push_back({"measured", quoted(node.measured)});
  return figures;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// Where a line's comment begins; npos: it has none.
std::size_t comment_of(const std::string& line) {
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote == '"' && c == '\\') {
      ++i;
    } else if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '#') {
      return i;
    }
  }
  return std::string::npos;
}

bool begins_a_table(const std::string& line) { return trimmed(line).starts_with("["); }

bool begins_an_entry(const std::string& line) {
  std::string header = trimmed(line.substr(0, comment_of(line)));
  std::erase(header, ' ');
  return header == "[[nodes]]";
}

std::string key_of(const std::string& line) {
  const std::size_t equals = line.substr(0, comment_of(line)).find('=');
  return equals == std::string::npos ? "" : trimmed(line.substr(0, equals));
}

// What stays of a comment beside a figure that is assumed no more.
std::string without_assumption(const std::string& comment) {
  const std::size_t assumed = comment.find("assumed");
  if (assumed == std::string::npos) return comment;
  const std::string before = comment.substr(0, assumed);
  const std::size_t last = before.find_last_not_of(" \t,;:(");
  return last == 0 ? "" : before.substr(0, last + 1);  // 0: the '#' alone
}

std::string replaced(const std::string& line, const Figure& figure) {
  const std::size_t indent = line.find_first_not_of(kSpace);
  std::string text = line.substr(0, indent) + figure.key + " = " + figure.value;
  const std::size_t at = comment_of(line);
  if (at == std::string::npos) return text;
  const std::string comment = without_assumption(trimmed(line.substr(at)));
  if (comment.empty()) return text;
  text.resize(std::max(text.size() + 1, at), ' ');  // in its column, where there is room
  return text + comment;
}

// Into the entry whose header is that line; a new one goes below those that are there.
void take(const std::vector<Figure>& figures, std::vector<std::string>& lines, std::size_t header) {
  const auto is_figure = [&](const std::string& key) {
    return key == "name" || std::ranges::find(figures, key, &Figure::key) != figures.end();
  };
  for (const Figure& figure : figures) {
    std::size_t last = header, own = 0;
    for (std::size_t i = header + 1; i < lines.size() && !begins_a_table(lines[i]); ++i) {
      const std::string key = key_of(lines[i]);
      if (is_figure(key)) last = i;
      if (key == figure.key) own = i;
    }
    if (own > 0) {
      lines[own] = replaced(lines[own], figure);
    } else {
      lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(last) + 1,
                   figure.key + " = " + figure.value);
    }
  }
}

// The cluster but for what is measured of an entry.
storage::Cluster without_figures(storage::Cluster cluster, std::size_t entry) {
  NodeKind& node = cluster.nodes.at(entry);
  node = {.name = node.name,
          .count = node.count,
          .gpus = node.gpus,
          .local_disk_gb = node.local_disk_gb,
          .price_per_hour = node.price_per_hour,
          .mtbf_hours = node.mtbf_hours};
  return cluster;
}

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

std::string with_new_entry(const std::string& toml, const NodeKind& node) {
  std::string text = toml;
  if (!text.empty()) text += text.ends_with('\n') ? "\n" : "\n\n";
  text += "[[nodes]]\nname = " + quoted(node.name) + "\ncount = 1\n";
  if (node.gpus > 0) {
    text += "gpus = " + std::to_string(node.gpus) + "\n";
    text += "gpu_memory_gb = " + figure_text(node.gpu_memory_gb) + "\n";
  }
  return text + "memory_gb = " + figure_text(node.memory_gb) + "\n";
}

std::string with_figures(const std::string& toml,
                         std::size_t entry,
                         const NodeKind& node,
                         const std::string& file) {
  std::vector<std::string> lines = lines_of(toml);
  std::vector<std::size_t> headers;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (begins_an_entry(lines[i])) headers.push_back(i);
  }
  std::string text;
  if (entry < headers.size()) {
    take(figures_of(node), lines, headers[entry]);
    for (const std::string& line : lines) text += line + "\n";
    const storage::Cluster before = storage::Cluster::parse(toml, file);
    const storage::Cluster after = storage::Cluster::parse(text, file);
    if (after.nodes.at(entry).measured == node.measured &&
        without_figures(after, entry) == without_figures(before, entry))
      return text;
  }
  throw Error(ErrorKind::kUsage,
              file +
                  ": the figures find no place in it: expected [[nodes]] on a line of its own "
                  "and below it a line for each key; write it so, or put them in by hand");
}

}  // namespace hedgerow::coordinator::cli
