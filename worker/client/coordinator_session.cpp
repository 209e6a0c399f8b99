#include "worker/client/coordinator_session.hpp"

#include <algorithm>

#include "storage/base/error.hpp"

namespace hedgerow::worker {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{1000};
constexpr milliseconds kLongestBackoff{32000};
constexpr milliseconds kLookEvery{1000};
constexpr milliseconds kTick{1};

}  // namespace

CoordinatorSession::CoordinatorSession(SessionOptions options, Time now)
    : options_(std::move(options)),
      backoff_(kFirstBackoff),
      heartbeat_(options_.heartbeat),
      last_heard_(now),
      next_look_(now),
      next_hello_(now),
      next_heartbeat_(now),
      next_send_(now) {
  if (options_.holds == 0) return;
  task_.emplace();
  task_->kind = wire::TaskKind::kFinetune;
  task_->fencing_token = options_.holds;
}

// One overload a message of the coordinator; a worker's is not for us.
struct CoordinatorSession::Receiver {
  CoordinatorSession& session;
  Time now;

  void operator()(const wire::Welcome& message) const {
    session.welcomed_ = session.was_welcomed_ = true;
    session.backoff_ = kFirstBackoff;
    session.heartbeat_ =
        std::min(session.options_.heartbeat, milliseconds(message.heartbeat_seconds * 1000));
    if (session.task_ && !message.keeps_task) session.lost_ = true;
    session.next_heartbeat_ = session.next_send_ = now;
  }
  void operator()(const wire::WhoAreYou&) const {
    session.welcomed_ = false;
    session.next_hello_ = now;
  }
  void operator()(const wire::Refused& message) const {
    session.refuse("the coordinator at " + session.endpoint() +
                   " refused this worker: " + message.reason);
  }
  void operator()(const wire::HeartbeatAck& message) const {
    if (!message.lease_valid && message.fencing_token == session.token()) session.lost_ = true;
  }
  void operator()(const wire::Stop& message) const {
    session.run_is_over_ = session.run_is_over_ || message.is_over;
    session.stop(message.reason);
    if (session.asks_for_task()) session.answer(message, now);
  }
  void operator()(const wire::Grant& message) const {
    if (session.asks_for_task()) session.answer(message, now);
  }
  void operator()(const wire::Idle& message) const {
    if (session.asks_for_task()) session.answer(message, now);
  }
  void operator()(const wire::Committed& message) const {
    const bool fits = !session.queue_.empty() && !session.asks_for_task() &&
                      message.fencing_token == session.token() &&
                      message.name == session.queue_.front()->name;
    if (!fits) return;
    const wire::Message& asked = session.queue_.front()->message;
    if (const auto* checkpoint = std::get_if<wire::Checkpointed>(&asked))
      session.committed_step_ = checkpoint->step;
    session.answer(message, now);
  }
  void operator()(const wire::Fenced& message) const {
    if (message.fencing_token != session.token()) return;
    session.lost_ = true;
    if (!session.queue_.empty() && !session.asks_for_task()) session.answer(message, now);
  }
  template <typename T>
  void operator()(const T&) const {}
};

void CoordinatorSession::receive(std::string_view frame, Time now) {
  last_heard_ = now;
  try {
    std::visit(Receiver{*this, now}, wire::decode(frame));
  } catch (const storage::Error&) {
    const auto protocol = wire::protocol_of(frame);
    if (protocol && *protocol != wire::kProtocol) {
      refuse("the coordinator at " + endpoint() + " speaks protocol " + std::to_string(*protocol) +
             ", this worker " + std::to_string(wire::kProtocol) +
             "; install the same version of hedgerow on both");
    }
    // Any other damaged frame is dropped; what it answered is asked again.
  }
}

bool CoordinatorSession::asks_for_task() const {
  return !queue_.empty() && std::holds_alternative<wire::Request>(queue_.front()->message);
}

void CoordinatorSession::answer(const wire::Message& message, Time now) {
  queue_.front()->answer = message;
  queue_.front()->answered = true;
  queue_.pop_front();
  next_send_ = now;
}

std::vector<std::string> CoordinatorSession::tick(Time now) {
  if (now - last_heard_ > options_.orphan_timeout) {
    stop("no coordinator for " + std::to_string(options_.orphan_timeout / std::chrono::seconds(1)) +
         " s");
  }
  if (welcomed_ && now - last_heard_ > options_.reply_timeout) {
    welcomed_ = false;
    next_hello_ = now;
  }
  std::vector<std::string> frames;
  if (!welcomed_) {
    if (now >= next_hello_) frames.push_back(hello(now));
    return frames;
  }
  if (now >= next_heartbeat_) {
    frames.push_back(wire::encode(wire::Heartbeat{worker(), token(), progress_}));
    next_heartbeat_ = now + heartbeat_;
  }
  if (!queue_.empty() && now >= next_send_) {
    frames.push_back(wire::encode(queue_.front()->message));
    next_send_ = now + options_.reply_timeout;
  }
  return frames;
}

CoordinatorSession::Time CoordinatorSession::next_due() const {
  // The first moments at which the comparisons of tick() and is_abandoned() hold.
  const auto after = [this](milliseconds silence) { return last_heard_ + silence + kTick; };
  Time due = after(options_.orphan_timeout);
  if (!stop_reason_.empty()) due = std::min(due, after(options_.stop_timeout));
  if (!welcomed_) return std::min({due, next_hello_, next_look_});
  due = std::min({due, next_heartbeat_, after(options_.reply_timeout)});
  return queue_.empty() ? due : std::min(due, next_send_);
}

bool CoordinatorSession::wants_look(Time now) {
  if (welcomed_ || now < next_look_) return false;
  next_look_ = now + kLookEvery;
  return true;
}

// A new term is greeted at once, whatever the backoff: its leases run from its start.
void CoordinatorSession::found(std::uint64_t term, const std::string& endpoint, Time now) {
  if (term == seen_term_) return;
  seen_term_ = term;
  options_.endpoint = endpoint;
  next_hello_ = now;
  backoff_ = kFirstBackoff;
}

// Also where the coordinator is the old one: what went out meanwhile may be lost.
void CoordinatorSession::reconnected(Time now) {
  welcomed_ = false;
  next_hello_ = now;
  backoff_ = kFirstBackoff;
}

void CoordinatorSession::unreachable(Time now) {
  welcomed_ = false;
  next_hello_ = now + kLongestBackoff;
}

void CoordinatorSession::greet_again(Time now) {
  refusal_.clear();
  reconnected(now);
}

void CoordinatorSession::refuse(const std::string& sentence) {
  if (refusal_.empty()) refusal_ = sentence;
}

std::string CoordinatorSession::hello(Time now) {
  wire::Hello hello = options_.hello;
  hello.held_block = held_block_;
  if (task_ && !lost_) {
    hello.held = *task_;
    hello.held->inputs.clear();  // the token says it all
  }
  next_hello_ = now + backoff_;
  backoff_ = std::min(kLongestBackoff, backoff_ * 2);
  return wire::encode(hello);
}

std::shared_ptr<Submission> CoordinatorSession::submit(wire::Message message,
                                                       std::string name,
                                                       Time now) {
  auto submission =
      std::make_shared<Submission>(Submission{std::move(message), std::move(name), false, {}});
  if (queue_.empty()) next_send_ = now;
  queue_.push_back(submission);
  return submission;
}

void CoordinatorSession::withdraw(const std::shared_ptr<Submission>& submission) {
  std::erase(queue_, submission);
}

void CoordinatorSession::checkpointed(const storage::FileRecord& file,
                                      std::int64_t step,
                                      Time now) {
  std::erase_if(queue_, [](const auto& submission) {
    return std::holds_alternative<wire::Checkpointed>(submission->message);
  });
  static_cast<void>(submit(wire::Checkpointed{worker(), token(), file, step}, file.name, now));
}

// A worker that was told to stop does not wait out orphan_timeout: its checkpoint lies on disk.
bool CoordinatorSession::is_abandoned(Time now) const {
  const auto silence = now - last_heard_;
  return silence > options_.orphan_timeout ||
         (!stop_reason_.empty() && silence > options_.stop_timeout);
}

void CoordinatorSession::begin_task(const wire::Task& granted) {
  task_ = granted;
  lost_ = false;
  committed_step_ = -1;
  progress_ = {};
  progress_.phase = "loading";
}

// What is still unanswered is of the task that ends: an answer to it would be taken for a
// stranger's and keep what follows waiting for ever.
void CoordinatorSession::end_task() {
  queue_.clear();
  task_.reset();
  lost_ = false;
  progress_ = {};
}

void CoordinatorSession::stop(const std::string& reason) {
  if (stop_reason_.empty()) stop_reason_ = reason;
}

}  // namespace hedgerow::worker
