#include "worker/finetune/finetune.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>

#include "storage/base/build_info.hpp"
#include "storage/base/error.hpp"
#include "storage/faults/fault_point.hpp"
#include "storage/files/file.hpp"
#include "storage/files/hash.hpp"
#include "storage/tensors/checkpoint.hpp"
#include "worker/client/task_inputs.hpp"
#include "worker/device/large_blocks.hpp"
#include "worker/finetune/stage_checkpoint.hpp"
#include "worker/finetune/trainer.hpp"
#include "worker/finetune/validation_rules.hpp"
#include "worker/logits/logits_reader.hpp"
#include "worker/model/attention_path.hpp"
#include "worker/model/tensor_bytes.hpp"
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

// A step of several stages is not abandoned as soon: no rank could write its checkpoint.
constexpr int kStagesTimeoutFactor = 20;

// The best values of a whole checkpoint: LoRA's into `adapter`; returns the other parts'.
TrainedTensors take_best(const storage::Checkpoint& whole, LoraAdapter& adapter) {
  const auto best = [&](const std::string& name) {
    const auto found = whole.tensors.find(name + ".best");
    return to_tensor(found != whole.tensors.end() ? found->second : whole.tensors.at(name));
  };
  for (std::size_t layer = 0; layer < adapter.layers.size(); ++layer) {
    for (auto& [module, pair] : adapter.layers[layer]) {
      const std::string a = lora_name(static_cast<int>(layer), module, "lora_A");
      if (!whole.tensors.contains(a)) continue;  // LoRA is not trained
      pair = {best(a), best(lora_name(static_cast<int>(layer), module, "lora_B"))};
    }
  }
  TrainedTensors parts;
  for (const auto& [name, tensor] : whole.tensors) {
    const bool is_value = whole.tensors.contains(name + ".exp_avg");
    if (is_value && !name.starts_with("base_model.")) parts[name] = best(name);
  }
  return parts;
}

// What must be the same on all ranks, as a rank sees it.
struct RankView {
  std::array<char, 64> host{};
  std::array<storage::Hash128, 4> hashes{};
};
constexpr std::array<const char*, 4> kViewed = {
    "another build of hedgerow-worker", "another run.toml", "another model", "another student"};

// Ranks of nodes that do not share their files, or that were installed at different times.
void require_same_view(RunContext& run, const wire::Task& task, Communicator& communicator) {
  const auto hashed = [](const std::string& text) {
    return storage::hash128(std::as_bytes(std::span(text)));
  };
  RankView own;
  ::gethostname(own.host.data(), own.host.size() - 1);
  own.hashes = {
      hashed(storage::build()),
      storage::hash_file(run.layout().recipe()),
      hashed(run.model().fingerprint()),
      storage::hash_file(run.layout().resolve(student_directory(task)) / "hedgerow.json")};
  const auto bytes = communicator.all_gather(std::as_bytes(std::span(&own, 1)));
  for (int rank = 1; rank < communicator.world_size(); ++rank) {
    RankView view;
    std::memcpy(&view, bytes.data() + static_cast<std::size_t>(rank) * sizeof view, sizeof view);
    RankView root;
    std::memcpy(&root, bytes.data(), sizeof root);
    for (std::size_t i = 0; i < kViewed.size(); ++i) {
      if (view.hashes[i] == root.hashes[i]) continue;
      throw Error(ErrorKind::kUsage,
                  "rank " + std::to_string(rank) + " on " + view.host.data() + " has " +
                      kViewed[i] + " than rank 0 on " + root.host.data() +
                      "; give all nodes the same installation and the same file system");
    }
  }
}

// One finetune task on one rank, from its start or its checkpoint to its end.
class Finetune {
 public:
  Finetune(RunContext& run,
           TaskContext& context,
           const wire::Task& task,
           const storage::Mesh& mesh,
           Communicator& communicator,
           const StopTimeout& timeout)
      : run_(run),
        context_(context),
        task_(task),
        mesh_(mesh),
        held_(run.config(), mesh, communicator.rank()),
        communicator_(communicator),
        timeout_(timeout),
        finetune_(run.recipe().finetune),
        student_(student_directory(task)),
        files_(run.layout(), context, task),
        logits_(logits_of(run, task)),
        trainer_(
            run.config(),
            said(load_student(run.layout().resolve(student_),
                              run.model(),
                              run.device(),
                              [this](int layer) { return held_.has(layer); })),
            load_outer(run.model(),
                       run.compute_dtype(),
                       run.device(),
                       run.load_hooks([this] { loading(0); }),
                       {held_.has_embedding, held_.has_head}),
            [this](int layer) { return load(layer); },
            run.tokens(DataStage::kFinetune),
            trainer_options(),
            communicator),
        rules_(finetune_, run.tokens(DataStage::kFinetune).num_validation() > 0),
        checkpoints_(run.layout(), task.fencing_token, mesh_, communicator, files_) {}

  // Rank 0 for all: they are of one build, and mostly of one kind of GPU.
  Student said(Student student) const {
    AttentionPath path =
        attention_path(AttentionUse::kFinetune, run_.config(), run_.device(), run_.compute_dtype());
    path.parameters = first_parameters(student.layers);
    path.options = student.options;
    if (communicator_.rank() == 0) say_attention(path);
    return student;
  }

  // The logits of an objective that needs them.
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
    communicator_.barrier();  // each stage writes there
    if (task_.resume) resume();
    storage::fault_step(step());
    progress_.phase = "training";
    const InterruptScope interrupt(communicator_, [this] { abandon_if_overdue(); });
    try {
      return train_to_the_end();
    } catch (const Stopped&) {
      return abandon_step();
    } catch (const Error& error) {
      // A peer that was told to stop as well may be gone before us.
      if (error.kind() != ErrorKind::kUnavailable || !context_.should_stop()) throw;
      return abandon_step();
    }
  }

 private:
  // Keeps whole steps: what the abandoned one has summed up is in no parameter yet. With several
  // stages no rank has the whole state, and the last checkpoint must do.
  TaskResult abandon_step() {
    communicator_.abandon();
    if (is_root() && mesh_.pipeline == 1) checkpoint();
    if (mesh_.pipeline == 1) checkpoints_.settle();
    return {.step_abandoned = true};
  }

  TaskResult train_to_the_end() {
    // The validation of the untouched student, or the one that a stop cut off.
    validate_if_due();
    while (!rules_.is_over(step())) {
      if (everyone_stops()) {
        checkpoint();
        checkpoints_.settle();
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
    options.mesh = mesh_;
    options.device = run_.device();
    options.seed = run_.recipe().seed;
    options.stream = run_.stream();
    if (logits_) {
      options.teacher = [this](std::int64_t sequence) { return logits_->read(sequence); };
      options.sequences = run_.logits_plan().sequences;
    }
    options.check_cancelled = [this] {
      tell();
      abandon_if_overdue();
    };
    return options;
  }

  // Throws Stopped.
  void loading(int num_layers) {
    progress_.phase = "loading";
    progress_.step = num_layers;
    progress_.num_steps = std::ssize(held_.layers);
    tell();
    stop_if_told(context_);
  }

  LayerWeights load(int layer) {
    const auto num_loaded = std::ranges::lower_bound(held_.layers, layer) - held_.layers.begin();
    return load_layer(
        run_.model(),
        layer,
        run_.compute_dtype(),
        run_.device(),
        run_.load_hooks([this, num_loaded] { loading(static_cast<int>(num_loaded)); }));
  }

  // Throws Stopped.
  void abandon_if_overdue() {
    if (!context_.should_stop()) return;
    const auto now = std::chrono::steady_clock::now();
    if (!told_to_stop_) told_to_stop_ = now;
    const auto limit = is_root() ? timeout_.root : timeout_.other;
    if (now - *told_to_stop_ >= limit * (mesh_.pipeline == 1 ? 1 : kStagesTimeoutFactor))
      throw Stopped{};
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
    checkpoints_.settle();  // that of the step before, before this one counts
    progress_.tokens += result.tokens;
    progress_.loss = result.loss;
    nlohmann::json metrics = {{"step", step()},
                              {"loss", result.loss},
                              {"gradient_norm", result.norms.gradient},
                              {"update_norms", result.norms.updates},
                              {"update_sums", trainer_.parameters().update_sums()},
                              {"learning_rate", learning_rate},
                              {"tokens", result.tokens},
                              {"seconds", clock.seconds()}};
    if (mesh_.pipeline > 1) {
      metrics["idle_seconds"] = result.idle_seconds;
      metrics["bytes_between_stages"] = result.bytes_between_stages;
    }
    record(metrics);
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

  // Written in the background; all ranks come here at the same steps.
  void checkpoint() {
    if (!checkpoints_.writes() || checkpoints_.step() == step()) return;
    const storage::FaultScope scope("worker.finetune.checkpoint");
    checkpoints_.settle();
    storage::Checkpoint checkpoint = trainer_.parameters().checkpoint();
    checkpoint.state.update({{"kind", kCheckpointKind},
                             {"student", student_},
                             {"seed", run_.recipe().seed},
                             {"data", run_.tokens(DataStage::kFinetune).content_hash},
                             {"tokens", progress_.tokens},
                             {"loss", progress_.loss},
                             {"seconds", seconds_before_ + clock_.seconds()},
                             {"validation", rules_.state()}});
    checkpoints_.begin(step(), std::move(checkpoint));
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
          storage::Checkpoint whole = checkpoint;
          try {
            read_parts(run_.layout(), whole);
          } catch (const Error& error) {
            refuse(std::string("a part of it cannot be read: ") + error.what());
          }
          trainer_.parameters().restore(whole);
          if (kind == kCheckpointKind) rules_.restore(checkpoint.state.at("validation"));
          checkpoint.state.at("tokens").get_to(progress_.tokens);
          checkpoint.state.at("loss").get_to(progress_.loss);
          checkpoint.state.at("seconds").get_to(seconds_before_);
        });
  }

  TaskResult finish() {
    TaskResult result{.finished = true};
    const storage::Checkpoint whole =
        checkpoints_.gather(step(), trainer_.parameters().checkpoint());
    if (!is_root()) return result;
    // Without trained LoRA the adapter is its start, whose B is zero.
    LoraAdapter adapter = start_adapter(run_.config(), finetune_, run_.recipe().seed);
    const TrainedTensors parts = take_best(whole, adapter);
    save_adapter(attempt_directory(), adapter, run_.recipe().model.path);
    std::vector<std::string> files = {"adapter_config.json", "adapter_model.safetensors"};
    if (!parts.empty()) {
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
                     {"ranks", communicator_.world_size()},
                     {"mesh", storage::mesh_text(mesh_)},
                     {"update_sums", trainer_.parameters().update_sums_by_layer()}};
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
  const storage::Mesh mesh_;
  const HeldLayers held_;
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
  StageCheckpoint checkpoints_;
};

}  // namespace

TaskResult run_finetune(RunContext& run,
                        TaskContext& context,
                        const wire::Task& task,
                        const storage::Mesh& mesh,
                        Communicator& communicator,
                        const StopTimeout& stop_timeout) {
  std::optional<DeadlineScope> timeout(communicator);
  std::optional<Finetune> stage;
  try {
    const InterruptScope interrupt(communicator, [&context] { stop_if_told(context); });
    // The others wait: one that stumbled over damage first would take rank 0 down with it, which
    // alone can say whose damage it is.
    const std::chrono::seconds file_timeout(run.recipe().workers.file_patience_s);
    if (communicator.rank() == 0) verify_inputs(run.layout(), task, file_timeout);
    communicator.barrier();
    require_same_view(run, task, communicator);
    return_large_blocks();
    stage.emplace(run, context, task, mesh, communicator, stop_timeout);
    keep_large_blocks();
    communicator.barrier();  // each has its model: from here on they go step by step
  } catch (const Stopped&) {
    communicator.abandon();
    return {.step_abandoned = true};  // nothing is lost but the loading
  }
  timeout.reset();
  return stage->run();
}

}  // namespace hedgerow::worker
