#include "coordinator/cli/tasks/returns.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using nlohmann::json;
using storage::ExitCode;

// The mean over the validation split and the named texts.
double mean_kl(const json& figures) {
  double sum = figures.at("kl").get<double>();
  int count = 1;
  if (const auto texts = figures.find("texts"); texts != figures.end()) {
    for (const auto& [name, text] : texts->items()) {
      sum += text.at("kl").get<double>();
      ++count;
    }
  }
  return sum / count;
}

// The smallest KL first.
std::vector<json> sorted(const json& returns) {
  std::vector<json> rows(returns.begin(), returns.end());
  std::ranges::stable_sort(rows, {}, mean_kl);
  return rows;
}

void print_returns(const json& found, bool by_head, Terminal& terminal) {
  constexpr std::size_t kMostRows = 10;
  const double whole = mean_kl(found.at("student"));
  terminal.print("the student's KL to the teacher, mean over the texts: " + number_text(whole, 4));
  Table table;
  table.column("layer", 10, true);
  if (by_head) table.column("key/value head", 9, true);
  table.column("KL with it under softmax", 10, true).column("of the student's", 8, true);
  const json& student = found.at("student");
  const auto has_texts = student.find("texts");
  std::vector<std::string> texts;
  if (has_texts != student.end())
    for (const auto& [name, text] : has_texts->items()) texts.push_back(name);
  for (const std::string& name : texts) table.column("loss saved: " + name, 4, true);
  const std::vector<json> rows = sorted(found.at("returns"));
  for (std::size_t i = 0; i < std::min(rows.size(), kMostRows); ++i) {
    const double kl = mean_kl(rows[i]);
    std::vector<std::string> cells{std::to_string(rows[i].at("layer").get<int>())};
    if (by_head) cells.push_back(std::to_string(rows[i].at("head").get<int>()));
    cells.push_back(number_text(kl, 4));
    cells.push_back(number_text(kl / whole, 3));
    for (const std::string& name : texts)
      cells.push_back(number_text(student["texts"][name].at("loss").get<double>() -
                                      rows[i]["texts"][name].at("loss").get<double>(),
                                  3));
    table.row(std::move(cells));
  }
  for (const std::string& line : table.render(terminal.answer_width())) terminal.print(line);
}

}  // namespace

ExitCode evaluate_returns(ChildCommand command,
                          const std::string& by,
                          const std::string& run,
                          Terminal& terminal) {
  command.arguments.insert(command.arguments.end(), {"--returns", by});
  const InterruptScope interrupts;
  json found;
  if (!run_helper(
          terminal, "evaluating", "hedgerow-worker evaluate", command, [&](const json& object) {
            found = object;
          }))
    return ExitCode::kInterrupted;
  if (!found.is_object())
    throw storage::Error(storage::ErrorKind::kInternal, "hedgerow-worker evaluate gave no result");
  print_returns(found, by == "heads", terminal);
  if (!run.empty()) {
    const std::filesystem::path path = storage::RunLayout(run).returns(by);
    std::filesystem::create_directories(path.parent_path());
    storage::write_atomically(path, found.dump(2) + "\n");
    if (by == "layers")
      terminal.say("next: hedgerow init --from " + run +
                   " --variant recipe --softmax-layers kl:4 --out FILE   keeps the four first");
  }
  terminal.print_json(found);
  return ExitCode::kOk;
}

std::vector<int> layers_that_matter(const storage::RunLayout& layout, int count) {
  const std::filesystem::path path = layout.returns("layers");
  require(std::filesystem::exists(path),
          layout.root().string() + " has not measured its layers; 'hedgerow evaluate --run " +
              layout.root().string() + " --returns layers' does");
  const std::vector<json> rows =
      sorted(storage::parse_document(storage::read_text(path)).at("returns"));
  require(count >= 1 && static_cast<std::size_t>(count) <= rows.size(),
          "--softmax-layers kl:" + std::to_string(count) + ": the run has " +
              std::to_string(rows.size()) + " linear layers; name 1 to as many");
  std::vector<int> layers;
  for (int i = 0; i < count; ++i)
    layers.push_back(rows[static_cast<std::size_t>(i)].at("layer").get<int>());
  std::ranges::sort(layers);
  return layers;
}

}  // namespace hedgerow::coordinator::cli
