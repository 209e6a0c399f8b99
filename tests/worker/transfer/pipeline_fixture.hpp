// Run directories of a tiny random model, and what a whole forward of it gives.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>

#include "tests/support/temporary_directory.hpp"
#include "tests/support/tiny_model.hpp"
#include "tests/support/tiny_run.hpp"
#include "worker/transfer/capture.hpp"
#include "worker/transfer/transfer.hpp"

namespace hedgerow::tests {

inline constexpr std::int64_t kNumTrain =
    14;  // not a multiple of sequences_per_step: the tail of an epoch is dropped

class Pipeline : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(
        1);  // these tensors are too small to share, and other tests run beside this one
    write_tiny_model(model());
    recipe_ = tiny_recipe(model());
  }

  std::filesystem::path model() const { return directory_ / "model"; }

  // A run directory with the fixture's recipe, changed by `change`.
  std::filesystem::path make_run(const std::string& name,
                                 const std::function<void(storage::Recipe&)>& change = {}) {
    storage::Recipe recipe = recipe_;
    if (change) change(recipe);
    const auto root = directory_ / name;
    write_tiny_run(root, recipe, kNumTrain);
    return root;
  }

  // The residual stream of one captured sequence after `num_layers` layers of the whole model, in
  // the shard dtype.
  static at::Tensor full_forward(worker::RunContext& run,
                                 std::int64_t capture_index,
                                 int num_layers) {
    const auto ids = run.tokens(storage::DataStage::kTransfer)
                         .sequence(run.capture_plan().token_sequence(capture_index));
    const at::Tensor input_ids = at::empty({1, static_cast<std::int64_t>(ids.size())}, at::kLong);
    std::copy(ids.begin(), ids.end(), input_ids.data_ptr<std::int64_t>());
    const at::Tensor start =
        worker::round_to_stream(worker::embed(input_ids, run.embedding()), run.stream());
    const auto& all = run.block(0, run.config().num_hidden_layers);
    const auto attend = [](int, const worker::Qkv& qkv) { return worker::teacher_attention(qkv); };
    return all.run(start, run.rope(start.size(1)), attend, {.num_layers = num_layers})
        .to(run.stream());
  }

  storage::Recipe recipe_;
  TemporaryDirectory directory_;
};

}  // namespace hedgerow::tests
