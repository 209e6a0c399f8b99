// `hedgerow bench kernels` without a kernel: what it asks for, and the command with a worker that
// is a shell script.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "coordinator/bench/kernel_sweep.hpp"
#include "storage/base/error.hpp"
#include "tests/coordinator/cli/fake_console.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(KernelSweep, AbsentKeysKeepTheirDefaults) {
  const auto sweep = json({{"heads", {"32:8", "4:4"}}, {"maps", {"taylor"}}, {"window", 16}})
                         .get<measure::KernelSweep>();
  EXPECT_THAT(sweep.heads, ElementsAre(measure::HeadCounts{32, 8}, measure::HeadCounts{4, 4}));
  EXPECT_THAT(sweep.maps, ElementsAre(storage::FeatureMapKind::kTaylor));
  EXPECT_EQ(sweep.window, 16);
  EXPECT_FALSE(sweep.sinks || sweep.key_maps);
  EXPECT_EQ(sweep.lengths, measure::KernelSweep{}.lengths);
}

// Catches: features that a map cannot have, and a decode batch that changes with the context.
TEST(KernelSweep, FeaturesFollowFromTheMapAndTheDecodeBatchFromTheLongestContext) {
  measure::KernelSweep sweep;
  sweep.features = {32, 128};
  EXPECT_THAT(sweep.features_of(storage::FeatureMapKind::kPositiveRandom), ElementsAre(32, 128));
  EXPECT_THAT(sweep.features_of(storage::FeatureMapKind::kRelu), ElementsAre(64));
  EXPECT_THAT(sweep.features_of(storage::FeatureMapKind::kTaylor), ElementsAre(2145));
  sweep.maps.assign(measure::kBenchMaps.begin(), measure::kBenchMaps.end());
  EXPECT_NO_THROW(sweep.validate());
  sweep.lengths = {256, 1024};
  sweep.batch_tokens = 2048;
  EXPECT_EQ(sweep.num_sequences(256, measure::BenchDirection::kForward), 8);
  EXPECT_EQ(sweep.num_sequences(256, measure::BenchDirection::kDecode), 2);
  EXPECT_EQ(sweep.num_sequences(1 << 20, measure::BenchDirection::kForward), 1);
}

TEST(KernelSweep, SinksAndKeyMapsAreARecipesUnlessGiven) {
  using storage::FeatureMapKind;
  using storage::KeyMaps;
  using storage::WindowLayout;
  auto sweep = json({{"window", 3}}).get<measure::KernelSweep>();
  const auto of = [&](FeatureMapKind map, WindowLayout layout) {
    return sweep.attention(map, 64, layout);
  };
  EXPECT_EQ(of(FeatureMapKind::kT2R, WindowLayout::kSliding).num_sinks, 3);
  EXPECT_EQ(of(FeatureMapKind::kT2R, WindowLayout::kNone).num_sinks, 0);
  EXPECT_EQ(of(FeatureMapKind::kT2R, WindowLayout::kSliding).key_maps, KeyMaps::kKvHead);
  EXPECT_EQ(of(FeatureMapKind::kPositiveRandom, WindowLayout::kSliding).key_maps,
            KeyMaps::kQueryHead);
  sweep = json({{"sinks", 1}, {"key_maps", "query_head"}}).get<measure::KernelSweep>();
  EXPECT_EQ(of(FeatureMapKind::kT2R, WindowLayout::kTerraced).num_sinks, 1);
  EXPECT_EQ(of(FeatureMapKind::kT2R, WindowLayout::kNone).num_sinks, 0);
  EXPECT_EQ(of(FeatureMapKind::kT2R, WindowLayout::kTerraced).key_maps, KeyMaps::kQueryHead);
}

struct Refused {
  std::vector<std::string> options;
  std::string answer;
};

TEST(BenchCommand, WrongOptionsAreAnsweredBeforeAnythingRuns) {
  const Refused all[] = {
      {{"--lengths", "256,0"}, "--lengths: Value 0 not in range 1 to 16777216"},
      {{"--lengths", "256,many"}, "--lengths"},
      {{"--layout", "teraced,sliding"}, "--layout: teraced not in {terraced,sliding,none}"},
      {{"--map", "identity"}, "--map: identity not in {hedgehog_softmax,"},
      {{"--direction", "sideways"}, "--direction: sideways not in {forward,"},
      {{"--heads", "9"}, "--heads: expected QUERY:KV, as 32:8, with 1 to 1024 query heads, a "},
      {{"--heads", "9:4"}, "a multiple of KV, found '9:4'"},
      {{"--heads", "9:3x"}, "a multiple of KV, found '9:3x'"},
      {{"--features", "63"}, "attention.feature_dim = 63: must be even"},
      {{"--map", "taylor", "--head-dim", "361"}, "attention.feature_dim"},
      {{"--repeats", "0"}, "--repeats: Value 0 not in range 1 to 1048576"},
      {{"--lengths", "256,20000000"}, "--lengths: Value 20000000 not in range"},
      {{"--repeats", "99999999999999999999"}, "--repeats"},
      {{"--sinks", "17"}, "--sinks: Value 17 not in range 0 to 16"},
      {{"--sinks", "9", "--window", "8"}, "attention.num_sinks = 9: more than"},
      {{"--key-maps", "head"}, "--key-maps: head not in {kv_head,query_head}"},
      {{"--key-maps", "kv_head", "--map", "positive_random"}, "attention.key_maps = kv_head"},
      {{"--window", "65537"}, "--window: Value 65537 not in range 1 to 65536"}};
  for (const auto& [options, text] : all) {
    std::vector<std::string> line = {"bench", "kernels"};
    line.insert(line.end(), options.begin(), options.end());
    FakeConsole console;
    console.variables["HEDGEROW_WORKER"] = "/bin/false";
    const Answer answer = run_line(line, console);
    EXPECT_EQ(answer.code, 2) << answer.err;
    EXPECT_THAT(answer.err, HasSubstr(text));
  }
  EXPECT_THAT(run_line({"bench"}).err, HasSubstr("what is required"));
  EXPECT_THAT(run_line({"bench", "kernel"}).err, HasSubstr("what: kernel not in {kernels,generate}"));
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

TEST(BenchCommand, ShowsTheDeviceAndARowForEachMeasurementAndTellsTheWorkerTheSweep) {
  const FakeWorker worker({device(), measured(256, 4.0), measured(1024, 0.25)});
  const Answer answer = run_line(
      {"bench", "kernels", "--lengths", "256,1024", "--map", "relu", "--layout", "terraced"},
      worker.console());
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out,
              HasSubstr("Some processor, 2 CPU thread(s), LibTorch 2.11.0; reaches 10"));
  EXPECT_THAT(answer.out,
              HasSubstr("direction       T heads  layout    map                  F dtype        ms "
                        "softmax ms   ratio  of peak   softmax by\n"
                        "forward       256 9:3    terraced  relu                64 bf16          4 "
                        "         1       4  50% flop  flash, fp32\n"));
  EXPECT_EQ(worker.sweep(),
            json({{"lengths", {256, 1024}}, {"maps", {"relu"}}, {"layouts", {"terraced"}}}));
}

TEST(BenchCommand, JsonHasEveryRowAndAnEnd) {
  const FakeWorker worker({device(), measured(256, 4.0), measured(1024, 0.25)});
  const Answer answer = run_line({"bench", "kernels", "--json"}, worker.console());
  EXPECT_EQ(answer.code, 0);
  ASSERT_EQ(answer.json.size(), 4U);
  EXPECT_EQ(answer.json[1]["softmax"]["name"], "flash, fp32");
  EXPECT_EQ(answer.json[3]["event"], "end");
  EXPECT_EQ(answer.json[3]["is_complete"], true);
}

// Catches: an interrupt that throws away what was measured.
TEST(BenchCommand, InterruptedItShowsWhatWasMeasuredAndExitsWithFour) {
  const FakeWorker worker(std::vector<json>{device(), measured(256, 4.0)},
                          "kill -INT $PPID; sleep 60 & wait");
  const Answer answer = run_line({"bench", "kernels"}, worker.console());
  EXPECT_EQ(answer.code, 4) << answer.err;
  EXPECT_THAT(answer.err, HasSubstr("interrupted after 1 measurement\n"));
  EXPECT_THAT(answer.out, HasSubstr("flash, fp32"));
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
