// What the dispatcher makes of an MPI stage that says that it stops.
#include "coordinator/dispatch/dispatcher.hpp"
#include "tests/coordinator/run_fixture.hpp"
#include "tests/support/fake_clock.hpp"

namespace hedgerow::coordinator {
namespace {

class FinetuneRelease : public RunFixture {
 protected:
  FinetuneRelease() {
    geometry_.finetunes = true;
    DispatcherConfig config;
    config.version = "1";
    dispatcher_ = std::make_unique<Dispatcher>(layout_, State{}, open_journal(), clock_, config);
    dispatcher_->record(RunStarted{geometry_, "test"});
    token_ = dispatcher_->grant_unpulled(TaskId::finetune(), "mpi", std::chrono::seconds(300));
    wire::Hello rank0;
    rank0.worker = {"mpi", token_};
    rank0.version = "1";
    rank0.held = wire::Task{};
    rank0.held->kind = wire::TaskKind::kFinetune;
    rank0.held->fencing_token = token_;
    say(rank0);
  }

  // The last reply.
  std::string say(const wire::Message& message) {
    dispatcher_->receive("mpi", wire::encode(message));
    std::string type;
    for (const Outgoing& outgoing : dispatcher_->flush()) type = wire::type_of(outgoing.message);
    return type;
  }
  std::string release() { return say(wire::Released{{"mpi", token_}, token_, "SIGTERM"}); }

  FakeClock clock_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::uint64_t token_ = 0;
};

// mpirun ends the ranks by the same signal when one of them has died.
TEST_F(FinetuneRelease, UnaskedItIsTheLaunchersToJudge) {
  EXPECT_EQ(release(), "committed") << "or it would be said again and again";
  EXPECT_TRUE(dispatcher_->gave_back(token_));
  EXPECT_EQ(num_records("released"), 0);
  EXPECT_NE(dispatcher_->state().holder(token_), nullptr);
}

TEST_F(FinetuneRelease, WhenAllWereAskedToStopTheLeaseIsBackAtOnce) {
  dispatcher_->stop_workers("the run was asked to stop", Dispatcher::Spare::kNobody);
  EXPECT_EQ(release(), "committed");
  EXPECT_EQ(num_records("released"), 1);
  EXPECT_EQ(dispatcher_->state().holder(token_), nullptr);
}

}  // namespace
}  // namespace hedgerow::coordinator
