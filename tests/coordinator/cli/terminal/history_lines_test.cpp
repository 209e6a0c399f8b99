// A run's history in the terminal, whole screens of it.
#include "coordinator/cli/terminal/history_lines.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "coordinator/cli/terminal/screen.hpp"

namespace hedgerow::coordinator::cli {
namespace {

// Two blocks of three layers, the second half way; layer 4 gets worse, layer 5 keeps softmax.
RunStatus status_to_compare() {
  RunStatus status;
  status.run = "runs/small";
  status.state = "running";
  status.term = 1;
  status.host = "node7";
  status.pid = 4711;
  status.num_layers = 6;
  status.num_blocks = 2;
  for (int block = 0; block < 2; ++block) {
    TaskStatus task;
    task.id = "transfer/b000" + std::to_string(block);
    task.stage = Stage::kTransfer;
    task.block = block;
    task.first_layer = 3 * block;
    task.num_layers = 3;
    task.state = block == 0 ? "done" : "running";
    task.attempts = 1;
    if (block == 0)
      task.result = {{"layers", {{{"mse", 1e-5}}, {{"mse", 2e-4}}, {{"mse", 3e-3}}}}};
    else
      task.progress.emplace();
    status.tasks.push_back(task);
  }
  return status;
}

storage::History history_of_a_run() {
  storage::History history;
  history.attempts[0] = {};
  for (int layer = 0; layer < 5; ++layer) {
    storage::HistorySeries& series = history.series["layer/" + std::to_string(layer)];
    series.columns = {"mse", "relative_mse", "learning_rate"};
    for (int step = 0; step <= (layer < 3 ? 60 : 30); step += 5) {
      const double falling = std::pow(10.0, -step / 20.0),
                   rising = 0.01 * std::pow(10.0, step / 20.0);
      const auto relative = static_cast<float>(layer == 4 ? rising : falling);
      series.rows.push_back({step, 0.0, {relative / 10, relative, 0.01F}});
    }
    if (layer == 3) series.rows.back().values[0] = 0.01F;
    if (layer == 4) series.rows.back().values[0] = 0.5F;
  }
  return history;
}

std::string screen(int width, std::size_t rows = kUnlimitedRows) {
  const storage::History history = history_of_a_run();
  std::string text;
  for (const std::string& line : whole_view(status_to_compare(), width, rows, &history)) {
    EXPECT_LE(line.size(), static_cast<std::size_t>(width)) << line;
    text += line + "\n";
  }
  return text;
}

TEST(HistoryLines, AnErrorIsACharacterOnALogScale) {
  EXPECT_EQ(heat_of(2.0), '@');
  EXPECT_EQ(heat_of(1.0), '@');
  EXPECT_EQ(heat_of(0.0316), '+') << "the middle";
  EXPECT_EQ(heat_of(0.001), '.');
  EXPECT_EQ(heat_of(0.0), '.');
  EXPECT_EQ(heat_of(INFINITY), '@');
  EXPECT_EQ(heat_of(std::nan("")), ' ');
}

TEST(HistoryLines, ASparklineGoesFromTheFirstValidationToTheLastInAsManyColumnsAsThereAre) {
  const storage::History history = history_of_a_run();
  EXPECT_EQ(sparkline(history, 0, 40), "@%%#**+==-::.");
  EXPECT_EQ(sparkline(history, 0, 5), "@#+-.");
  EXPECT_EQ(sparkline(history, 0, 1), ".");
  EXPECT_EQ(sparkline(history, 9, 40), "") << "no such layer";
  EXPECT_EQ(heat_line(history, 3, 3), "+% ");
}

TEST(HistoryLines, WatchAtEightyColumns) {
  EXPECT_EQ(screen(80), R"(run runs/small: running, term 1 on node7 (pid 4711)

block  layers  state    step      MSE  worst  at  tries  heat
    0  0-2     done           0.00107  0.003  L2      1  |...|
    1  3-5     running          0.255    0.5  L4      1  |+% |

MSE of each layer, and its relative MSE so far: '@' is 1 and more, '.' 0.001
L0 1e-05  |@%%**+=-:.|  L1 0.0002 |@%%**+=-:.|  L2 0.003  |@%%**+=-:.|
L3 0.01   |@%%#**+|     L4 0.5    |==+**#%|     L5 -
)");
}

TEST(HistoryLines, WatchAtFortyColumns) {
  EXPECT_EQ(screen(40), R"(run small: running, term 1 on node7

block  state        MSE  worst  heat
    0  done     0.00107  0.003  |...|
    1  running    0.255    0.5  |+% |

MSE of each layer, and its relative MSE~
L0 1e-05  |@%%**+=-:.|
L1 0.0002 |@%%**+=-:.|
L2 0.003  |@%%**+=-:.|
L3 0.01   |@%%#**+|
L4 0.5    |==+**#%|
L5 -
)");
}

TEST(HistoryLines, MetricsAtEightyColumns) {
  std::string text;
  for (const std::string& line : metrics_lines(history_of_a_run(), 80)) text += line + "\n";
  EXPECT_EQ(text, R"(layer  step     MSE  relative  control  linear  sinks  gradient  rate  history
    0    60  0.0001     0.001        -       -      -         -  0.01  |@%*+=:.|
    1    60  0.0001     0.001        -       -      -         -  0.01  |@%*+=:.|
    2    60  0.0001     0.001        -       -      -         -  0.01  |@%*+=:.|
    3    30    0.01    0.0316        -       -      -         -  0.01  |@%%#**+|
    4    30     0.5     0.316        -       -      -         -  0.01  |==+**#%|
)");
}

TEST(HistoryLines, ABlocksMetricsAreARowAValidation) {
  const auto lines = metrics_lines(history_of_a_run(), 3, 3, 60);
  EXPECT_EQ(lines.size(), 1U + 7U + 7U) << "layers 3 and 4; 5 was never validated";
}

TEST(HistoryLines, ColourStandsBehindHeatAloneAndTakesNoColumns) {
  const std::string line = "stage | eta 5s |@= .| and |x|";
  const std::string coloured = coloured_heat(line);
  EXPECT_NE(coloured.find("\x1b[38;5;"), std::string::npos);
  std::string plain;
  for (std::size_t i = 0; i < coloured.size(); ++i) {
    if (coloured[i] == '\x1b')
      i = coloured.find('m', i);
    else
      plain += coloured[i];
  }
  EXPECT_EQ(plain, line);
  EXPECT_EQ(coloured_heat("blocks 1/2 | transfer 5% | eta -"), "blocks 1/2 | transfer 5% | eta -");
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
