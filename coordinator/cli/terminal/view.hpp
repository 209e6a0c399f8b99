// A run as lines of text: pure functions of its status, its history and the width, shared by
// `status`, `watch` and `run`.
#pragma once

#include <string>
#include <vector>

#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/status/status.hpp"
#include "storage/history/history.hpp"

namespace hedgerow::coordinator::cli {

// What is known of one block: the last validation MSE of its layers, the worst of them and which
// layer it is.
struct BlockMse {
  // By layer of the block, NaN: it keeps softmax attention; empty before the first validation.
  std::vector<double> layers;
  int first_layer = 0;
  [[nodiscard]] double mean() const;      // NaN when none
  [[nodiscard]] double worst() const;     // NaN when none
  [[nodiscard]] int worst_layer() const;  // -1 when none
};
// The MSE of a transfer that is done as its result has it, else as the history: what an attempt
// measured is known as long as its checkpoint is, or it runs.
[[nodiscard]] BlockMse mse_of(const TaskStatus& transfer, const storage::History* history);

// "adapter of step 40 of 60, the best by validation", of the task finetune; empty: it is not done,
// validated nothing, or is an earlier build's.
[[nodiscard]] std::string adapter_text(const TaskStatus& finetune);

// "blocks 9/14 done, 3 running | transfer 64%  1.04 s/step | total 40% | elapsed 12m05s | eta
// 2h10m". Where the width does not suffice, whole parts go, the least important first and the ETA
// never.
[[nodiscard]] std::string status_line(const RunStatus& status,
                                      int width = kUnlimitedWidth,
                                      const storage::History* history = nullptr);

// The parts of a view, no line of them wider than `width`: what does not fit goes as a whole.

// Which run, its state, elapsed time and coordinator.
[[nodiscard]] std::string head_line(const RunStatus& status, int width);
// One bar a stage, with what it has taken of what was planned, and a line for GPU-hours and money.
[[nodiscard]] std::vector<std::string> stage_lines(const RunStatus& status, int width);
// A table of the blocks: layers, state, step, MSE, attempts, where there is room peak memory, and
// worker or reason. Of more blocks than rows those are there that run or are in trouble.
// With `draws_heat`, one character a layer, too (history_lines.hpp).
[[nodiscard]] std::vector<std::string> block_lines(const RunStatus& status,
                                                   int width,
                                                   std::size_t max_rows = kUnlimitedRows,
                                                   const storage::History* history = nullptr,
                                                   bool draws_heat = true);
// The last validation MSE of each layer, in as many columns as fit; with `draws_heat`, its way
// there.
[[nodiscard]] std::vector<std::string> layer_lines(const RunStatus& status,
                                                   int width,
                                                   const storage::History* history = nullptr,
                                                   bool draws_heat = true);
// With the speed of each: seconds a step where it trains, else tokens a second.
[[nodiscard]] std::vector<std::string> worker_lines(const RunStatus& status, int width);
// What killed and failed attempts cost, one line; none: nothing.
[[nodiscard]] std::vector<std::string> loss_lines(const RunStatus& status, int width);
// Perplexities beside the control's with the share of its gap that is closed, which step the
// adapter is of, and the layers that are kept untrained.
[[nodiscard]] std::vector<std::string> result_lines(const RunStatus& status, int width);
[[nodiscard]] std::vector<std::string> warning_lines(const RunStatus& status, int width);

}  // namespace hedgerow::coordinator::cli
