#include "worker/client/coordinator_client.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "coordinator/wire/coordinator_file.hpp"
#include "coordinator/wire/log_limit.hpp"
#include "storage/base/error.hpp"
#include "worker/client/coordinator_link.hpp"
#include "worker/client/coordinator_session.hpp"
#include "worker/client/task_inputs.hpp"

namespace hedgerow::worker {
namespace {

using std::chrono::milliseconds;
using storage::Error;
using storage::ErrorKind;

constexpr milliseconds kLongestPoll{100};
// Without a task, whatever the coordinator says; it asks for some 20 s of each of 10,000 workers.
constexpr milliseconds kShortestPause{1}, kLongestPause{60'000};
// Error texts travel in one message.
constexpr std::size_t kMaxErrorText = 8000;
constexpr std::size_t kMaxDamagedNames = 500;

CoordinatorSession::Time now() { return std::chrono::steady_clock::now(); }

}  // namespace

struct CoordinatorClient::Impl {
  ClientOptions options;
  CoordinatorLink link;  // the thread's alone

  mutable std::mutex mutex;
  std::condition_variable changed;
  CoordinatorSession session;
  bool closing = false;
  std::string said;          // of what stands between us and the coordinator; the thread's alone
  wire::LogLimit log_limit;  // likewise
  std::thread thread;

  explicit Impl(ClientOptions given)
      : options(std::move(given)),
        link(options.layout, options.endpoint, options.key_pair),
        session({.hello = options.hello,
                 .endpoint = options.endpoint,
                 .orphan_timeout = options.orphan_timeout,
                 .heartbeat = options.heartbeat,
                 .reply_timeout = options.reply_timeout,
                 .stop_timeout = options.stop_timeout,
                 .holds = options.holds},
                now()) {
    thread = std::thread([this] { loop(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      closing = true;
    }
    link.wake();
    thread.join();
  }

  static void log(const std::string& line) {
    std::fprintf(stderr, "hedgerow-worker: %s\n", line.c_str());
  }

  // What fails at each look, as a file system that is gone, fails once a second.
  void log_trouble(const std::string& line) {
    if (log_limit.admits("the way to the coordinator", now())) log(line);
  }

  void loop() {
    while (true) {
      const std::optional<std::string> frame = link.receive(kLongestPoll);
      for (const std::string& line : log_limit.left_out(now())) log(line);
      const std::lock_guard lock(mutex);
      if (closing) {
        link.send(wire::encode(wire::Goodbye{session.worker()}));
        return;
      }
      try {
        if (frame) session.receive(*frame, now());
        turn();
      } catch (const std::exception& error) {
        log_trouble(error.what());
        session.unreachable(now());
      }
      changed.notify_all();
    }
  }

  void turn() {
    if (options.stop_signal != nullptr && options.stop_signal->load()) session.stop("SIGTERM");
    if (!session.refusal().empty() && link.finds_new_keys()) session.greet_again(now());
    if (link.take_reconnected()) session.reconnected(now());
    accept_handshake();
    if (session.wants_look(now())) look_for_coordinator();
    for (const std::string& frame : session.tick(now())) {
      link.connect(session.endpoint());
      link.send(frame);
    }
  }

  // Before the first welcome a person waits to hear what is wrong; after it the work goes on as
  // without a coordinator, and the next one may let us in.
  void accept_handshake() {
    const std::optional<std::string> problem = link.problem();
    if (!problem && session.is_welcomed()) said.clear();
    if (!problem || *problem == said) return;
    if (link.finds_new_keys()) return session.greet_again(now());
    said = *problem;
    if (!session.was_welcomed()) return session.refuse(*problem);
    log_trouble(*problem);
    session.greet_again(now());
  }

  void look_for_coordinator() {
    if (link.finds_new_keys()) session.greet_again(now());
    const auto file = wire::read_coordinator_file(options.layout);
    if (!file || (file->host == wire::this_host() && !wire::is_alive(file->process))) return;
    session.found(file->term, file->endpoint, now());
  }

  // Throws kInternal for a message over the cap, here where the task can fail by it: the loop would
  // try to send it until the lease ends.
  std::shared_ptr<Submission> submit(wire::Message message, std::string name) {
    static_cast<void>(wire::encode(message));
    const std::lock_guard lock(mutex);
    link.wake();
    return session.submit(std::move(message), std::move(name), now());
  }

  // nullopt: abandoned, stopped while asking for a task, or refused.
  std::optional<wire::Message> wait(const std::shared_ptr<Submission>& submission) {
    std::unique_lock lock(mutex);
    const bool asks = std::holds_alternative<wire::Request>(submission->message);
    changed.wait(lock, [&] {
      return submission->answered || !session.refusal().empty() || session.is_abandoned(now()) ||
             (asks && !session.stop_reason().empty());
    });
    if (submission->answered) return submission->answer;
    session.withdraw(submission);
    return std::nullopt;
  }

  void submit_and_wait(wire::Message message, std::string name) {
    const std::optional<wire::Message> answer = wait(submit(std::move(message), std::move(name)));
    if (!answer) throw Error(ErrorKind::kUnavailable, "the coordinator cannot be reached");
    if (const auto* fenced = std::get_if<wire::Fenced>(&*answer))
      throw Error(ErrorKind::kFenced, fenced->reason);
  }

  void begin_task(const wire::Task& granted) {
    const std::lock_guard lock(mutex);
    session.begin_task(granted);
  }

  void end_task() {
    const std::lock_guard lock(mutex);
    session.end_task();
  }

  [[nodiscard]] std::uint64_t token() const {
    const std::lock_guard lock(mutex);
    return session.token();
  }

  [[nodiscard]] const wire::WorkerId& worker() const { return options.hello.worker; }

  void throw_if_refused() const {
    const std::lock_guard lock(mutex);
    if (session.refusal().empty()) return;
    throw Error(ErrorKind::kUsage, session.refusal());
  }
};

CoordinatorClient::CoordinatorClient(ClientOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

CoordinatorClient::~CoordinatorClient() = default;

const storage::RunLayout& CoordinatorClient::layout() const { return impl_->options.layout; }

std::optional<wire::Task> CoordinatorClient::next_task(int held_block) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->session.end_task();  // one that lost its lease ended without a word
    impl_->session.set_held_block(held_block);
  }
  while (true) {
    const auto answer = impl_->wait(impl_->submit(wire::Request{impl_->worker(), held_block}, ""));
    impl_->throw_if_refused();
    if (!answer || std::holds_alternative<wire::Stop>(*answer)) return std::nullopt;
    if (const auto* grant = std::get_if<wire::Grant>(&*answer)) {
      impl_->begin_task(grant->task);
      return grant->task;
    }
    const auto* idle = std::get_if<wire::Idle>(&*answer);
    const int pause = idle != nullptr ? idle->retry_milliseconds : 0;
    std::unique_lock lock(impl_->mutex);
    const auto told = [this] {
      return !impl_->session.stop_reason().empty() || !impl_->session.refusal().empty();
    };
    if (impl_->changed.wait_for(
            lock, std::clamp(milliseconds(pause), kShortestPause, kLongestPause), told) &&
        impl_->session.refusal().empty()) {
      return std::nullopt;
    }
  }
}

std::optional<wire::Task> CoordinatorClient::join() {
  const auto answer = impl_->wait(impl_->submit(wire::Request{impl_->worker(), -1}, ""));
  impl_->throw_if_refused();
  const auto* grant = answer ? std::get_if<wire::Grant>(&*answer) : nullptr;
  if (grant == nullptr || grant->task.fencing_token != impl_->options.holds) return std::nullopt;
  impl_->begin_task(grant->task);
  return with_inputs(impl_->options.layout, grant->task);
}

void CoordinatorClient::report(const wire::Progress& progress) {
  const std::lock_guard lock(impl_->mutex);
  impl_->session.set_progress(progress);
}

bool CoordinatorClient::should_stop() const {
  const std::lock_guard lock(impl_->mutex);
  const CoordinatorSession& session = impl_->session;
  return session.lease_lost() || !session.stop_reason().empty() || !session.refusal().empty();
}

bool CoordinatorClient::lease_lost() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->session.lease_lost();
}

std::string CoordinatorClient::stop_reason() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->session.stop_reason();
}

bool CoordinatorClient::run_is_over() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->session.run_is_over();
}

void CoordinatorClient::checkpointed(const storage::FileRecord& file, std::int64_t step) {
  const std::lock_guard lock(impl_->mutex);
  impl_->session.checkpointed(file, step, now());
  impl_->link.wake();
}

std::int64_t CoordinatorClient::committed_step() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->session.committed_step();
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
