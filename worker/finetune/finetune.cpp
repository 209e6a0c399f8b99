#include "worker/finetune/finetune.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include "storage/checkpoint.hpp"
#include "storage/error.hpp"
#include "storage/fault_point.hpp"
#include "storage/file.hpp"
#include "storage/hash.hpp"
#include "worker/finetune/trainer.hpp"
#include "worker/stopwatch.hpp"

namespace hedgerow::worker {
namespace {

using storage::DataStage;
using storage::Error;
using storage::ErrorKind;
using storage::FileRecord;
using storage::RunLayout;
namespace fs = std::filesystem;

constexpr const char* kCheckpointKind = "finetune/1";

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
           Communicator& communicator)
      : run_(run),
        context_(context),
        task_(task),
        communicator_(communicator),
        finetune_(run.recipe().finetune),
        student_(student_directory(task)),
        trainer_(
            run.config(),
            load_student(run.layout().resolve(student_), run.model(), run.device()),
            load_outer(run.model(), run.compute_dtype(), run.device()),
            [this](int layer) { return load(layer); },
            run.tokens(DataStage::kFinetune),
            trainer_options(),
            communicator) {}

  TaskResult run() {
    if (is_root()) fs::create_directories(attempt_directory());
    if (task_.resume) resume();
    progress_.phase = "training";
    while (step() < finetune_.max_steps) {
      if (everyone_stops()) {
        checkpoint();
        return {};
      }
      train_step();
      const bool last = step() == finetune_.max_steps;
      if (last || (finetune_.validate_every > 0 && step() % finetune_.validate_every == 0))
        validate();
      if (!last && step() % finetune_.checkpoint_every == 0) checkpoint();
    }
    // A resume from the last step has validated nothing yet.
    if (!validated_) validate();
    return finish();
  }

 private:
  [[nodiscard]] bool is_root() const { return communicator_.rank() == 0; }
  // data.finetune.validation_sequences = 0 leaves nothing to measure.
  [[nodiscard]] bool has_validation() {
    return run_.tokens(DataStage::kFinetune).num_validation() > 0;
  }
  [[nodiscard]] std::int64_t step() { return trainer_.parameters().num_steps(); }
  [[nodiscard]] fs::path attempt_directory() const {
    return run_.layout().resolve(RunLayout::attempt_directory(task_.fencing_token));
  }

  TrainerOptions trainer_options() {
    TrainerOptions options;
    options.finetune = finetune_;
    options.seed = run_.recipe().seed;
    options.stream = run_.stream();
    options.alive = [this] { tell(); };
    return options;
  }

  LayerWeights load(int layer) {
    progress_.phase = "loading";
    progress_.step = layer;
    progress_.num_steps = run_.config().num_hidden_layers;
    tell();
    return load_layer(run_.model(), layer, run_.compute_dtype(), run_.device());
  }

  bool everyone_stops() {
    std::array<std::byte, 1> stops = {std::byte{is_root() && context_.should_stop()}};
    communicator_.broadcast(stops, 0);
    return stops[0] != std::byte{0};
  }

  void train_step() {
    progress_.phase = "training";
    const Stopwatch clock;
    const auto result = trainer_.step();
    progress_.tokens += result.tokens;
    progress_.loss = result.loss;
    record({{"step", step()},
            {"loss", result.loss},
            {"gradient_norm", result.gradient_norm},
            {"tokens", result.tokens},
            {"seconds", clock.seconds()}});
    storage::fault_point("worker.finetune.stepped");
  }

  void validate() {
    validated_ = true;
    if (!has_validation()) return;
    progress_.phase = "validating";
    validation_loss_ = trainer_.validation_loss();
    record({{"step", step()}, {"validation_loss", validation_loss_}});
  }

  // One line of metrics.jsonl.
  void record(const nlohmann::json& metrics) {
    if (!is_root()) return;
    const std::string line = metrics.dump() + "\n";
    storage::File file = storage::File::open_append(
        attempt_path(run_.layout(), task_.fencing_token, "metrics.jsonl"));
    file.write_all(std::as_bytes(std::span(line)));
    file.close();
    tell();
  }

  void checkpoint() {
    // A stop right after a periodic checkpoint: that one says it all, and somebody may be reading
    // it.
    if (!is_root() || checkpoints_.contains(step())) return;
    storage::Checkpoint checkpoint = trainer_.parameters().checkpoint();
    checkpoint.state.update({{"kind", kCheckpointKind},
                             {"student", student_},
                             {"seed", run_.recipe().seed},
                             {"data", run_.tokens(DataStage::kFinetune).content_hash},
                             {"tokens", progress_.tokens},
                             {"loss", progress_.loss},
                             {"seconds", seconds_before_ + clock_.seconds()}});
    const std::string name = RunLayout::attempt_directory(task_.fencing_token) + "/checkpoint.s" +
                             std::to_string(step()) + ".safetensors";
    const fs::path path = run_.layout().resolve(name);
    const FileRecord record = storage::write_checkpoint(path, name, checkpoint);
    storage::fault_point("worker.finetune.checkpoint.written");
    context_.publish_checkpoint(record, step());
    // What a restart would resume from stays, and everything newer.
    checkpoints_.emplace(step(), path);
    while (checkpoints_.begin()->first < std::min(context_.committed_step(), step())) {
      fs::remove(checkpoints_.begin()->second);
      checkpoints_.erase(checkpoints_.begin());
    }
  }

  void resume() {
    const auto checkpoint =
        storage::read_checkpoint(run_.layout().resolve(task_.resume->name), *task_.resume);
    const auto refuse = [this](const std::string& what) {
      throw Error(ErrorKind::kCorrupt,
                  task_.resume->name + ": " + what + "; the stage starts again without it");
    };
    try {
      const nlohmann::json& state = checkpoint.state;
      if (state.at("kind") != kCheckpointKind) refuse("not a checkpoint of a finetune");
      if (state.at("student") != student_) refuse("belongs to " + state.at("student").dump());
      if (state.at("seed") != run_.recipe().seed)
        refuse("was started from seed " + state.at("seed").dump());
      if (state.at("data") != run_.tokens(DataStage::kFinetune).content_hash)
        refuse("was trained on other tokens");
      trainer_.parameters().restore(checkpoint);
      state.at("tokens").get_to(progress_.tokens);
      state.at("loss").get_to(progress_.loss);
      state.at("seconds").get_to(seconds_before_);
    } catch (const nlohmann::json::exception& error) {
      refuse(std::string("not a checkpoint of this stage: ") + error.what());
    }
  }

  TaskResult finish() {
    TaskResult result{.finished = true};
    if (!is_root()) return result;
    save_adapter(attempt_directory(), trainer_.parameters().adapter(), run_.recipe().model.path);
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
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
    if (has_validation()) {
      result.result["validation_loss"] = validation_loss_;
      result.result["validation_perplexity"] = std::exp(validation_loss_);
    }
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
  storage::FinetuneSection finetune_;
  std::string student_;
  // Before the trainer, whose construction already reports.
  Stopwatch clock_;
  double seconds_before_ = 0.0;  // of the attempts that this one continues
  wire::Progress progress_;
  double validation_loss_ = 0.0;
  bool validated_ = false;
  std::map<std::int64_t, fs::path> checkpoints_;  // of this attempt, by step
  FinetuneTrainer trainer_;
};

}  // namespace

TaskResult run_finetune(RunContext& run,
                        TaskContext& context,
                        const wire::Task& task,
                        Communicator& communicator) {
  std::optional<Patience> patience(communicator);
  Finetune stage(run, context, task, communicator);
  communicator.barrier();  // each has its model: from here on they go step by step
  patience.reset();
  return stage.run();
}

}  // namespace hedgerow::worker
