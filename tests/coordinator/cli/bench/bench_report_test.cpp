// What `bench kernels` makes of its rows: lines, crossovers, the table and the plot.
#include "coordinator/cli/bench/bench_report.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "coordinator/cli/bench/bench_plot.hpp"
#include "tests/coordinator/cli/svg.hpp"

namespace hedgerow::coordinator::cli {
namespace {

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
              HasSubstr("crossover not seen, faster than softmax at all lengths measured"));
  EXPECT_EQ(crossover_json(faster)["faster_at"], "every_length");
  const KernelLine slower = line_of({{256, 0.9}, {512, 1.0}});
  EXPECT_FALSE(crossover_length(slower));
  EXPECT_THAT(crossover_text(slower),
              HasSubstr("crossover not seen, slower than softmax at the greatest length measured"));
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
  constexpr std::size_t kSoftmaxPoints = 2;
  EXPECT_EQ(count_of(svg, "us a token</title>"), rows.size() + kSoftmaxPoints);
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

// Catches: a line of one point, of which nothing can be seen.
TEST(KernelPlot, OneLengthShowsBothSidesByTheirMarks) {
  const std::string svg = kernel_plot(kernel_lines({row_of(256, 2)}), "here");
  EXPECT_EQ(count_of(svg, "<polyline"), 0U);
  EXPECT_THAT(svg, HasSubstr("<title>terraced hedgehog_softmax, T = 256: 2 us a token</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>softmax, T = 256: 1 us a token</title>"));
  EXPECT_THAT(svg, HasSubstr(">softmax, the fastest backend</text>"));
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
