// `hedgerow bench kernels` without a kernel: what it asks for, and the command with a worker that
// is a shell script.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "coordinator/wire/kernel_sweep.hpp"
#include "storage/base/error.hpp"
#include "tests/coordinator/cli/fake_console.hpp"
#include "tests/coordinator/cli/svg.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(KernelSweep, TravelsAsJsonAndBack) {
  wire::KernelSweep sweep;
  sweep.lengths = {64, 128};
  sweep.heads = {{32, 8}, {4, 4}};
  sweep.maps = {storage::FeatureMapKind::kTaylor, storage::FeatureMapKind::kT2R};
  sweep.directions = {wire::BenchDirection::kTraining};
  const json there = sweep;
  const json again = there.get<wire::KernelSweep>();
  EXPECT_EQ(there, again);
  EXPECT_EQ(there["heads"], json({"32:8", "4:4"}));
}

// Catches: features that a map cannot have, and a decode batch that changes with the context.
TEST(KernelSweep, FeaturesFollowFromTheMapAndTheDecodeBatchFromTheLongestContext) {
  wire::KernelSweep sweep;
  sweep.features = {32, 128};
  EXPECT_THAT(sweep.features_of(storage::FeatureMapKind::kPositiveRandom), ElementsAre(32, 128));
  EXPECT_THAT(sweep.features_of(storage::FeatureMapKind::kRelu), ElementsAre(64));
  EXPECT_THAT(sweep.features_of(storage::FeatureMapKind::kTaylor), ElementsAre(2145));
  sweep.maps.assign(wire::kBenchMaps.begin(), wire::kBenchMaps.end());
  EXPECT_NO_THROW(sweep.validate());
  wire::KernelSweep series;
  series.maps = {storage::FeatureMapKind::kTaylor};
  series.head_dim = wire::KernelSweep::kMaxTaylorHeadDim;
  EXPECT_NO_THROW(series.validate()) << "the greatest that AttentionSpec takes";
  sweep.lengths = {256, 1024};
  sweep.batch_tokens = 2048;
  EXPECT_EQ(sweep.num_sequences(256, wire::BenchDirection::kForward), 8);
  EXPECT_EQ(sweep.num_sequences(256, wire::BenchDirection::kDecode), 2);
  EXPECT_EQ(sweep.num_sequences(1 << 20, wire::BenchDirection::kForward), 1);
}

struct Refused {
  std::vector<std::string> options;
  std::string answer;
};

TEST(BenchCommand, WrongOptionsAreAnsweredBeforeAnythingRuns) {
  const Refused all[] = {
      {{"--lengths", "256,0"}, "--lengths: expected a number of at least 1, found '0'"},
      {{"--lengths", "256,many"}, "--lengths: expected a number of at least 1, found 'many'"},
      {{"--layout", "teraced,sliding"},
       "--layout: expected terraced, sliding or none, found 'teraced', did you mean 'terraced'?"},
      {{"--map", "identity"}, "--map: expected hedgehog_softmax, hedgehog_exp, t2r, elu_plus_one,"},
      {{"--direction", "sideways"}, "--direction: expected forward, backward, training or decode"},
      {{"--heads", "9"}, "--heads: expected QUERY:KV, as 32:8, found '9'"},
      {{"--heads", "9:4"},
       "--heads: expected QUERY:KV with 1 to 1024 query heads, a multiple of KV"},
      {{"--features", "63"},
       "--features: expected even numbers with --map hedgehog_softmax, half of whose features are "
       "of -xW, found '63'"},
      {{"--map", "taylor", "--head-dim", "361"},
       "--head-dim: expected at most 360 with --map taylor, which has 1 + D + D (D + 1) / 2 "
       "features, found '361'"},
      {{"--repeats", "0"}, "--repeats: expected a number of at least 1, found '0'"},
      // Above a great limit the limit is told, in all its digits.
      {{"--lengths", "256,20000000"},
       "--lengths: expected a number from 1 to 16777216, found '20000000'"},
      {{"--batch-tokens", "2000000000"},
       "--batch-tokens: expected a number from 1 to 1073741824, found '2000000000'"},
      {{"--repeats", "99999999999999999999"},
       "--repeats: expected a number from 1 to 1048576, found '99999999999999999999'"},
      {{"--window", "65537"}, "--window: expected a number from 1 to 65536, found '65537'"},
      {{"--plot", "plot.png"}, "--plot: expected a file that ends in .svg, found 'plot.png'"},
      {{"--plot", "/no/such/folder/p.svg"}, "--plot: the folder /no/such/folder is not there"}};
  for (const auto& [options, text] : all) {
    std::vector<std::string> line = {"bench", "kernels"};
    line.insert(line.end(), options.begin(), options.end());
    FakeConsole console;
    console.variables["HEDGEROW_WORKER"] = "/bin/false";
    const Answer answer = run_line(line, console);
    EXPECT_EQ(answer.code, 2) << answer.err;
    EXPECT_THAT(answer.err, HasSubstr(text));
  }
  EXPECT_THAT(run_line({"bench"}).err, HasSubstr("missing: what (what to measure: kernels)"));
  EXPECT_THAT(run_line({"bench", "kernel"}).err,
              HasSubstr("what: expected kernels, found 'kernel', did you mean 'kernels'?"));
}

// A worker that says these lines, each a JSON object, and then does `at_the_end`.
class FakeWorker {
 public:
  explicit FakeWorker(const std::vector<json>& lines, const std::string& at_the_end = "") {
    std::ofstream script(path());
    script << "#!/bin/sh\ncat > " << (directory_.path() / "sweep").string() << "\n";
    for (const json& line : lines) script << "echo '" << line.dump() << "'\n";
    script << at_the_end << "\n";
    script.close();
    fs::permissions(path(), fs::perms::owner_all);
  }
  [[nodiscard]] FakeConsole console() const {
    FakeConsole console;
    console.variables["HEDGEROW_WORKER"] = path();
    console.columns = 200;
    return console;
  }
  [[nodiscard]] fs::path path() const { return directory_.path() / "worker"; }
  [[nodiscard]] std::string plot() const { return directory_.path() / "plot.svg"; }
  [[nodiscard]] json sweep() const {
    std::ifstream file(directory_.path() / "sweep");
    return json::parse(file);
  }

 private:
  tests::TemporaryDirectory directory_;
};

json measured(std::int64_t length, double ratio) {
  return {{"event", "measured"},
          {"direction", "forward"},
          {"heads", "9:3"},
          {"layout", "terraced"},
          {"map", "relu"},
          {"dtype", "bf16"},
          {"features", 64},
          {"length", length},
          {"ms", ratio},
          {"us_per_token", ratio},
          {"gb_per_s", 1.5},
          {"tflop_per_s", 0.25},
          {"share_of_flops", 0.5},
          {"share_of_bandwidth", 0.1},
          {"ratio", ratio},
          {"softmax", {{"name", "flash, fp32"}, {"ms", 1.0}, {"us_per_token", 1.0}}}};
}

json device() {
  return {{"event", "device"},
          {"device", "cpu"},
          {"model", "Some processor"},
          {"threads", 2},
          {"libtorch", "2.11.0"},
          {"copy_gb_per_s", 10.0},
          {"bf16_tflop_per_s", 0.2},
          {"fp32_tflop_per_s", 0.4}};
}

TEST(BenchCommand, ShowsRowsCrossoversAndThePlotAndTellsTheWorkerTheSweep) {
  const FakeWorker worker({device(), measured(256, 4.0), measured(1024, 0.25)});
  const Answer answer = run_line({"bench",
                                  "kernels",
                                  "--lengths",
                                  "256,1024",
                                  "--map",
                                  "relu",
                                  "--layout",
                                  "terraced",
                                  "--plot",
                                  worker.plot()},
                                 worker.console());
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("Some processor, 2 threads, LibTorch 2.11.0; reaches 10 GB/s"));
  EXPECT_THAT(answer.out, HasSubstr("50% flop"));
  EXPECT_EQ(count_of(answer.out, "direction  "), 1U) << "one title line";
  EXPECT_THAT(answer.out,
              HasSubstr("forward, terraced relu: faster than softmax from T = 512 on\n"));
  EXPECT_EQ(worker.sweep()["lengths"], json({256, 1024}));
  EXPECT_EQ(worker.sweep()["maps"], json({"relu"}));
  EXPECT_EQ(worker.sweep()["directions"], json({"forward", "backward", "decode"}));
  std::ifstream file(worker.plot());
  const std::string svg{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_THAT(svg,
              HasSubstr("LibTorch 2.11.0; bf16, W = 64, F = 64, D = 64, medians of 5 repeats"));
}

TEST(BenchCommand, JsonHasEveryRowAndTheCrossovers) {
  const FakeWorker worker({device(), measured(256, 4.0), measured(1024, 0.25)});
  const Answer answer = run_line({"bench", "kernels", "--json"}, worker.console());
  EXPECT_EQ(answer.code, 0);
  ASSERT_EQ(answer.json.size(), 4U);
  EXPECT_EQ(answer.json[1]["softmax"]["name"], "flash, fp32");
  EXPECT_EQ(answer.json[3]["event"], "crossovers");
  EXPECT_EQ(answer.json[3]["is_complete"], true);
  EXPECT_NEAR(answer.json[3]["crossovers"][0]["length"].get<double>(), 512, 1e-6);
  // Catches: a field that only the source tells of.
  std::ifstream file(std::string(HEDGEROW_SOURCE_DIR) + "/coordinator/cli/README.md");
  const std::string readme{std::istreambuf_iterator<char>(file), {}};
  for (const json& object : {answer.json[3], answer.json[3]["crossovers"][0]}) {
    for (const auto& [key, value] : object.items())
      EXPECT_THAT(readme, ::testing::AnyOf(HasSubstr("`" + key + "`"), HasSubstr('"' + key + '"')));
  }
}

// Catches: an interrupt that throws away what was measured.
TEST(BenchCommand, InterruptedItShowsWhatWasMeasuredAndExitsWithFour) {
  const FakeWorker worker(std::vector<json>{device(), measured(256, 4.0)},
                          "kill -INT $PPID; sleep 60 & wait");
  const Answer answer = run_line({"bench",
                                  "kernels",
                                  "--plot",
                                  worker.plot(),
                                  "--lengths",
                                  "256,512,512",
                                  "--map",
                                  "relu,t2r",
                                  "--features",
                                  "32,64"},
                                 worker.console());
  EXPECT_EQ(answer.code, 4) << answer.err;
  // Three directions, two lengths, two layouts; relu has one F and t2r both.
  EXPECT_THAT(answer.err, HasSubstr("interrupted: 1 of 36 measurements done\n"));
  EXPECT_THAT(answer.out, HasSubstr("forward, terraced relu: crossover not seen"));
  EXPECT_TRUE(fs::exists(worker.plot()));
}

TEST(BenchCommand, ASweepOfWhichNothingFitsIsAnErrorWithTheArithmetic) {
  json refused = measured(256, 1);
  refused["event"] = "refused";
  refused.erase("softmax");
  refused["reason"] = "needs 12.90 GB (q, k, v 12.90 GB) of 8.00 GB";
  const FakeWorker worker(std::vector<json>{device(), refused});
  const Answer answer = run_line({"bench", "kernels"}, worker.console());
  EXPECT_EQ(answer.code, 5) << answer.err;
  EXPECT_THAT(answer.err, HasSubstr("needs 12.90 GB (q, k, v 12.90 GB) of 8.00 GB"));
  EXPECT_THAT(answer.err, HasSubstr("choose shorter --lengths"));
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
