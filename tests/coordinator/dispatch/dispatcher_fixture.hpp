// The dispatcher of a run that computes nothing, with a clock of the test's own and a real journal.
#pragma once

#include <memory>
#include <string>

#include "coordinator/dispatch/dispatcher.hpp"
#include "tests/coordinator/run_fixture.hpp"
#include "tests/support/fake_clock.hpp"

namespace hedgerow::coordinator {

using std::chrono::minutes;
using std::chrono::seconds;

class DispatcherTest : public RunFixture {
 protected:
  DispatcherTest() { reopen(); }

  // A new term over the journal, as after a crash.
  void reopen() {
    dispatcher_.reset();
    State state;
    if (std::filesystem::exists(layout_.journal_directory())) state = replayed();
    config_.version = "1";
    config_.log = [this](const std::string& line) { logged_.push_back(line); };
    dispatcher_ =
        std::make_unique<Dispatcher>(layout_, std::move(state), open_journal(), clock_, config_);
    if (!dispatcher_->state().geometry) dispatcher_->record(RunStarted{geometry_, "test"});
    static_cast<void>(dispatcher_->flush());
  }

  // Says it and returns the first reply to this worker.
  wire::Message say(const std::string& worker, const wire::Message& message) {
    dispatcher_->receive("peer-" + worker, wire::encode(message));
    for (Outgoing& outgoing : dispatcher_->flush()) {
      if (outgoing.peer == "peer-" + worker) return outgoing.message;
    }
    return wire::Idle{-1};  // no reply at all
  }

  void hello(const std::string& worker, std::uint64_t incarnation = 1) {
    wire::Hello message;
    message.worker = {worker, incarnation};
    message.version = "1";
    ASSERT_EQ(wire::type_of(say(worker, message)), "welcome");
  }

  wire::Task request(const std::string& worker, int held_block = -1) {
    const wire::Message reply = say(worker, wire::Request{{worker, 1}, held_block});
    EXPECT_EQ(wire::type_of(reply), "grant");
    return std::get<wire::Grant>(reply).task;
  }

  // A transfer, whatever captures there are: the worker that asked first keeps those.
  wire::Task grant_transfer(const std::string& worker) {
    for (int piece = 0; piece < 4; ++piece) {
      const wire::Task task = request(worker);
      if (task.kind == wire::TaskKind::kTransfer) return task;
      const std::string other = worker + "-capture" + std::to_string(piece);
      say(worker, wire::Released{{worker, 1}, task.fencing_token, "not this one"});
      hello(other);
      static_cast<void>(request(other));
    }
    return {};
  }

  void pass(std::chrono::milliseconds time) {
    clock_.advance(time);
    dispatcher_->tick();
    static_cast<void>(dispatcher_->flush());
  }

  FakeClock clock_;
  DispatcherConfig config_;
  std::vector<std::string> logged_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

}  // namespace hedgerow::coordinator
