#include "coordinator/cli/terminal/format.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace hedgerow::coordinator::cli {
namespace {

TEST(Format, BytesGrowThroughTheirUnitsWithoutEverShowingAThousand) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(33'600'000), "33.6 MB");
  EXPECT_EQ(bytes_text(999'949), "1.0 MB");
  EXPECT_EQ(bytes_text(9'200'000'000'000), "9.2 TB");
}

TEST(Format, DurationsKeepTwoUnits) {
  EXPECT_EQ(duration_text(0.44), "0.4s");
  EXPECT_EQ(duration_text(9.96), "10s");
  EXPECT_EQ(duration_text(59.4), "59s");
  EXPECT_EQ(duration_text(725), "12m05s");
  EXPECT_EQ(duration_text(7800), "2h10m");
  EXPECT_EQ(duration_text(3 * 86400 + 4 * 3600), "3d04h");
  EXPECT_EQ(duration_text(NAN), "-");
}

TEST(Format, BarFillsWithItsFractionAndKeepsItsWidth) {
  EXPECT_EQ(bar(0.0, 12), "[----------]");
  EXPECT_EQ(bar(0.45, 12), "[####------]");
  EXPECT_EQ(bar(7.0, 12), "[##########]");
  EXPECT_EQ(bar(NAN, 6), "[----]");
}

TEST(Format, OneLineTakesTerminalEscapesOutOfForeignText) {
  EXPECT_EQ(one_line("a\x1b[2Jb\nc"), "a [2Jb c");
}

TEST(Format, WrapBreaksAtSpacesAndIndentsWhatFollows) {
  EXPECT_EQ(wrap("one two three four", 10, 2), "one two\n  three\n  four");
}

TEST(Format, NarrowTableDropsItsLeastImportantColumnFirst) {
  Table table;
  table.column("block", 3, true).column("state", 2).column("worker", 1);
  table.row({"0", "done", "somewhere-far-away"});
  table.row({"12", "running", "here"});
  EXPECT_EQ(
      table.render(80),
      (std::vector<std::string>{
          "block  state    worker", "    0  done     somewhere-far-away", "   12  running  here"}));
  EXPECT_EQ(table.render(20),
            (std::vector<std::string>{"block  state", "    0  done", "   12  running"}));
  EXPECT_EQ(table.render(4), (std::vector<std::string>{"blo~", "   ~", "   ~"}));
}

TEST(Format, ALineIsCutBehindAWordAndFieldsGoAsAWhole) {
  EXPECT_EQ(fit_words("failed three times, on two workers", 34),
            "failed three times, on two workers");
  EXPECT_EQ(fit_words("failed three times, on two workers", 21), "failed three times~");
  EXPECT_EQ(fit_words("failed three times, on two workers", 12), "failed~");
  EXPECT_EQ(fit_words("/a/path/without/a/space", 10), "/a/path/w~");
  const std::vector<Field> fields{
      {"", "transfer 25%", 3}, {" | ", "elapsed 2m06s", 1}, {" | ", "eta 5s", 2}};
  EXPECT_EQ(join(fields, 37), "transfer 25% | elapsed 2m06s | eta 5s");
  EXPECT_EQ(join(fields, 36), "transfer 25% | eta 5s");
  EXPECT_EQ(join(fields, 20), "transfer 25%");
  EXPECT_EQ(join(fields, 8), "transfe~") << "nothing is left to leave out";
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
