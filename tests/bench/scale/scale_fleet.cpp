#include "tests/bench/scale/scale_fleet.hpp"

#include <sys/epoll.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <memory>
#include <queue>
#include <random>
#include <stdexcept>
#include <string>

#include "coordinator/dispatch/commit.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "coordinator/wire/run_keys.hpp"
#include "tests/bench/scale/scale_run.hpp"
#include "worker/client/coordinator_link.hpp"
#include "worker/client/coordinator_session.hpp"
#include "worker/client/dealer_socket.hpp"

namespace hedgerow::bench {
namespace {

using coordinator::TaskId;
using std::chrono::milliseconds;

constexpr milliseconds kLookEvery{100};  // at coordinator.json, for all workers together

void check(int result, const char* what) {
  if (result < 0) throw std::runtime_error(std::string(what) + ": " + zmq_strerror(zmq_errno()));
}

double seconds_between(Time from, Time to) {
  return std::chrono::duration<double>(to - from).count();
}

struct Member {
  std::unique_ptr<worker::CoordinatorSession> session;
  void* socket = nullptr;
  std::string connected;
  worker::ConnectionWear wear;
  Time scheduled = Time::max();
  std::shared_ptr<worker::Submission> submission;
  Time asked;
  enum class Doing { kAsking, kPausing, kWorking, kCommitting, kFinishing } doing = Doing::kAsking;
  Time due;
  wire::Task task;
  Time begun;
  bool was_welcomed = false;
};

class Fleet {
 public:
  Fleet(const storage::RunLayout& layout, const FleetOptions& options)
      : layout_(layout),
        options_(options),
        keys_(wire::read_worker_keys(layout, "worker")),
        random_(static_cast<std::uint64_t>(options.first) + 1),
        members_(static_cast<std::size_t>(options.count)) {
    check(zmq_ctx_set(context_, ZMQ_MAX_SOCKETS, options.count + 16), "zmq_ctx_set");
  }

  FleetReport run() {
    const double step = seconds_between(options_.begin, options_.ramp_end) / options_.count;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const auto after = std::chrono::duration<double>(step * static_cast<double>(i));
      schedule(i, options_.begin + std::chrono::duration_cast<Time::duration>(after));
    }
    for (Time now = clock(); now < options_.end; now = clock()) {
      wait(now);
      for (now = clock(); !due_.empty() && due_.top().first <= now; now = clock()) {
        const auto [time, index] = due_.top();
        due_.pop();
        if (members_[index].scheduled != time) continue;  // it was served since
        members_[index].scheduled = Time::max();
        serve(index, now);
      }
      if (!is_restarted_ && now >= options_.restart_at) note_restart();
    }
    for (const Member& member : members_) {
      report_.num_welcomed += member.was_welcomed ? 1 : 0;
    }
    return report_;
  }

 private:
  static Time clock() { return std::chrono::steady_clock::now(); }

  void schedule(std::size_t index, Time at) {
    if (at >= members_[index].scheduled) return;
    members_[index].scheduled = at;
    due_.emplace(at, index);
  }

  void wait(Time now) {
    Time until = options_.end;
    if (!due_.empty()) until = std::min(until, due_.top().first);
    const auto timeout = std::chrono::ceil<milliseconds>(std::max(until - now, Time::duration(0)));
    std::array<epoll_event, 256> events{};
    const int count =
        epoll_wait(epoll_, events.data(), events.size(), static_cast<int>(timeout.count()));
    for (int i = 0; i < count; ++i) serve(events.at(static_cast<std::size_t>(i)).data.u32, clock());
  }

  void open(std::size_t index, Time now) {
    Member& member = members_[index];
    wire::Hello hello;
    hello.worker = {worker_name(options_.first + static_cast<int>(index)), 1};
    hello.version = "1";
    hello.build = hello.host = "bench";
    hello.device = kDevice;
    member.session = std::make_unique<worker::CoordinatorSession>(
        worker::SessionOptions{.hello = hello, .endpoint = current_endpoint(now)}, now);
    member.socket = zmq_socket(context_, ZMQ_DEALER);
    if (member.socket == nullptr) check(-1, "zmq_socket");
    worker::configure_dealer(member.socket, current_endpoint(now), keys_);
    int descriptor = -1;
    std::size_t size = sizeof descriptor;
    check(zmq_getsockopt(member.socket, ZMQ_FD, &descriptor, &size), "ZMQ_FD");
    epoll_event event{.events = EPOLLIN, .data = {.u32 = static_cast<std::uint32_t>(index)}};
    check(epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event), "epoll_ctl");
    ask(member, now);
  }

  // What CoordinatorClient's thread does in one round, and serve() of the worker between two.
  void serve(std::size_t index, Time now) {
    Member& member = members_[index];
    if (!member.session) open(index, now);
    worker::CoordinatorSession& session = *member.session;
    if (session.wants_look(now)) session.found(term_, current_endpoint(now), now);
    receive(member, now);
    advance(member, now);
    note_progress(member, now);
    send(member, session.tick(now), now);
    receive(member, now);  // the descriptor tells of news once
    advance(member, now);
    send(member, session.tick(now), now);
    Time next = session.next_due();
    if (member.doing == Member::Doing::kPausing || member.doing == Member::Doing::kWorking)
      next = std::min(next, member.due);
    schedule(index, std::max(next, now));
  }

  void receive(Member& member, Time now) {
    std::array<char, wire::kMaxMessageBytes> buffer;
    while (true) {
      const int size = zmq_recv(member.socket, buffer.data(), buffer.size(), ZMQ_DONTWAIT);
      if (size < 0) break;
      member.wear.note_received();
      const std::size_t length = std::min(static_cast<std::size_t>(size), buffer.size());
      member.session->receive({buffer.data(), length}, now);
    }
    if (!is_restarted_ || member.was_welcomed || !member.session->is_welcomed()) return;
    if (now < options_.restart_at + milliseconds(1)) return;
    member.was_welcomed = term_ > old_term_;
    if (member.was_welcomed)
      report_.last_welcome_seconds = seconds_between(options_.restart_at, now);
  }

  void send(Member& member, const std::vector<std::string>& frames, Time now) {
    if (frames.empty()) return;
    const std::string& endpoint = member.session->endpoint();
    if (member.connected != endpoint || member.wear.is_used_up()) {
      if (!member.connected.empty()) zmq_disconnect(member.socket, member.connected.c_str());
      check(zmq_connect(member.socket, endpoint.c_str()), "zmq_connect");
      member.connected = endpoint;
      member.wear = {};
    }
    for (const std::string& frame : frames) {
      if (is_measuring(now) && member.session->token() != 0) ++report_.num_heartbeats;
      zmq_send(member.socket, frame.data(), frame.size(), ZMQ_DONTWAIT);
      member.wear.note_sent();
    }
  }

  void ask(Member& member, Time now) {
    member.doing = Member::Doing::kAsking;
    member.asked = now;
    member.submission =
        member.session->submit(wire::Request{member.session->worker(), -1}, "", now);
  }

  void advance(Member& member, Time now) {
    worker::CoordinatorSession& session = *member.session;
    if (member.doing == Member::Doing::kPausing) {
      if (now >= member.due) ask(member, now);
      return;
    }
    if (member.doing == Member::Doing::kWorking) {
      if (session.lease_lost()) {
        ++report_.num_lost;
        session.end_task();
        ask(member, now);
      } else if (now >= member.due) {
        announce(member, now);
      }
      return;
    }
    if (!member.submission || !member.submission->answered) return;
    const wire::Message answer = *member.submission->answer;
    member.submission.reset();
    switch (member.doing) {
      case Member::Doing::kAsking:
        return take_task(member, answer, now);
      case Member::Doing::kCommitting:
        member.doing = Member::Doing::kFinishing;
        member.submission = session.submit(
            wire::Done{session.worker(), session.token(), {}, capture_result()}, "", now);
        return;
      default:
        session.end_task();
        ask(member, now);
    }
  }

  void take_task(Member& member, const wire::Message& answer, Time now) {
    if (is_measuring(member.asked)) {
      report_.request_milliseconds.push_back(1000.0 * seconds_between(member.asked, now));
    }
    const auto* grant = std::get_if<wire::Grant>(&answer);
    if (grant == nullptr || grant->task.kind != wire::TaskKind::kCapture) {
      const auto* idle = std::get_if<wire::Idle>(&answer);
      member.doing = Member::Doing::kPausing;
      member.due = now + milliseconds(idle == nullptr ? 1000 : idle->retry_milliseconds);
      return;
    }
    if (is_restarted_ && report_.first_grant_seconds < 0 && term_ > old_term_)
      report_.first_grant_seconds = seconds_between(options_.restart_at, now);
    member.task = grant->task;
    member.session->begin_task(grant->task);
    member.doing = Member::Doing::kWorking;
    member.begun = now;
    std::uniform_real_distribution<double> about(0.5, 1.5);
    member.due =
        now + milliseconds(static_cast<int>(1000.0 * about(random_) * options_.task_seconds));
  }

  // A step a second: whoever stands still is taken to hang.
  void note_progress(Member& member, Time now) const {
    if (member.doing != Member::Doing::kWorking) return;
    wire::Progress progress;
    progress.phase = "capturing";
    progress.step = static_cast<std::int64_t>(seconds_between(member.begun, now));
    progress.num_steps = static_cast<std::int64_t>(1.5 * options_.task_seconds);
    member.session->set_progress(progress);
  }

  void announce(Member& member, Time now) {
    const std::uint64_t token = member.task.fencing_token;
    const int shard = member.task.first_shard;
    const std::string name =
        coordinator::shard_name(TaskId::capture(member.task.block, shard), shard, token);
    const storage::FileRecord file = write_shard(layout_, token, name);
    member.doing = Member::Doing::kCommitting;
    member.submission = member.session->submit(
        wire::ShardReady{member.session->worker(), token, shard, file}, name, now);
  }

  [[nodiscard]] bool is_measuring(Time at) const {
    return at >= options_.measure_from && at < options_.restart_at;
  }

  void note_restart() {
    is_restarted_ = true;
    old_term_ = term_;
    for (const Member& member : members_)
      report_.num_working += member.session && member.session->token() != 0 ? 1 : 0;
  }

  // Read once for all: the file says the same to each.
  const std::string& current_endpoint(Time now) {
    if (now >= next_look_) {
      next_look_ = now + kLookEvery;
      if (const auto file = wire::read_coordinator_file(layout_)) {
        term_ = file->term;
        endpoint_ = file->endpoint;
      }
    }
    return endpoint_;
  }

  const storage::RunLayout& layout_;
  FleetOptions options_;
  std::optional<wire::WorkerKeys> keys_;
  std::mt19937_64 random_;
  void* context_ = zmq_ctx_new();
  int epoll_ = epoll_create1(EPOLL_CLOEXEC);
  std::vector<Member> members_;
  using Due = std::pair<Time, std::size_t>;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  FleetReport report_;
  bool is_restarted_ = false;
  std::uint64_t term_ = 0, old_term_ = 0;
  std::string endpoint_;
  Time next_look_{};
};

}  // namespace

FleetReport run_fleet(const storage::RunLayout& layout, const FleetOptions& options) {
  return Fleet(layout, options).run();  // sockets end with the process
}

}  // namespace hedgerow::bench
