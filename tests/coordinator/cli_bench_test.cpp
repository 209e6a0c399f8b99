// `hedgerow bench kernels` without a kernel: the report's arithmetic, the plot, and the command
// with a worker that is a shell script.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "coordinator/cli/bench_plot.hpp"
#include "coordinator/cli/bench_report.hpp"
#include "coordinator/wire/kernel_sweep.hpp"
#include "storage/error.hpp"
#include "tests/coordinator/cli_fake_console.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

KernelRow row_of(std::int64_t length, double ratio, const std::string& layout = "terraced") {
  KernelRow row;
  row.direction = "forward";
  row.heads = "9:3";
  row.layout = layout;
  row.map = "hedgehog_softmax";
  row.dtype = "bf16";
  row.softmax = "flash, fp32";
  row.length = length;
  row.features = 64;
  row.ratio = ratio;
  row.us_per_token = 2;
  row.softmax_us_per_token = 2 / ratio;
  return row;
}

KernelLine line_of(const std::vector<std::pair<std::int64_t, double>>& ratios) {
  std::vector<KernelRow> rows;
  for (const auto& [length, ratio] : ratios) rows.push_back(row_of(length, ratio));
  return kernel_lines(rows).at(0);
}

// An opening tag is closed in its order, quotes and references are whole.
std::string xml_fault(const std::string& text) {
  std::vector<std::string> open;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (static_cast<unsigned char>(text[i]) > 0x7e) return "not ASCII at " + std::to_string(i);
    if (text[i] == '&') {
      const std::size_t end = text.find(';', i);
      const std::string name = text.substr(i + 1, end - i - 1);
      if (name != "amp" && name != "lt" && name != "gt" && name != "quot") return "&" + name;
    }
    if (text[i] != '<') continue;
    const std::size_t end = text.find('>', i);
    if (end == std::string::npos) return "a tag without its end";
    const std::string tag = text.substr(i + 1, end - i - 1);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "quotes of <" + tag;
    if (tag.find('<') != std::string::npos) return "< in <" + tag;
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "<" + tag + "> closes nothing";
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    i = end;
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

// Catches: interpolating lengths and not their logarithms, which are what the sweep is even in.
TEST(Crossover, LiesBetweenTwoLengthsStraightInTheLogarithms) {
  const KernelLine line = line_of({{256, 4.0}, {1024, 0.25}});
  ASSERT_TRUE(crossover_length(line));
  EXPECT_NEAR(*crossover_length(line), 512, 1e-6);
  EXPECT_EQ(crossover_text(line),
            "forward, terraced hedgehog_softmax: faster than softmax from T = 512 on");
  EXPECT_EQ(crossover_json(line)["faster_at"], "from_length_on");
}

// Catches: a crossing into noise being taken for the one from which linear attention stays ahead.
TEST(Crossover, OfSeveralTheLastCounts) {
  const KernelLine line = line_of({{128, 2.0}, {256, 0.5}, {512, 2.0}, {1024, 0.5}});
  ASSERT_TRUE(crossover_length(line));
  EXPECT_NEAR(*crossover_length(line), std::sqrt(512.0 * 1024.0), 1e-6);
}

// Catches: extrapolation, and one sentence for both sides.
TEST(Crossover, OutsideTheSweepIsSaidWithItsSide) {
  const KernelLine faster = line_of({{256, 0.9}, {512, 0.5}});
  EXPECT_FALSE(crossover_length(faster));
  EXPECT_THAT(crossover_text(faster),
              HasSubstr("not within the sweep, faster than softmax at all its lengths"));
  EXPECT_EQ(crossover_json(faster)["faster_at"], "every_length");
  const KernelLine slower = line_of({{256, 0.9}, {512, 1.0}});
  EXPECT_FALSE(crossover_length(slower));
  EXPECT_THAT(crossover_text(slower), HasSubstr("not within the sweep, slower than softmax"));
  EXPECT_EQ(crossover_json(slower)["faster_at"], "no_length");
  EXPECT_EQ(crossover_json(slower)["length"], nullptr);
}

// Catches: a length at which no softmax fitted being read as a victory or a defeat.
TEST(Crossover, LengthsWithoutAnOpponentDoNotCount) {
  EXPECT_NEAR(*crossover_length(line_of({{256, 2.0}, {512, kNan}, {1024, 0.5}})), 512, 1e-6);
  EXPECT_THAT(crossover_text(line_of({{256, kNan}})), HasSubstr("no softmax to compare with"));
}

TEST(KernelLines, NameOnlyWhatTheyDifferInAndSortTheirLengths) {
  std::vector<KernelRow> rows = {row_of(512, 1), row_of(256, 2), row_of(256, 2, "sliding")};
  std::vector<KernelLine> lines = kernel_lines(rows);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].name, "terraced hedgehog_softmax");
  EXPECT_EQ(lines[1].name, "sliding hedgehog_softmax");
  EXPECT_EQ(lines[0].rows[0].length, 256);
  rows.back().features = 128;
  rows.back().dtype = "fp32";
  lines = kernel_lines(rows);
  EXPECT_EQ(lines[1].name, "sliding hedgehog_softmax F = 128 fp32");
}

// Catches: rows that come one by one and do not stand under their titles.
TEST(KernelTable, RowsPrintedOneByOneStandUnderTheirTitles) {
  for (const int width : {200, 120, 80, 40}) {
    const std::string title = KernelTable::title(width);
    KernelRow small = row_of(256, 2.25), large = row_of(1 << 20, 0.001234);
    small.ms = 0.001;
    large.ms = 123456;
    for (const KernelRow& row : {small, large}) {
      const std::string line = KernelTable::line(row, width);
      EXPECT_LE(line.size(), static_cast<std::size_t>(width));
      EXPECT_EQ(line.substr(0, 9), "forward  ");
      const std::string length = std::to_string(row.length);
      EXPECT_EQ(line.find(length + " ") + length.size(), title.find(" T ") + 2) << title << "\n"
                                                                                << line;
    }
  }
}

TEST(KernelPlot, TicksAreRoundAndEncloseTheirValues) {
  EXPECT_THAT(log_ticks(3, 40), ElementsAre(2, 5, 10, 20, 50));
  EXPECT_THAT(log_ticks(1, 10), ElementsAre(1, 2, 5, 10));
  EXPECT_THAT(log_ticks(0.5, 0.5), ElementsAre(0.5, 1));
  EXPECT_THAT(log_ticks(0.012, 0.018),
              ElementsAre(::testing::DoubleNear(0.01, 1e-12), ::testing::DoubleNear(0.02, 1e-12)));
}

TEST(KernelPlot, IsWellFormedAsciiWithTitleDescriptionAxesAndEveryPoint) {
  const std::vector<KernelRow> rows = {
      row_of(256, 4), row_of(1024, 0.25), row_of(256, 2, "sliding")};
  const std::string svg = kernel_plot(kernel_lines(rows), "A <processor> & \"co\" \xc2\xae");
  EXPECT_EQ(xml_fault(svg), "") << svg;
  EXPECT_THAT(svg, HasSubstr("<title id=\"title\">"));
  EXPECT_THAT(svg,
              HasSubstr("<desc id=\"description\">A &lt;processor&gt; &amp; &quot;co&quot; ??."));
  EXPECT_THAT(svg, HasSubstr("faster than softmax from T = 512 on"));
  EXPECT_THAT(svg, HasSubstr(">512</text>"));  // the crossover's label
  EXPECT_THAT(svg, HasSubstr(">256</text>"));  // a tick of T
  EXPECT_THAT(svg, HasSubstr(">microseconds a token</text>"));
  EXPECT_EQ(count_of(svg, "class=\"softmax\" points="), 1U);  // one dashed line a panel
  EXPECT_EQ(count_of(svg, "us a token</title>"), rows.size());
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark"));
}

// Catches: a legend of a line that is not there.
TEST(KernelPlot, NamesSoftmaxOnlyWhereItIsDrawn) {
  const std::string in_legend = ">softmax, the fastest backend</text>";
  const std::vector<KernelRow> met = {row_of(256, 4), row_of(1024, 0.25)};
  EXPECT_EQ(count_of(kernel_plot(kernel_lines(met), "here"), in_legend), 1U);
  const std::vector<KernelRow> alone = {row_of(256, kNan), row_of(1024, kNan)};
  EXPECT_EQ(count_of(kernel_plot(kernel_lines(alone), "here"), in_legend), 0U);
}

// Catches: a division by the logarithm of 1, and a plot that cannot be opened.
TEST(KernelPlot, OneLengthOrNothingIsStillAPlot) {
  for (const auto& rows : {std::vector<KernelRow>{row_of(256, 2)}, {}}) {
    const std::string svg = kernel_plot(kernel_lines(rows), "here");
    EXPECT_EQ(xml_fault(svg), "") << svg;
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
  }
}

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
      {{"--features", "63"}, "attention.feature_dim = 63: must be even with negation"},
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
  EXPECT_EQ(xml_fault(std::string{std::istreambuf_iterator<char>(file), {}}), "");
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
  const Answer answer = run_line({"bench", "kernels", "--plot", worker.plot()}, worker.console());
  EXPECT_EQ(answer.code, 4) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("forward, terraced relu: crossover not within the sweep"));
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
