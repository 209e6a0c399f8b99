#include "worker/finetune/finetune.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <optional>

#include "storage/base/error.hpp"
#include "storage/base/fault_point.hpp"
#include "storage/base/file.hpp"
#include "storage/base/hash.hpp"
#include "storage/tensors/checkpoint.hpp"
#include "worker/client/task_inputs.hpp"
#include "worker/finetune/trainer.hpp"
#include "worker/finetune/validation_rules.hpp"
#include "worker/logits/logits_reader.hpp"
#include "worker/task/attempt_files.hpp"
#include "worker/task/stopwatch.hpp"

namespace hedgerow::worker {
namespace {

using storage::DataStage;
using storage::Error;
using storage::ErrorKind;
using storage::FileRecord;
using storage::RunLayout;
namespace fs = std::filesystem;

constexpr const char* kCheckpointKind = "finetune/2";
constexpr const char* kKindWithoutBest = "finetune/1";  // an older build's

std::string student_directory(const wire::Task& task) {
  for (const FileRecord& input : task.inputs) {
    const fs::path name(input.name);
    if (name.filename() == "hedgerow.json") return name.parent_path().string();
  }
  throw Error(ErrorKind::kInternal,
              "a finetune task without a student's hedgerow.json among its inputs");
}

// One finetune task on one rank, from its start or its checkpoint to its end.
class Finetune {
 public:
  Finetune(RunContext& run,
           TaskContext& context,
           const wire::Task& task,
           Communicator& communicator,
           const StopTimeout& timeout)
      : run_(run),
        context_(context),
        task_(task),
        communicator_(communicator),
        timeout_(timeout),
        finetune_(run.recipe().finetune),
        student_(student_directory(task)),
        files_(run.layout(), context, task),
        logits_(logits_of(run, task)),
        trainer_(
            run.config(),
            load_student(run.layout().resolve(student_), run.model(), run.device()),
            load_outer(run.model(), run.compute_dtype(), run.device(), run.load_hooks([this] {
              loading(0);
            })),
            [this](int layer) { return load(layer); },
            run.tokens(DataStage::kFinetune),
            trainer_options(),
            communicator),
        rules_(finetune_, run.tokens(DataStage::kFinetune).num_validation() > 0) {}

  // Of an objective that needs them.
  static std::optional<LogitsReader> logits_of(RunContext& run, const wire::Task& task) {
    if (!run.recipe().finetune.learns_from_teacher()) return std::nullopt;
    return LogitsReader(run.layout(),
                        task.inputs,
                        run.tokens(DataStage::kFinetune).seq_len,
                        run.config().vocab_size,
                        std::chrono::seconds(run.recipe().workers.file_patience_s));
  }

  TaskResult run() {
    if (is_root()) fs::create_directories(attempt_directory());
    if (task_.resume) resume();
    storage::fault_step(step());
    progress_.phase = "training";
    const InterruptScope interrupt(communicator_, [this] { part_if_overdue(); });
    try {
      return train_to_the_end();
    } catch (const Stopped&) {
      return part();
    } catch (const Error& error) {
      // A peer that was told to stop as well may be gone before us.
      if (error.kind() != ErrorKind::kUnavailable || !context_.should_stop()) throw;
      return part();
    }
  }

 private:
  // Of whole steps: what the abandoned one has summed up is in no parameter yet.
  TaskResult part() {
    communicator_.abandon();
    checkpoint();
    return {.ranks_parted = true};
  }

  TaskResult train_to_the_end() {
    // Of the untouched student, or what a stop cut off.
    validate_if_due();
    while (!rules_.is_over(step())) {
      if (everyone_stops()) {
        checkpoint();
        return {};
      }
      train_step();
      validate_if_due();
      if (!rules_.is_over(step()) && step() % finetune_.checkpoint_every == 0) checkpoint();
    }
    return finish();
  }

  [[nodiscard]] bool is_root() const { return communicator_.rank() == 0; }
  [[nodiscard]] std::int64_t step() { return trainer_.parameters().num_steps(); }
  [[nodiscard]] fs::path attempt_directory() const {
    return run_.layout().resolve(RunLayout::attempt_directory(task_.fencing_token));
  }

  TrainerOptions trainer_options() {
    TrainerOptions options;
    options.finetune = finetune_;
    options.seed = run_.recipe().seed;
    options.stream = run_.stream();
    if (logits_) {
      options.teacher = [this](std::int64_t sequence) { return logits_->read(sequence); };
      options.sequences = run_.logits_plan().sequences;
    }
    options.check_cancelled = [this] {
      tell();
      part_if_overdue();
    };
    return options;
  }

  // Throws Stopped.
  void loading(int num_layers) {
    progress_.phase = "loading";
    progress_.step = num_layers;
    progress_.num_steps = run_.config().num_hidden_layers;
    tell();
    stop_if_told(context_);
  }

  LayerWeights load(int layer) {
    return load_layer(
        run_.model(), layer, run_.compute_dtype(), run_.device(), run_.load_hooks([this, layer] {
          loading(layer);
        }));
  }

  // Throws Stopped.
  void part_if_overdue() {
    if (!context_.should_stop()) return;
    const auto now = std::chrono::steady_clock::now();
    if (!told_to_stop_) told_to_stop_ = now;
    if (now - *told_to_stop_ >= (is_root() ? timeout_.root : timeout_.other)) throw Stopped{};
  }

  bool everyone_stops() {
    const std::array<std::byte, 1> own = {std::byte{context_.should_stop()}};
    const std::vector<std::byte> all = communicator_.all_gather(own);
    return std::any_of(
        all.begin(), all.end(), [](std::byte stops) { return stops != std::byte{0}; });
  }

  void train_step() {
    const storage::FaultScope scope("worker.finetune.training");
    progress_.phase = "training";
    const Stopwatch clock;
    const double learning_rate = rules_.learning_rate(step());
    trainer_.set_learning_rate(learning_rate);
    const auto result = trainer_.step();
    progress_.tokens += result.tokens;
    progress_.loss = result.loss;
    record({{"step", step()},
            {"loss", result.loss},
            {"gradient_norm", result.norms.gradient},
            {"update_norms", result.norms.updates},
            {"learning_rate", learning_rate},
            {"tokens", result.tokens},
            {"seconds", clock.seconds()}});
    storage::fault_step(step());
    storage::fault_point("worker.finetune.stepped");
  }

  void validate_if_due() {
    if (!rules_.is_due(step())) return;
    const storage::FaultScope scope("worker.finetune.validating");
    progress_.phase = "validating";
    const Stopwatch clock;
    const Validation validation = trainer_.validate();
    if (rules_.update(step(), validation)) trainer_.parameters().keep_best();
    nlohmann::json metrics = {{"step", step()},
                              {"validation_loss", validation.loss},
                              {"validation_cross_entropy", validation.cross_entropy},
                              {"seconds", clock.seconds()}};
    if (logits_) metrics["validation_kl"] = validation.kl;
    record(metrics);
  }

  // One line of metrics.jsonl.
  void record(const nlohmann::json& metrics) {
    if (!is_root()) return;
    files_.append_metrics(metrics.dump() + "\n");
    tell();
  }

  void checkpoint() {
    if (!is_root() || files_.has_checkpoint(step())) return;
    const storage::FaultScope scope("worker.finetune.checkpoint");
    storage::Checkpoint checkpoint = trainer_.parameters().checkpoint();
    checkpoint.state.update({{"kind", kCheckpointKind},
                             {"student", student_},
                             {"seed", run_.recipe().seed},
                             {"data", run_.tokens(DataStage::kFinetune).content_hash},
                             {"tokens", progress_.tokens},
                             {"loss", progress_.loss},
                             {"seconds", seconds_before_ + clock_.seconds()},
                             {"validation", rules_.state()}});
    files_.write_checkpoint(
        checkpoint, step(), [] { storage::fault_point("worker.finetune.checkpoint.written"); });
  }

  void resume() {
    resume_from_checkpoint(
        run_.layout(),
        task_,
        "the stage",
        {{"student", student_, "belongs to "},
         {"seed", run_.recipe().seed, "was started from seed "},
         {"data", run_.tokens(DataStage::kFinetune).content_hash, "was trained on other tokens"}},
        [this](const storage::Checkpoint& checkpoint, const RefuseCheckpoint& refuse) {
          const nlohmann::json& kind = checkpoint.state.at("kind");
          if (kind != kCheckpointKind && kind != kKindWithoutBest)
            refuse("not a checkpoint of a finetune");
          trainer_.parameters().restore(checkpoint);
          if (kind == kCheckpointKind) rules_.restore(checkpoint.state.at("validation"));
          checkpoint.state.at("tokens").get_to(progress_.tokens);
          checkpoint.state.at("loss").get_to(progress_.loss);
          checkpoint.state.at("seconds").get_to(seconds_before_);
        });
  }

  TaskResult finish() {
    TaskResult result{.finished = true};
    if (!is_root()) return result;
    // Without trained LoRA the adapter is its start, whose B is zero.
    save_adapter(attempt_directory(),
                 finetune_.trains("lora")
                     ? trainer_.parameters().best_adapter()
                     : start_adapter(run_.config(), finetune_, run_.recipe().seed),
                 run_.recipe().model.path);
    std::vector<std::string> files = {"adapter_config.json", "adapter_model.safetensors"};
    if (const TrainedTensors parts = trainer_.parameters().best_parts(); !parts.empty()) {
      save_trained(attempt_directory(), parts);
      files.emplace_back("trained_parameters.safetensors");
    }
    for (const std::string& file : files) {
      const fs::path path = attempt_directory() / file;
      result.files.push_back({RunLayout::adapter_directory(task_.fencing_token) + "/" + file,
                              fs::file_size(path),
                              storage::hash_file(path)});
    }
    storage::fault_point("worker.finetune.adapter.written");
    const double seconds = seconds_before_ + clock_.seconds();
    result.result = {{"steps", step()},
                     {"loss", progress_.loss},
                     {"tokens", progress_.tokens},
                     {"seconds", seconds},
                     {"tokens_per_second", static_cast<double>(progress_.tokens) / seconds},
                     {"ranks", communicator_.world_size()}};
    result.result.update(rules_.result());
    return result;
  }

  void tell() {
    if (!is_root()) return;
    if (progress_.phase != "loading") {
      progress_.step = step();
      progress_.num_steps = finetune_.max_steps;
    }
    progress_.seconds = seconds_before_ + clock_.seconds();
    context_.report(progress_);
  }

  RunContext& run_;
  TaskContext& context_;
  const wire::Task& task_;
  Communicator& communicator_;
  StopTimeout timeout_;
  storage::FinetuneSection finetune_;
  std::string student_;
  // Before the trainer, whose construction already reports.
  Stopwatch clock_;
  double seconds_before_ = 0.0;  // of the attempts that this one continues
  wire::Progress progress_;
  std::optional<std::chrono::steady_clock::time_point> told_to_stop_;
  AttemptFiles files_;
  std::optional<LogitsReader> logits_;
  FinetuneTrainer trainer_;
  ValidationRules rules_;
};

}  // namespace

TaskResult run_finetune(RunContext& run,
                        TaskContext& context,
                        const wire::Task& task,
                        Communicator& communicator,
                        const StopTimeout& stop_patience) {
  std::optional<DeadlineScope> timeout(communicator);
  std::optional<Finetune> stage;
  try {
    const InterruptScope interrupt(communicator, [&context] { stop_if_told(context); });
    // The others wait: one that stumbled over damage first would take rank 0 down with it, which
    // alone can say whose damage it is.
    const std::chrono::seconds file_timeout(run.recipe().workers.file_patience_s);
    if (communicator.rank() == 0) verify_inputs(run.layout(), task, file_timeout);
    communicator.barrier();
    stage.emplace(run, context, task, communicator, stop_patience);
    communicator.barrier();  // each has its model: from here on they go step by step
  } catch (const Stopped&) {
    communicator.abandon();
    return {.ranks_parted = true};  // nothing is lost but the loading
  }
  timeout.reset();
  return stage->run();
}

}  // namespace hedgerow::worker
