#include "worker/logits/logits.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "storage/base/error.hpp"
#include "storage/faults/fault_point.hpp"
#include "storage/shape/budgets.hpp"
#include "storage/shards/hidden_shard.hpp"
#include "worker/logits/top_logits.hpp"
#include "worker/task/stopwatch.hpp"
#include "worker/transfer/block_input.hpp"

namespace hedgerow::worker {
namespace {

using storage::DataStage;


class LogitsTask {
 public:
  LogitsTask(RunContext& run, TaskContext& context, const wire::Task& task)
      : run_(run),
        context_(context),
        task_(task),
        plan_(run.logits_plan()),
        top_k_(run.recipe().finetune.top_k),
        seq_len_(run.tokens(DataStage::kFinetune).seq_len),
        begin_(task.first_shard * task.sequences_per_shard),
        end_(std::min((task.first_shard + task.num_shards) * task.sequences_per_shard,
                      plan_.sequences.num_sequences())) {}

  // Throws Stopped.
  TaskResult run() {
    const c10::NoGradGuard no_grad;
    // A sequence through a layer, or through the head.
    const std::int64_t num_layers = plan_.from_boundary ? 0 : task_.num_layers;
    progress_.num_steps = (end_ - begin_) * (num_layers + 1);
    tell("loading");
    outer_ = load_outer(run_.model(), run_.compute_dtype(), run_.device(), run_.load_hooks([this] {
      stop_if_told(context_);
    }));
    const std::string name = storage::RunLayout::logits(task_.piece, task_.fencing_token);
    const std::filesystem::path path = attempt_path(run_.layout(), task_.fencing_token, name);
    std::filesystem::create_directories(path.parent_path());
    const storage::FaultScope writing("worker.logits.file");
    writer_.emplace(path, info());
    plan_.from_boundary ? from_boundary() : from_tokens();
    TaskResult result{.finished = true};
    result.files.push_back(writer_->finish(name));
    storage::fault_point("worker.logits.written");
    const double seconds = clock_.seconds();
    result.result = {{"tokens", progress_.tokens},
                     {"seconds", seconds},
                     {"tokens_per_second", static_cast<double>(progress_.tokens) / seconds},
                     {"seconds_waited_on_data", progress_.seconds_waited_on_data}};
    return result;
  }

 private:
  static at::Tensor attend(int /*layer*/, const Qkv& qkv) { return teacher_attention(qkv); }

  [[nodiscard]] storage::ShardInfo info() const {
    storage::ShardInfo info;
    info.boundary = run_.config().num_hidden_layers;  // no hidden states have it
    info.shard = task_.piece;
    info.fencing_token = task_.fencing_token;
    info.first_sequence = begin_;
    info.num_sequences = end_ - begin_;
    info.seq_len = seq_len_;
    info.hidden_size = storage::logits_bytes(top_k_);
    info.dtype = storage::DType::kU8;
    return info;
  }

  void from_boundary() {
    const BlockRunner& layers = run_.block(
        task_.first_layer, task_.num_layers, [this](int /*loaded*/) { stop_if_told(context_); });
    std::vector<std::int64_t> order(static_cast<std::size_t>(end_ - begin_));
    std::iota(order.begin(), order.end(), begin_);
    BlockInput input(run_, task_);
    input.plan(order);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const at::Tensor stream =
          layers.run(input.next(1), run_.rope(seq_len_), attend, {.check_cancelled = [this] {
                       stop_if_told(context_);
                     }});
      progress_.seconds_waited_on_data = input.seconds_waited();
      append(stream);
    }
  }

  void from_tokens() {
    const storage::TokenSequences& tokens = run_.tokens(DataStage::kFinetune);
    std::vector<at::Tensor> streams;
    for (std::int64_t i = begin_; i < end_; ++i) {
      const auto ids = tokens.sequence(plan_.sequences.token_sequence(i));
      const at::Tensor input_ids = at::empty({1, seq_len_}, at::kInt);
      std::copy(ids.begin(), ids.end(), input_ids.data_ptr<std::int32_t>());
      streams.push_back(round_to_stream(
          embed(input_ids.to(run_.device(), at::kLong), outer_.embed_tokens), run_.stream()));
    }
    const auto check_cancelled = [this] { stop_if_told(context_); };
    for (int layer = task_.first_layer; layer < task_.first_layer + task_.num_layers; ++layer) {
      LayerWeights weights = load_layer(run_.model(),
                                        layer,
                                        run_.compute_dtype(),
                                        run_.device(),
                                        run_.load_hooks(check_cancelled));
      pack_layer(weights, seq_len_);
      const BlockRunner runner(run_.config(), layer, {std::move(weights)}, run_.stream());
      for (at::Tensor& stream : streams) {
        stream =
            runner.run(stream, run_.rope(seq_len_), attend, {.check_cancelled = check_cancelled});
        ++progress_.step;
        tell("capturing");
      }
    }
    for (at::Tensor& stream : streams) {
      append(stream);
      stream = at::Tensor();
    }
  }

  // The residual stream [1, T, M] behind the last layer.
  void append(const at::Tensor& stream) {
    // One buffer for all of them: a new one each time would not fit where the last one lay once a
    // smaller tensor has taken a part of it.
    if (!chunk_.defined()) {
      chunk_ = at::empty({std::min(storage::kLogitRows, seq_len_), run_.config().vocab_size},
                         stream.options().dtype(at::kFloat));
    }
    std::vector<at::Tensor> ids, values, rest;
    for (std::int64_t first = 0; first < seq_len_; first += storage::kLogitRows) {
      stop_if_told(context_);
      const std::int64_t count = std::min(storage::kLogitRows, seq_len_ - first);
      const at::Tensor rows = stream.squeeze(0).narrow(0, first, count);
      const at::Tensor chunk = chunk_.narrow(0, 0, count);
      chunk.copy_(head(rows, outer_, run_.config()));
      const TopLogits top = top_logits(chunk, top_k_);
      ids.push_back(top.ids);
      values.push_back(top.log_probabilities);
      rest.push_back(top.log_rest);
    }
    writer_->append(encode({at::cat(ids), at::cat(values), at::cat(rest)}));
    ++progress_.step;
    progress_.tokens += seq_len_;
    tell("capturing");
  }

  void tell(const char* phase) {
    progress_.phase = phase;
    progress_.seconds = clock_.seconds();
    context_.report(progress_);
  }

  RunContext& run_;
  TaskContext& context_;
  const wire::Task& task_;
  Stopwatch clock_;
  storage::LogitsPlan plan_;
  int top_k_;
  std::int64_t seq_len_, begin_, end_;
  OuterWeights outer_;
  at::Tensor chunk_;  // logits of some positions, fp32 [rows, V]
  std::optional<storage::ShardWriter> writer_;
  wire::Progress progress_;
};

}  // namespace

TaskResult run_logits(RunContext& run, TaskContext& context, const wire::Task& task) {
  try {
    return LogitsTask(run, context, task).run();
  } catch (const Stopped&) {
    return {};
  }
}

}  // namespace hedgerow::worker
