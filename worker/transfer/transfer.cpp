#include "worker/transfer/transfer.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "storage/base/error.hpp"
#include "storage/faults/fault_point.hpp"
#include "storage/files/file.hpp"
#include "storage/tensors/checkpoint.hpp"
#include "worker/model/attention_path.hpp"
#include "worker/task/attempt_files.hpp"
#include "worker/task/stopwatch.hpp"
#include "worker/transfer/block_input.hpp"
#include "worker/transfer/layer_trainer.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;
using TensorMap = std::map<std::string, storage::OwnedTensor>;

constexpr const char* kCheckpointFormat = "transfer/1";

// One transfer task from its start or its checkpoint to its end.
class Transfer {
 public:
  Transfer(RunContext& run, TaskContext& context, const wire::Task& task)
      : run_(run),
        context_(context),
        task_(task),
        transfer_(run.recipe().transfer),
        plan_(run.capture_plan()),
        files_(run.layout(), context, task) {
    const std::set<int> kept(transfer_.softmax_layers.layers.begin(),
                             transfer_.softmax_layers.layers.end());
    for (int layer = task.first_layer; layer < task.first_layer + task.num_layers; ++layer) {
      if (!kept.contains(layer)) trainers_.emplace(layer, students_of_layer(layer, run.recipe()));
    }
    num_validation_ = std::min<std::int64_t>(transfer_.validation_sequences, plan_.num_validation);
  }

  TaskResult run() {
    std::filesystem::create_directories(
        run_.layout().resolve(storage::RunLayout::attempt_directory(task_.fencing_token)));
    try {
      load_block();
    } catch (const Stopped&) {
      return {};  // it has done nothing yet
    }
    say_path();
    if (task_.resume) resume();
    storage::fault_step(step_);
    BlockInput train(run_, task_), validation(run_, task_);
    train.plan(remaining_order());
    input_ = &train;
    validation_input_ = &validation;
    try {
      train_to_the_end();
    } catch (const Stopped&) {
      // Inside a step: its gradients are dropped, the last whole step's state is what counts.
      return pause();
    }
    return finish();
  }

 private:
  // The recipe's own trainer, then those of its variants, in the order of student_names_.
  std::vector<LayerTrainer> students_of_layer(int layer, const storage::Recipe& recipe) {
    std::vector<LayerTrainer> students;
    student_names_ = {""};
    students.emplace_back(layer, recipe, run_.config(), task_.seed, run_.device());
    for (const storage::Variant& variant : recipe.variants) {
      for (int seed = 0; seed < variant.seeds; ++seed) {
        student_names_.push_back(storage::Recipe::student_name(variant, seed));
        students.emplace_back(layer,
                              recipe.of(variant),
                              run_.config(),
                              task_.seed + static_cast<std::uint64_t>(seed),
                              run_.device(),
                              student_names_.back());
      }
    }
    return students;
  }

  // Throws Stopped, with the state after the last whole step.
  void train_to_the_end() {
    while (true) {
      if (is_validation_due()) validate();
      if (step_ == transfer_.max_steps || num_needed_layers() == 0) break;
      if (step_ > first_step_ && step_ % transfer_.checkpoint_every == 0) checkpoint();
      stop_if_told(context_);
      train_step();
    }
    write_attention_maps();
  }

  // Maps of the layers at 0, 1/4, 1/2 and 3/4 of the model's depth, and of the last, of those that
  // this block trains.
  void write_attention_maps() {
    const int num_layers = run_.config().num_hidden_layers;
    std::map<int, const LayerTrainer*> shown;
    for (int i = 0; i <= 4; ++i) {
      const auto found = trainers_.find(std::min(num_layers * i / 4, num_layers - 1));
      if (found != trainers_.end()) shown[found->first] = &found->second.front();
    }
    if (shown.empty()) return;
    std::string lines;
    validation_input_->plan({plan_.validation_capture_index(0)});
    const at::Tensor hidden_states = validation_input_->next(1);
    block_->run(hidden_states,
                run_.rope(hidden_states.size(1)),
                [&](int layer, const Qkv& qkv) {
                  if (const auto found = shown.find(layer); found != shown.end()) {
                    for (nlohmann::json& map : found->second->attention_maps(qkv))
                      lines += nlohmann::json{{"attention", std::move(map)}}.dump() + "\n";
                  }
                  return teacher_attention(qkv);
                },
                {.num_layers = shown.rbegin()->first - task_.first_layer + 1,
                 .finish_last = false,
                 .check_cancelled = [this] { stop_if_told(context_); }});
    files_.append_metrics(lines);
  }

  void say_path() const {
    AttentionPath path =
        attention_path(AttentionUse::kTransfer, run_.config(), run_.device(), run_.compute_dtype());
    path.xent_factor = transfer_.xent_factor;
    if (!trainers_.empty()) {
      path.parameters = &trainers_.begin()->second.front().parameters();
      path.options = trainers_.begin()->second.front().options();
    }
    say_attention(path);
  }

  void load_block() {
    progress_.phase = "loading";
    progress_.num_steps = task_.num_layers;
    tell();
    block_ = &run_.block(task_.first_layer, task_.num_layers, [this](int loaded) {
      stop_if_told(context_);
      progress_.step = loaded;
      tell();
    });
    progress_.num_steps = transfer_.max_steps;
    progress_.step = 0;
  }

  // Before the first step, every so often and after the last; once at any step.
  [[nodiscard]] bool is_validation_due() const {
    const bool due = step_ == transfer_.max_steps || step_ % transfer_.validate_every == 0;
    return due && validated_ != step_;
  }

  TaskResult pause() {
    if (validated_ >= 0) checkpoint();  // before the first validation there is nothing to lose
    return {};
  }

  // How many layers of the block must still run: up to the last one that trains.
  [[nodiscard]] int num_needed_layers() const {
    int needed = 0;
    for (const auto& [layer, students] : trainers_) {
      if (still_trains(students)) needed = layer - task_.first_layer + 1;
    }
    return needed;
  }

  [[nodiscard]] static bool still_trains(const std::vector<LayerTrainer>& students) {
    return std::ranges::any_of(students,
                               [](const LayerTrainer& student) { return !student.stopped(); });
  }

  // visit: what still trains of a layer, one after another -> its teacher's output, which is given
  // to the next ones; undefined for the first.
  void forward(
      const at::Tensor& hidden_states,
      const std::function<at::Tensor(LayerTrainer&, const Qkv&, const at::Tensor& y_true)>& visit) {
    const Attend attend = [&](int layer, const Qkv& qkv) {
      at::Tensor y_true;
      if (const auto found = trainers_.find(layer); found != trainers_.end()) {
        for (LayerTrainer& student : found->second) {
          if (!student.stopped()) y_true = visit(student, qkv, y_true);
        }
      }
      return y_true.defined() ? y_true : teacher_attention(qkv);
    };
    block_->run(hidden_states,
                run_.rope(hidden_states.size(1)),
                attend,
                {.num_layers = num_needed_layers(),
                 .finish_last = false,
                 .attend_batched = true,
                 .check_cancelled = [this] { stop_if_told(context_); }});
  }

  // Tokens of whole steps: what a partial step has seen is seen again.
  [[nodiscard]] std::int64_t tokens_trained() const {
    return step_ * transfer_.sequences_per_step *
           run_.tokens(storage::DataStage::kTransfer).seq_len;
  }

  void train_step() {
    const storage::FaultScope scope("worker.transfer.training");
    const std::int64_t rows = plan_.sequences_per_forward;
    const std::int64_t forwards = transfer_.sequences_per_step / rows;
    progress_.phase = "training";
    for (std::int64_t i = 0; i < forwards; ++i) {
      const at::Tensor hidden_states = input_->next(rows);
      forward(hidden_states, [&](LayerTrainer& trainer, const Qkv& qkv, const at::Tensor& given) {
        // Beside others, so that the time of each is its own.
        const bool is_alone = student_names_.size() == 1;
        const at::Tensor y_true = given.defined() || is_alone ? given : teacher_attention(qkv);
        return trainer.accumulate(qkv, 1.0 / static_cast<double>(forwards), y_true);
      });
      progress_.tokens += rows * hidden_states.size(1);
      tell();
    }
    for (auto& [layer, students] : trainers_) {
      for (LayerTrainer& student : students) {
        if (!student.stopped()) student.step();
      }
    }
    order_hash_ = extended(order_hash_, step_);
    ++step_;
    storage::fault_step(step_);
    storage::fault_point("worker.transfer.step", task_.block);
  }

  // A validation that is stopped is done again by the next attempt.
  void validate() {
    const storage::FaultScope scope("worker.transfer.validating");
    progress_.phase = "validating";
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < num_validation_; ++i)
      order.push_back(plan_.validation_capture_index(i));
    validation_input_->plan(order);
    for (std::int64_t i = 0; i < num_validation_;) {
      const std::int64_t count = std::min(plan_.sequences_per_forward, num_validation_ - i);
      forward(validation_input_->next(count),
              [](LayerTrainer& trainer, const Qkv& qkv, const at::Tensor& given) {
                at::Tensor y_true = given.defined() ? given : teacher_attention(qkv);
                trainer.validate(qkv, y_true);
                return y_true;
              });
      i += count;
      tell();
    }
    std::string lines;
    for (auto& [layer, students] : trainers_) {
      for (LayerTrainer& student : students) {
        if (student.stopped()) continue;
        const LayerMetrics& metrics = student.finish_validation(step_);
        // The run's history is of the recipe's own student.
        if (&student == &students.front()) lines += nlohmann::json(metrics).dump() + "\n";
      }
    }
    files_.append_metrics(lines);
    validated_ = step_;
    tell();
  }

  [[nodiscard]] std::vector<std::int64_t> remaining_order() const {
    std::vector<std::int64_t> order;
    for (std::int64_t step = step_; step < transfer_.max_steps; ++step) {
      const auto sequences = storage::step_sequences(run_.recipe(), plan_, step);
      order.insert(order.end(), sequences.begin(), sequences.end());
    }
    return order;
  }

  // A running hash over the sequences of every step: two runs that agree in it have seen the same
  // data in the same order.
  [[nodiscard]] std::uint64_t extended(std::uint64_t hash, std::int64_t step) const {
    const auto sequences = storage::step_sequences(run_.recipe(), plan_, step);
    return storage::hash64(std::as_bytes(std::span(sequences)), hash);
  }

  void checkpoint() {
    if (files_.has_checkpoint(step_)) return;
    const storage::FaultScope scope("worker.transfer.checkpoint");
    storage::Checkpoint checkpoint;
    nlohmann::json layers = nlohmann::json::object();
    nlohmann::json variants = nlohmann::json::object();
    for (const auto& [layer, students] : trainers_) {
      for (std::size_t i = 0; i < students.size(); ++i) {
        nlohmann::json& of = i == 0 ? layers : variants[student_names_[i]];
        of[std::to_string(layer)] = students[i].save(checkpoint.tensors);
      }
    }
    checkpoint.state = {{"kind", kCheckpointFormat},
                        {"block", task_.block},
                        {"seed", task_.seed},
                        {"step", step_},
                        {"validated", validated_},
                        {"seconds", seconds_before_ + clock_.seconds()},
                        {"data", run_.tokens(storage::DataStage::kTransfer).content_hash},
                        {"order", order_hash_},
                        {"layers", std::move(layers)}};
    if (!variants.empty()) checkpoint.state["variants"] = std::move(variants);
    files_.write_checkpoint(checkpoint, step_, [this] {
      storage::fault_point("worker.checkpoint.written", task_.block);
    });
  }

  void resume() {
    resume_from_checkpoint(
        run_.layout(),
        task_,
        "the block",
        {{"kind", kCheckpointFormat, "not a checkpoint of a transfer"},
         {"block", task_.block, "belongs to block "},
         {"seed", task_.seed, "was started from seed "},
         {"data",
          run_.tokens(storage::DataStage::kTransfer).content_hash,
          "was trained on other tokens"}},
        [this](const storage::Checkpoint& checkpoint, const RefuseCheckpoint& refuse) {
          const nlohmann::json& state = checkpoint.state;
          const auto step = state.at("step").get<std::int64_t>();
          for (std::int64_t s = 0; s < step; ++s) order_hash_ = extended(order_hash_, s);
          if (state.at("order") != order_hash_)
            refuse("has seen the sequences in another order than the recipe gives now");
          for (auto& [layer, students] : trainers_) {
            for (std::size_t i = 0; i < students.size(); ++i) {
              const nlohmann::json& of =
                  i == 0 ? state.at("layers") : state.at("variants").at(student_names_[i]);
              students[i].restore(checkpoint.tensors, of.at(std::to_string(layer)));
            }
          }
          step_ = first_step_ = step;
          state.at("validated").get_to(validated_);
          progress_.tokens = tokens_trained();
          state.at("seconds").get_to(seconds_before_);
        });
  }

  // Of a variant no more goes into the result: a message holds those of fifty students.
  [[nodiscard]] static nlohmann::json told_of(const std::string& student,
                                              const nlohmann::json& layers) {
    nlohmann::json told = {{"student", student}};
    for (const nlohmann::json& layer : layers) {
      const double error = layer.at("relative_mse");
      const bool is_untrained = layer.value("kept_untrained", false);
      told["relative_mse"].push_back(error);
      told["kept_untrained"].push_back(is_untrained);
      told["trained_relative_mse"].push_back(is_untrained
                                                 ? error * layer.at("trained_mse").get<double>() /
                                                       layer.at("mse").get<double>()
                                                 : error);
    }
    return told;
  }

  TaskResult finish() {
    TensorMap owned;
    nlohmann::json layers = nlohmann::json::array();
    nlohmann::json variants = nlohmann::json::array(), own_seconds;
    for (std::size_t i = 0; i < student_names_.size(); ++i) {
      TensorMap own;
      nlohmann::json results = nlohmann::json::array();
      double seconds = 0.0;
      for (const auto& [layer, students] : trainers_) {
        students[i].export_best(own);
        results.push_back(students[i].result());
        seconds += students[i].seconds_per_step() / static_cast<double>(trainers_.size());
      }
      const std::string prefix = storage::tensors_of_student(student_names_[i]);
      for (auto& [name, tensor] : own) owned.emplace(prefix + name, std::move(tensor));
      if (i == 0)
        layers = std::move(results);
      else
        variants.push_back(told_of(student_names_[i], results));
      // A GPU's work is not over when its calls return.
      if (seconds > 0.0 && !run_.device().is_cuda())
        (i == 0 ? own_seconds : variants.back()["seconds_per_step"]) = seconds;
    }
    std::map<std::string, storage::TensorView> views;
    for (const auto& [name, tensor] : owned)
      views[name] = {tensor.dtype, tensor.shape, tensor.bytes};
    TaskResult result{.finished = true};
    const std::string name = storage::RunLayout::block_artifact(task_.block, task_.fencing_token);
    const auto path = attempt_path(run_.layout(), task_.fencing_token, name);
    storage::write_safetensors(path, views, {{"format", "feature_maps/1"}});
    storage::fault_point("worker.artifact.written", task_.block);
    result.files = {{name, std::filesystem::file_size(path), storage::hash_file(path)}};
    const double seconds = seconds_before_ + clock_.seconds();
    result.result = {{"layers", std::move(layers)},
                     {"steps", step_},
                     {"tokens", tokens_trained()},
                     {"seconds", seconds},
                     {"tokens_per_second", static_cast<double>(tokens_trained()) / seconds},
                     {"seconds_waited_on_data", progress_.seconds_waited_on_data}};
    if (!variants.empty()) {
      result.result["variants"] = std::move(variants);
      if (!own_seconds.is_null()) result.result["seconds_per_step"] = own_seconds;
    }
    return result;
  }

  void tell() {
    if (progress_.phase != "loading") progress_.step = step_;
    progress_.seconds = seconds_before_ + clock_.seconds();
    if (input_ != nullptr)
      progress_.seconds_waited_on_data =
          input_->seconds_waited() + validation_input_->seconds_waited();
    context_.report(progress_);
  }

  RunContext& run_;
  TaskContext& context_;
  const wire::Task& task_;
  storage::TransferSection transfer_;
  storage::CapturePlan plan_;
  // By global layer, of each student; kept softmax layers have none.
  std::map<int, std::vector<LayerTrainer>> trainers_;
  std::vector<std::string> student_names_;  // the recipe's own is ""
  std::int64_t num_validation_ = 0;
  const BlockRunner* block_ = nullptr;
  BlockInput* input_ = nullptr;
  BlockInput* validation_input_ = nullptr;
  std::int64_t step_ = 0;
  std::int64_t first_step_ = 0;  // of this attempt
  std::int64_t validated_ = -1;  // the last step with a whole validation
  std::uint64_t order_hash_ = 0;
  double seconds_before_ = 0.0;  // of the attempts that this one continues
  Stopwatch clock_;
  wire::Progress progress_;
  AttemptFiles files_;
};

}  // namespace

TaskResult run_transfer(RunContext& run, TaskContext& context, const wire::Task& task) {
  return Transfer(run, context, task).run();
}

}  // namespace hedgerow::worker
