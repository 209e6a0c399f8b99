#include "tests/simulator/sim_worker.hpp"

#include <algorithm>
#include <csignal>

#include "coordinator/dispatch/scheduler.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "storage/base/error.hpp"
#include "storage/json/json_fields.hpp"

namespace hedgerow::simulator {
namespace {

using storage::ErrorKind;
using storage::RunLayout;

constexpr int kInterrupted = static_cast<int>(storage::ExitCode::kInterrupted);

std::string base_of(const std::string& name) { return name.substr(name.rfind('/') + 1); }

wire::Hello hello_of(const WorkerSetup& setup) {
  wire::Hello hello;
  hello.worker = {setup.uuid, setup.incarnation};
  hello.version = "1";
  hello.build = "simulated";
  hello.host = setup.host;
  hello.device = "simulated";
  hello.memory_bytes = setup.memory_bytes;
  return hello;
}

std::string step_text(std::uint64_t value, int step) {
  return file_text("checkpoint " + std::to_string(step), value);
}

}  // namespace

SimWorker::SimWorker(WorkerSetup setup,
                     const storage::RunLayout& layout,
                     VirtualDisk& disk,
                     const WorkLoad& load,
                     const Mishaps& mishaps,
                     Random& random,
                     Time now)
    : setup_(std::move(setup)),
      layout_(layout),
      disk_(disk),
      load_(load),
      mishaps_(mishaps),
      random_(random),
      session_({.hello = hello_of(setup_), .endpoint = setup_.endpoint, .holds = setup_.holds},
               now),
      due_(now) {
  ask(now);
}

Time SimWorker::next_due() const {
  if (exit_) return Time::max();
  Time due = session_.next_due();
  if ((doing_ == Doing::kWorking && !hangs_) || doing_ == Doing::kPausing)
    due = std::min(due, due_);
  return due;
}

std::vector<std::string> SimWorker::step(Time now) {
  if (exit_) return {};
  while (!inbox_.empty()) {
    session_.receive(inbox_.front(), now);
    inbox_.pop_front();
  }
  if (session_.wants_look(now)) {
    if (const wire::CoordinatorFile* file = look()) session_.found(file->term, file->endpoint, now);
  }
  std::vector<std::string> frames = session_.tick(now);
  advance(now);
  if (exit_ && exit_->signal == 0) {
    frames.push_back(wire::encode(wire::Goodbye{session_.worker()}));
  } else if (!exit_) {
    for (std::string& frame : session_.tick(now)) frames.push_back(std::move(frame));
  }
  return frames;
}

// What serve() does between two waits.
void SimWorker::advance(Time now) {
  delete_old_checkpoints();
  if (submission_ && submission_->answered) take_answer(now);
  if (exit_) return;
  if (!session_.refusal().empty()) return leave(static_cast<int>(storage::ExitCode::kUsage));
  const bool told = !session_.stop_reason().empty();
  switch (doing_) {
    case Doing::kAsking:
      if (told || session_.is_abandoned(now)) leave(kInterrupted);
      break;
    case Doing::kPausing:
      if (told) return leave(kInterrupted);
      if (now >= due_) ask(now);
      break;
    case Doing::kWorking:
      if (session_.lease_lost()) return drop_task(now);
      if (hangs_) break;
      if (told) return give_back(now);
      if (now >= due_) work(now);
      break;
    case Doing::kSubmitting:
      if (session_.is_abandoned(now)) leave(kInterrupted);
      break;
    case Doing::kEnding:
      break;
  }
}

void SimWorker::ask(Time now) {
  doing_ = Doing::kAsking;
  submission_ = session_.submit(wire::Request{session_.worker(), -1}, "", now);
  submission_ends_task_ = false;
}

void SimWorker::take_answer(Time now) {
  const wire::Message answer = *submission_->answer;
  const bool ends_task = submission_ends_task_;
  submission_.reset();
  if (doing_ == Doing::kAsking) {
    if (const auto* grant = std::get_if<wire::Grant>(&answer)) {
      const bool fits = setup_.holds == 0 || grant->task.fencing_token == setup_.holds;
      return fits ? begin(grant->task, now) : leave(0);
    }
    const auto* idle = std::get_if<wire::Idle>(&answer);
    if (idle == nullptr || setup_.holds != 0) return leave(0);
    doing_ = Doing::kPausing;
    due_ = now + milliseconds(idle->retry_milliseconds);
    return;
  }
  if (std::holds_alternative<wire::Fenced>(answer)) return drop_task(now);
  if (ends_task) {
    session_.end_task();
    return setup_.holds != 0 ? leave(session_.stop_reason().empty() ? 0 : kInterrupted) : ask(now);
  }
  doing_ = Doing::kWorking;  // a shard is committed
  due_ = now + load_.shard;
}

std::string SimWorker::subject() const {
  using coordinator::TaskId;
  switch (task_.kind) {
    case wire::TaskKind::kCapture:
      return "capture/" + std::to_string(task_.block);
    case wire::TaskKind::kTransfer:
      return to_string(TaskId::transfer(task_.block));
    case wire::TaskKind::kLogits:
      return to_string(TaskId::logits(task_.piece));
    case wire::TaskKind::kEvaluate:
      return to_string(TaskId::evaluate(coordinator::subject_from_string(task_.subject).value(),
                                        task_.num_pieces > 0 ? task_.piece : -1));
    case wire::TaskKind::kAssemble:
    case wire::TaskKind::kFinetune:
      break;
  }
  return to_string(TaskId::finetune());
}

void SimWorker::begin(const wire::Task& task, Time now) {
  session_.begin_task(task);
  task_ = task;
  doing_ = Doing::kWorking;
  loaded_ = hangs_ = false;
  unit_ = 0;
  checkpoints_.clear();
  due_ = now + load_.loading;
}

void SimWorker::report(const std::string& phase) {
  wire::Progress progress;
  progress.phase = phase;
  progress.step = unit_;
  progress.tokens = unit_;
  session_.set_progress(progress);
}

void SimWorker::work(Time now) {
  if (subject() == mishaps_.poison) {
    kill(SIGSEGV);
    return;
  }
  if (random_.chance(mishaps_.hangs)) {
    hangs_ = true;
    return;
  }
  if (random_.chance(mishaps_.fails)) {
    const bool exhausted = random_.chance(mishaps_.exhausted);
    return fail(exhausted ? ErrorKind::kExhausted : ErrorKind::kInternal,
                exhausted ? "out of memory" : "the loss is not finite",
                {},
                now);
  }
  if (task_.inputs_file) {
    const std::string* list = disk_.content((layout_.root() / task_.inputs_file->name).native());
    if (list == nullptr) return fail(ErrorKind::kNotFound, "no list of inputs", {}, now);
    task_.inputs = storage::records_from_json(storage::parse_document(*list), "inputs");
    task_.inputs_file.reset();
  }
  switch (task_.kind) {
    case wire::TaskKind::kCapture:
      return capture_one(now);
    case wire::TaskKind::kTransfer:
    case wire::TaskKind::kFinetune:
      return train_one(now);
    case wire::TaskKind::kLogits:
      return write_logits(now);
    case wire::TaskKind::kEvaluate:
      return evaluate(now);
    case wire::TaskKind::kAssemble:
      break;
  }
}

std::optional<std::uint64_t> SimWorker::read_input(const storage::FileRecord& record,
                                                   const std::string& kind,
                                                   Time now) {
  const std::string* text = disk_.content((layout_.root() / record.name).native());
  if (text == nullptr) {
    fail(ErrorKind::kNotFound, record.name + " does not exist", {record.name}, now);
    return std::nullopt;
  }
  const auto value = record_of(record.name, *text) == record ? value_in(*text, kind) : std::nullopt;
  if (!value) fail(ErrorKind::kCorrupt, record.name + ": hash does not fit", {record.name}, now);
  return value;
}

std::string SimWorker::write(const std::string& base_name, const std::string& text) {
  const std::string name = RunLayout::attempt_directory(task_.fencing_token) + "/" + base_name;
  disk_.put((layout_.root() / name).native(), text);
  return name;
}

void SimWorker::capture_one(Time now) {
  report("capturing");
  if (unit_ == task_.num_shards)
    return submit(wire::Done{session_.worker(), session_.token(), {}, nlohmann::json::object()},
                  "",
                  true,
                  now);
  const int shard = task_.first_shard + unit_;
  std::uint64_t value = static_cast<std::uint64_t>(shard);
  if (task_.block > 0) {
    const auto input = read_input(task_.inputs.at(static_cast<std::size_t>(unit_)), "shard", now);
    if (!input) return;
    value = *input;
  }
  const std::string name = RunLayout::hidden_shard(task_.block + 1, shard, task_.fencing_token);
  const std::string text =
      file_text("shard", mix(value, static_cast<std::uint64_t>(task_.block) + 1));
  write(base_of(name), text);
  ++unit_;
  submit(wire::ShardReady{session_.worker(), session_.token(), shard, record_of(name, text)},
         name,
         false,
         now);
}

void SimWorker::train_one(Time now) {
  const bool is_transfer = task_.kind == wire::TaskKind::kTransfer;
  const int steps = is_transfer ? load_.transfer_steps : load_.finetune_steps;
  if (!loaded_) {
    // Its data, whole; a resumed attempt needs it too.
    std::uint64_t start =
        is_transfer ? mix(task_.seed, static_cast<std::uint64_t>(task_.block)) : 77;
    for (const storage::FileRecord& input : task_.inputs) {
      const bool is_logits = RunLayout::is_logits(input.name);
      const auto value =
          read_input(input, is_transfer ? "shard" : (is_logits ? "logits" : "student"), now);
      if (!value) return;
      start = mix(start, *value);
    }
    value_ = start;
    if (task_.resume) {
      const std::string& name = task_.resume->name;
      const std::size_t digits = name.rfind(".s") + 2;
      unit_ = std::atoi(name.c_str() + digits);
      const auto value = read_input(*task_.resume, "checkpoint " + std::to_string(unit_), now);
      if (!value) return;
      value_ = *value;
    }
    loaded_ = true;
  } else if (unit_ < steps) {
    value_ = mix(value_, static_cast<std::uint64_t>(unit_++));
    if (unit_ % load_.checkpoint_every == 0 && unit_ < steps) write_checkpoint(now);
  }
  report("training");
  due_ = now + load_.step;
  if (unit_ < steps) return;
  wire::Done done{session_.worker(), session_.token(), {}, nlohmann::json::object()};
  const auto add = [&](const std::string& name) {
    const std::string text = file_text(is_transfer ? "artifact" : "adapter", value_);
    write(base_of(name), text);
    done.files.push_back(record_of(name, text));
  };
  if (is_transfer) {
    add(RunLayout::block_artifact(task_.block, task_.fencing_token));
  } else {
    const std::string directory = RunLayout::adapter_directory(task_.fencing_token);
    add(directory + "/adapter_config.json");
    add(directory + "/adapter_model.safetensors");
  }
  const std::string first = done.files.front().name;
  submit(std::move(done), first, true, now);
}

void SimWorker::write_logits(Time now) {
  report("capturing");
  std::uint64_t value = logits_start(task_.piece);
  for (const storage::FileRecord& input : task_.inputs) {
    const auto read = read_input(input, "shard", now);
    if (!read) return;
    value = mix(value, *read);
  }
  const std::string name = RunLayout::logits(task_.piece, task_.fencing_token);
  const std::string text = file_text("logits", value);
  write(base_of(name), text);
  submit(wire::Done{session_.worker(), session_.token(), {record_of(name, text)}, {}},
         name,
         true,
         now);
}

void SimWorker::evaluate(Time now) {
  report("evaluating");
  std::uint64_t value = 5;
  for (const storage::FileRecord& input : task_.inputs) {
    const std::string folder = input.name.substr(0, input.name.find('/'));
    const auto read = read_input(input, folder == "evaluate" ? "evaluation" : folder, now);
    if (!read) return;
    value = mix(value, *read);
  }
  const bool is_piece = task_.num_pieces > 0 && task_.piece >= 0;
  if (is_piece) value = mix(value, static_cast<std::uint64_t>(task_.piece));
  const std::string name =
      is_piece ? RunLayout::evaluation_piece(task_.subject, task_.piece, task_.fencing_token)
               : RunLayout::evaluation(task_.subject, task_.fencing_token);
  const std::string text = file_text("evaluation", value);
  write(base_of(name), text);
  submit(wire::Done{session_.worker(), session_.token(), {record_of(name, text)}, {{"loss", 1.0}}},
         name,
         true,
         now);
}

void SimWorker::write_checkpoint(Time now) {
  const std::string text = step_text(value_, unit_);
  const storage::Hash128 hash = record_of("", text).root_hash;
  const std::string name =
      write(base_of(RunLayout::checkpoint(task_.fencing_token, unit_, hash)), text);
  session_.checkpointed(record_of(name, text), unit_, now);
  checkpoints_.emplace_back(unit_, (layout_.root() / name).native());
}

void SimWorker::delete_old_checkpoints() {
  while (!checkpoints_.empty() && checkpoints_.front().first < session_.committed_step()) {
    disk_.remove(checkpoints_.front().second);
    checkpoints_.pop_front();
  }
}

void SimWorker::submit(wire::Message message, const std::string& name, bool ends_task, Time now) {
  doing_ = Doing::kSubmitting;
  submission_ = session_.submit(std::move(message), name, now);
  submission_ends_task_ = ends_task;
}

void SimWorker::fail(ErrorKind kind,
                     const std::string& why,
                     std::vector<std::string> damaged,
                     Time now) {
  submit(wire::Failed{session_.worker(), session_.token(), kind, why, std::move(damaged)},
         "",
         true,
         now);
}

void SimWorker::give_back(Time now) {
  const bool trains =
      task_.kind == wire::TaskKind::kTransfer || task_.kind == wire::TaskKind::kFinetune;
  if (trains && loaded_ && unit_ > 0) write_checkpoint(now);
  submit(
      wire::Released{session_.worker(), session_.token(), session_.stop_reason()}, "", true, now);
}

void SimWorker::drop_task(Time now) {
  submission_.reset();
  session_.end_task();
  if (setup_.holds != 0) return leave(1);
  ask(now);
}

void SimWorker::leave(int code) {
  doing_ = Doing::kEnding;
  exit_ = {.code = code, .signal = 0, .known = true};
}

std::string SimWorker::describe() const {
  static constexpr const char* kDoing[] = {"asks", "pauses", "works", "submits", "ends"};
  return setup_.uuid + "." + std::to_string(setup_.incarnation) + " " +
         kDoing[static_cast<int>(doing_)] + (hangs_ ? ", hangs" : "") + ", token " +
         std::to_string(session_.token()) + (session_.lease_lost() ? " lost" : "") + ", stop '" +
         session_.stop_reason() + "', at " + session_.endpoint();
}

}  // namespace hedgerow::simulator
