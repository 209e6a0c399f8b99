#include "worker/transfer/capture.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "storage/base/error.hpp"
#include "storage/faults/fault_point.hpp"
#include "worker/model/tensor_bytes.hpp"
#include "worker/task/stopwatch.hpp"
#include "worker/transfer/block_input.hpp"

namespace hedgerow::worker {
namespace {

storage::ShardInfo shard_info(RunContext& run,
                              const wire::Task& task,
                              const storage::CapturePlan& plan,
                              int shard) {
  storage::ShardInfo info;
  info.boundary = task.block + 1;
  info.shard = shard;
  info.fencing_token = task.fencing_token;
  info.first_sequence = plan.shard_begin(shard);
  info.num_sequences = plan.shard_size(shard);
  info.seq_len = run.tokens(storage::DataStage::kTransfer).seq_len;
  info.hidden_size = run.config().hidden_size;
  info.dtype = storage_dtype(run.stream());
  return info;
}

// A stream that is not finite would poison every later block; better to name where it began.
void append(storage::ShardWriter& writer,
            const at::Tensor& hidden_states,
            const wire::Task& task,
            std::int64_t first) {
  const at::Tensor bytes = hidden_states.cpu().contiguous();
  const std::size_t per_sequence = bytes.nbytes() / static_cast<std::size_t>(bytes.size(0));
  for (std::int64_t i = 0; i < bytes.size(0); ++i) {
    if (!at::isfinite(bytes.select(0, i).sum(at::kFloat)).item<bool>()) {
      throw storage::Error(
          storage::ErrorKind::kCorrupt,
          "block " + std::to_string(task.block) + ", captured sequence " +
              std::to_string(first + i) +
              ": the residual stream is not finite; check the model's weights, or set "
              "plan.shard_dtype = \"bf16\" if it is fp16");
    }
    writer.append({static_cast<const std::byte*>(bytes.const_data_ptr()) +
                       static_cast<std::size_t>(i) * per_sequence,
                   per_sequence});
  }
}

nlohmann::json result_of(const wire::Task& task,
                         std::int64_t tokens,
                         double seconds,
                         double seconds_waited_on_data) {
  const double speed = seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
  return {{"shards", task.num_shards},
          {"tokens", tokens},
          {"seconds", seconds},
          {"tokens_per_second", speed},
          {"seconds_waited_on_data", seconds_waited_on_data}};
}

// Throws Stopped.
TaskResult capture(RunContext& run, TaskContext& context, const wire::Task& task) {
  const Stopwatch clock;
  // An earlier worker had its last shard committed and died before it could report the task as
  // done.
  if (task.num_shards == 0) return {.finished = true, .result = result_of(task, 0, 0.0, 0.0)};
  wire::Progress progress;
  progress.phase = "loading";
  progress.num_steps = task.num_layers;
  const auto tell = [&] {
    progress.seconds = clock.seconds();
    context.report(progress);
  };
  tell();
  const BlockRunner& block = run.block(task.first_layer, task.num_layers, [&](int loaded) {
    stop_if_told(context);
    progress.step = loaded;
    tell();
  });

  storage::CapturePlan plan = run.capture_plan();
  plan.sequences_per_shard = task.sequences_per_shard;
  const int end_shard = task.first_shard + task.num_shards;
  const std::int64_t begin = plan.shard_begin(task.first_shard);
  const std::int64_t end = plan.shard_begin(end_shard - 1) + plan.shard_size(end_shard - 1);
  std::vector<std::int64_t> order(static_cast<std::size_t>(end - begin));
  std::iota(order.begin(), order.end(), begin);
  BlockInput input(run, task);
  input.plan(order);

  progress = {};
  progress.phase = "capturing";
  progress.num_steps = end - begin;
  const Attend attend = [](int, const Qkv& qkv) { return teacher_attention(qkv); };
  const auto check_cancelled = [&context] { stop_if_told(context); };
  for (int shard = task.first_shard; shard < end_shard; ++shard) {
    const storage::ShardInfo info = shard_info(run, task, plan, shard);
    const std::string name =
        storage::RunLayout::hidden_shard(info.boundary, shard, task.fencing_token);
    const std::filesystem::path path = attempt_path(run.layout(), task.fencing_token, name);
    std::filesystem::create_directories(path.parent_path());
    std::optional<storage::FaultScope> writing("worker.capture.shard");
    storage::ShardWriter writer(path, info);
    for (std::int64_t i = 0; i < info.num_sequences;) {
      const std::int64_t count = std::min(plan.sequences_per_forward, info.num_sequences - i);
      const at::Tensor out = block.run(
          input.next(count), run.rope(info.seq_len), attend, {.check_cancelled = check_cancelled});
      append(writer, out.to(run.stream()), task, info.first_sequence + i);
      i += count;
      progress.step += count;
      progress.tokens = progress.step * info.seq_len;
      progress.seconds_waited_on_data = input.seconds_waited();
      tell();
    }
    const storage::FileRecord written = writer.finish(name);
    writing.reset();
    storage::fault_point("worker.capture.shard_written", task.block);
    context.publish_shard(written, shard);
  }

  return {
      .finished = true,
      .result = result_of(task, progress.tokens, clock.seconds(), progress.seconds_waited_on_data)};
}

}  // namespace

TaskResult run_capture(RunContext& run, TaskContext& context, const wire::Task& task) {
  try {
    return capture(run, context, task);
  } catch (const Stopped&) {
    return {};  // the shards that it committed stand
  }
}

}  // namespace hedgerow::worker
