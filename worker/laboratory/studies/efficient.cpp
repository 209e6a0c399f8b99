// 003's ladder: what layout, loop order, allocation and re-scanning cost causal linear attention.
// The loops are plain_bench's (tests/bench), a program of its own: it is compiled with the
// machine's vectors, which the worker must not be. It lies beside the worker where it was built.
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#include "storage/base/error.hpp"
#include "worker/laboratory/studies/studies.hpp"

namespace hedgerow::worker::laboratory {
namespace {

constexpr int kLadderTokens = 4096, kLadderRepeats = 5;
// Which rung is compared with which, and how many times slower it is at least where it costs
// something at all; a re-scan is another order of growth.
constexpr double kCosts = 1.1, kScanCosts = 10;
constexpr const char* kBase = "kernels/plain, double";

struct Cost {
  const char* rung;
  const char* claim;
  const char* paper;
  double least;
};
constexpr std::array kCostsOf003{
    Cost{"layout: a vector a row", "a vector a row costs", "contiguous rows are faster", kCosts},
    Cost{"loop order: S by columns", "S by columns costs", "the inner loop runs along S", kCosts},
    Cost{"allocation: a new phi_k v^T a token",
         "allocation in the loop costs",
         "allocate before the loop",
         kCosts},
    Cost{"re-scan: all pairs", "a scan of all pairs costs 10 times", "O(n^2)", kScanCosts},
    Cost{"re-scan: S and z again a token",
         "S and z anew a token cost 10 times",
         "never re-scan",
         kScanCosts},
};

std::filesystem::path ladder_program() {
  const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "plain_bench";
  if (!std::filesystem::exists(path))
    throw storage::Error(storage::ErrorKind::kUsage,
                         "study 'efficient': " + path.string() +
                             " is not built; build the target plain_bench first");
  return path;
}

// The program's JSON lines, a rung each.
std::vector<nlohmann::json> run_ladder() {
  const std::string command = "exec '" + ladder_program().string() + "' " +
                              std::to_string(kLadderTokens) + " " + std::to_string(kLadderRepeats);
  std::FILE* const output = popen(command.c_str(), "r");
  if (output == nullptr)
    throw storage::Error(storage::ErrorKind::kUnavailable, "study 'efficient': no process left");
  std::vector<nlohmann::json> rungs;
  std::array<char, 512> line{};
  while (std::fgets(line.data(), line.size(), output) != nullptr) {
    nlohmann::json rung = nlohmann::json::parse(line.data(), nullptr, /*allow_exceptions=*/false);
    if (rung.is_object()) rungs.push_back(std::move(rung));
  }
  const int status = pclose(output);
  if (status != 0 || rungs.empty())
    throw storage::Error(storage::ErrorKind::kInternal,
                         "study 'efficient': plain_bench ended with status " +
                             std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : status) +
                             "; a rung may compute something else than the others");
  return rungs;
}

std::string times(double ratio) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f times", ratio);
  return text.data();
}

}  // namespace

nlohmann::json published_efficient() {
  return {{"programs", "softmax, bidirectional and streaming attention, nested vectors, double"},
          {"tokens", {4, 5, 6}},
          {"not_given_by_the_paper", "times"}};
}

StudyResult run_efficient(const StudyOptions& options) {
  const int num_seeds = options.num_seeds > 0 ? options.num_seeds : 1;  // runs: nothing is drawn
  StudyResult study;
  std::map<std::string, std::vector<double>> slower;  // than kernels/plain in double, a run each
  for (int run = 0; run < num_seeds; ++run) {
    const std::vector<nlohmann::json> rungs = run_ladder();
    double base = 0;
    for (const nlohmann::json& rung : rungs)
      if (rung.at("rung") == kBase) base = rung.at("ns_per_token").get<double>();
    for (nlohmann::json rung : rungs) {
      const double ratio = rung.at("ns_per_token").get<double>() / std::max(base, 1.0);
      slower[rung.at("rung").get<std::string>()].push_back(ratio);
      rung["run"] = run;
      rung["to_double"] = ratio;
      if (options.on_row) options.on_row(rung);
      study.rows.push_back(std::move(rung));
    }
    if (options.progress) options.progress((run + 1.0) / num_seeds, "timed");
  }
  study.settings = {{"tokens", kLadderTokens},
                    {"repeats", kLadderRepeats},
                    {"features", 64},
                    {"columns", 64},
                    {"threads", 1},
                    {"runs", num_seeds}};
  study.curves = nlohmann::json::object();
  for (const Cost& cost : kCostsOf003) {
    const std::vector<double>& ratios = slower[cost.rung];
    std::vector<bool> holds;
    for (const double ratio : ratios) holds.push_back(ratio >= cost.least);
    study.claims.push_back(claim_of(cost.claim, cost.paper, times(mean(ratios)), holds));
  }
  return study;
}

}  // namespace hedgerow::worker::laboratory
