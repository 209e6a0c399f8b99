#include "worker/coordinator_client.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <thread>

#include "coordinator/wire/coordinator_file.hpp"
#include "storage/error.hpp"
#include "worker/dealer_socket.hpp"
#include "worker/task_inputs.hpp"

namespace hedgerow::worker {
namespace {

using std::chrono::milliseconds;
using Time = std::chrono::steady_clock::time_point;
using storage::Error;
using storage::ErrorKind;

constexpr milliseconds kFirstBackoff{1000};
constexpr milliseconds kLongestBackoff{32000};
constexpr milliseconds kLongestPoll{100};
constexpr milliseconds kLookEvery{1000};
// Error texts travel in one message.
constexpr std::size_t kMaxErrorText = 8000;
constexpr std::size_t kMaxDamagedNames = 100;

Time now() { return std::chrono::steady_clock::now(); }

}  // namespace

// A message that wants an answer, and the answer.
struct Submission {
  wire::Message message;
  std::string name;  // what Committed will name
  bool answered = false;
  std::optional<wire::Message> answer;
};

struct CoordinatorClient::Impl {
  ClientOptions options;
  DealerSocket socket;  // the thread's alone

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Submission>> queue;
  std::optional<wire::Task> task;
  wire::Progress progress;
  int held_block = -1;
  bool lost = false;  // the current task's lease
  std::int64_t committed_step = -1;
  std::string stop_reason;
  std::string refusal;
  bool closing = false;

  // The thread's alone.
  bool welcomed = false;
  milliseconds backoff = kFirstBackoff;
  std::uint64_t seen_term = 0;
  Time last_heard = now(), next_look = now(), next_hello = now(), next_heartbeat = now(),
       next_send = now();
  std::thread thread;

  explicit Impl(ClientOptions given) : options(std::move(given)), socket(options.endpoint) {
    if (options.holds != 0) {
      task.emplace();
      task->kind = wire::TaskKind::kFinetune;
      task->fencing_token = options.holds;
    }
    thread = std::thread([this] { loop(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      closing = true;
    }
    socket.wake();
    thread.join();
  }

  [[nodiscard]] std::uint64_t token() const { return task ? task->fencing_token : 0; }

  void loop() {
    while (true) {
      const std::optional<std::string> frame = socket.receive(kLongestPoll);
      const std::lock_guard lock(mutex);
      if (closing) {
        socket.send(wire::encode(wire::Goodbye{options.hello.worker}));
        return;
      }
      try {
        if (frame) handle(*frame);
        tick();
      } catch (const std::exception& error) {  // an unusable address: as good as out of reach
        std::fprintf(stderr, "hedgerow-worker: %s\n", error.what());
        welcomed = false;
        next_hello = now() + kLongestBackoff;
      }
      changed.notify_all();
    }
  }

  void handle(const std::string& frame) {
    last_heard = now();
    try {
      std::visit([this](const auto& message) { receive(message); }, wire::decode(frame));
    } catch (const Error& error) {
      const auto protocol = wire::protocol_of(frame);
      if (protocol && *protocol != wire::kProtocol) {
        refusal = "the coordinator speaks protocol " + std::to_string(*protocol) +
                  ", this worker " + std::to_string(wire::kProtocol) +
                  "; install the same version of hedgerow on both";
      }
      // Any other damaged frame is dropped; what it answered is asked again.
    }
  }

  void receive(const wire::Welcome& message) {
    welcomed = true;
    backoff = kFirstBackoff;
    if (task && !message.keeps_task) lost = true;
    next_heartbeat = next_send = now();
  }
  void receive(const wire::WhoAreYou&) {
    welcomed = false;
    next_hello = now();
  }
  void receive(const wire::Refused& message) { refusal = message.reason; }
  void receive(const wire::HeartbeatAck& message) {
    if (!message.lease_valid && message.fencing_token == token()) lost = true;
  }
  void receive(const wire::Stop& message) {
    if (stop_reason.empty()) stop_reason = message.reason;
    if (asks_for_task()) answer(message);
  }
  void receive(const wire::Grant& message) {
    if (asks_for_task()) answer(message);
  }
  void receive(const wire::Idle& message) {
    if (asks_for_task()) answer(message);
  }
  void receive(const wire::Committed& message) {
    const bool fits = !queue.empty() && !asks_for_task() && message.fencing_token == token() &&
                      message.name == queue.front()->name;
    if (!fits) return;
    if (const auto* checkpoint = std::get_if<wire::Checkpointed>(&queue.front()->message)) {
      committed_step = checkpoint->step;
    }
    answer(message);
  }
  void receive(const wire::Fenced& message) {
    if (message.fencing_token != token()) return;
    lost = true;
    if (!queue.empty() && !asks_for_task()) answer(message);
  }
  template <typename T>
  void receive(const T&) {}  // a worker's message: not for us

  [[nodiscard]] bool asks_for_task() const {
    return !queue.empty() && std::holds_alternative<wire::Request>(queue.front()->message);
  }

  void answer(const wire::Message& message) {
    queue.front()->answer = message;
    queue.front()->answered = true;
    queue.pop_front();
    next_send = now();
  }

  void tick() {
    const Time at = now();
    if (options.stop_signal != nullptr && options.stop_signal->load() && stop_reason.empty()) {
      stop_reason = "SIGTERM";
    }
    if (at - last_heard > options.orphan_timeout && stop_reason.empty()) {
      stop_reason = "no coordinator for " +
                    std::to_string(options.orphan_timeout / std::chrono::seconds(1)) + " s";
    }
    if (welcomed && at - last_heard > options.reply_patience) {
      welcomed = false;
      next_hello = at;
    }
    if (!welcomed) {
      look_for_coordinator(at);
      if (at >= next_hello) say_hello(at);
      return;
    }
    if (at >= next_heartbeat) {
      socket.send(wire::encode(wire::Heartbeat{options.hello.worker, token(), progress}));
      next_heartbeat = at + options.heartbeat;
    }
    if (!queue.empty() && at >= next_send) {
      socket.send(wire::encode(queue.front()->message));
      next_send = at + options.reply_patience;
    }
  }

  // A new term in coordinator.json is greeted at once, whatever the backoff: its leases run from
  // its start.
  void look_for_coordinator(Time at) {
    if (at < next_look) return;
    next_look = at + kLookEvery;
    const auto file = wire::read_coordinator_file(options.layout);
    if (!file || file->term == seen_term ||
        (file->host == wire::this_host() && !wire::is_alive(file->process)))
      return;
    seen_term = file->term;
    options.endpoint = file->endpoint;
    next_hello = at;
    backoff = kFirstBackoff;
  }

  void say_hello(Time at) {
    if (socket.endpoint() != options.endpoint) socket.reconnect(options.endpoint);
    wire::Hello hello = options.hello;
    hello.held_block = held_block;
    if (task && !lost) {
      hello.held = *task;
      hello.held->inputs.clear();  // the token says it all
    }
    socket.send(wire::encode(hello));
    next_hello = at + backoff;
    backoff = std::min(kLongestBackoff, backoff * 2);
  }

  std::shared_ptr<Submission> enqueue(wire::Message message, std::string name) {
    auto submission =
        std::make_shared<Submission>(Submission{std::move(message), std::move(name), false, {}});
    const std::lock_guard lock(mutex);
    if (queue.empty()) next_send = now();
    queue.push_back(submission);
    socket.wake();
    return submission;
  }

  // nullopt: abandoned, stopped while asking for a task, or refused.
  std::optional<wire::Message> wait(const std::shared_ptr<Submission>& submission) {
    std::unique_lock lock(mutex);
    const bool asks = std::holds_alternative<wire::Request>(submission->message);
    changed.wait(lock, [&] {
      return submission->answered || !refusal.empty() || is_abandoned() ||
             (asks && !stop_reason.empty());
    });
    if (submission->answered) return submission->answer;
    std::erase(queue, submission);
    return std::nullopt;
  }

  // Whoever was told to stop does not wait out orphan_timeout: its checkpoint lies on disk.
  [[nodiscard]] bool is_abandoned() const {
    const auto silence = now() - last_heard;
    return silence > options.orphan_timeout ||
           (!stop_reason.empty() && silence > options.stop_patience);
  }

  void submit_and_wait(wire::Message message, std::string name) {
    const std::optional<wire::Message> answer = wait(enqueue(std::move(message), std::move(name)));
    if (!answer) throw Error(ErrorKind::kUnavailable, "the coordinator cannot be reached");
    if (const auto* fenced = std::get_if<wire::Fenced>(&*answer))
      throw Error(ErrorKind::kFenced, fenced->reason);
  }

  void end_task() {
    const std::lock_guard lock(mutex);
    task.reset();
    lost = false;
    progress = {};
  }

  void begin_task(const wire::Task& granted) {
    const std::lock_guard lock(mutex);
    task = granted;
    lost = false;
    committed_step = -1;
    progress = {};
    progress.phase = "loading";
  }

  wire::WorkerId worker() const { return options.hello.worker; }

  [[noreturn]] void throw_refusal() {
    const std::lock_guard lock(mutex);
    throw Error(ErrorKind::kUsage,
                "the coordinator at " + options.endpoint + " refused this worker: " + refusal);
  }

  [[nodiscard]] bool refused() const {
    const std::lock_guard lock(mutex);
    return !refusal.empty();
  }
};

CoordinatorClient::CoordinatorClient(ClientOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

CoordinatorClient::~CoordinatorClient() = default;

std::optional<wire::Task> CoordinatorClient::next_task(int held_block) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->held_block = held_block;
  }
  while (true) {
    const auto answer = impl_->wait(impl_->enqueue(wire::Request{impl_->worker(), held_block}, ""));
    if (impl_->refused()) impl_->throw_refusal();
    if (!answer || std::holds_alternative<wire::Stop>(*answer)) return std::nullopt;
    if (const auto* grant = std::get_if<wire::Grant>(&*answer)) {
      impl_->begin_task(grant->task);
      return grant->task;
    }
    const auto* idle = std::get_if<wire::Idle>(&*answer);
    const int pause = idle != nullptr ? idle->retry_milliseconds : 0;
    std::unique_lock lock(impl_->mutex);
    const auto told = [this] { return !impl_->stop_reason.empty() || !impl_->refusal.empty(); };
    if (impl_->changed.wait_for(lock, milliseconds(std::clamp(pause, 1, 10000)), told) &&
        impl_->refusal.empty()) {
      return std::nullopt;
    }
  }
}

std::optional<wire::Task> CoordinatorClient::join() {
  const auto answer = impl_->wait(impl_->enqueue(wire::Request{impl_->worker(), -1}, ""));
  if (impl_->refused()) impl_->throw_refusal();
  const auto* grant = answer ? std::get_if<wire::Grant>(&*answer) : nullptr;
  if (grant == nullptr || grant->task.fencing_token != impl_->options.holds) return std::nullopt;
  impl_->begin_task(grant->task);
  return with_inputs(impl_->options.layout, grant->task);
}

void CoordinatorClient::report(const wire::Progress& progress) {
  const std::lock_guard lock(impl_->mutex);
  impl_->progress = progress;
}

bool CoordinatorClient::should_stop() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->lost || !impl_->stop_reason.empty() || !impl_->refusal.empty();
}

bool CoordinatorClient::lease_lost() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->lost;
}

std::string CoordinatorClient::stop_reason() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stop_reason;
}

void CoordinatorClient::checkpointed(const storage::FileRecord& file, std::int64_t step) {
  {
    const std::lock_guard lock(impl_->mutex);
    std::erase_if(impl_->queue, [](const auto& submission) {
      return std::holds_alternative<wire::Checkpointed>(submission->message);
    });
  }
  static_cast<void>(
      impl_->enqueue(wire::Checkpointed{impl_->worker(), impl_->token(), file, step}, file.name));
}

std::int64_t CoordinatorClient::committed_step() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->committed_step;
}

void CoordinatorClient::shard_ready(const storage::FileRecord& file, int shard) {
  impl_->submit_and_wait(wire::ShardReady{impl_->worker(), impl_->token(), shard, file}, file.name);
}

void CoordinatorClient::done(std::vector<storage::FileRecord> files, nlohmann::json result) {
  const std::string name = files.empty() ? "" : files.front().name;
  impl_->submit_and_wait(
      wire::Done{impl_->worker(), impl_->token(), std::move(files), std::move(result)}, name);
  impl_->end_task();
}

void CoordinatorClient::failed(ErrorKind kind,
                               const std::string& message,
                               std::vector<std::string> damaged) {
  if (damaged.size() > kMaxDamagedNames) damaged.resize(kMaxDamagedNames);
  impl_->submit_and_wait(wire::Failed{impl_->worker(),
                                      impl_->token(),
                                      kind,
                                      message.substr(0, kMaxErrorText),
                                      std::move(damaged)},
                         "");
  impl_->end_task();
}

void CoordinatorClient::released(const std::string& reason) {
  impl_->submit_and_wait(wire::Released{impl_->worker(), impl_->token(), reason}, "");
  impl_->end_task();
}

}  // namespace hedgerow::worker
