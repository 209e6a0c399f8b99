// The coordinator's loop over real ZeroMQ sockets, with workers that are the real client on threads
// of this process and invent their results.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "coordinator/dispatch/commit.hpp"
#include "coordinator/net/router_socket.hpp"
#include "coordinator/serve/coordinator.hpp"
#include "storage/files/file.hpp"
#include "tests/coordinator/run_fixture.hpp"
#include "worker/client/coordinator_client.hpp"

namespace hedgerow::coordinator {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Quiet final : public RunObserver {
 public:
  explicit Quiet(bool& saw_stopping) : saw_stopping_(saw_stopping) {}
  void on_status(const RunStatus& status) override { saw_stopping_ |= status.is_stopping; }

 private:
  bool& saw_stopping_;
};

class CoordinatorRun : public RunFixture {
 protected:
  CoordinatorRun() {
    storage::write_atomically(layout_.recipe(), "# only its presence matters here\n");
  }

  // Runs the coordinator of the next term to the end of the run.
  RunOutcome coordinate(const std::atomic<int>* stop_requests = nullptr) {
    const auto previous = wire::read_coordinator_file(layout_);
    const storage::ReplayResult replayed = replay_if_any(layout_);
    Term term = open_term(layout_, replayed, fold(replayed), clock_);
    DispatcherConfig config;
    config.keep = KeepBoundaries::parse(recipe_.plan.keep_boundaries);
    config.version = "1";
    config.token_floor = largest_token_on_disk(layout_);
    config.room_for_retry = room_for_retry_;
    Quiet observer(saw_stopping_);
    RouterSocket socket({.bind = recipe_.workers.bind,
                         .advertise = recipe_.workers.advertise,
                         .preferred_port = previous ? wire::port_of(previous->endpoint) : 0,
                         .keys = wire::read_coordinator_keys(layout_)});
    AllowedKeysReloader allowed_keys_reloader(layout_, socket, &reload_requests_);
    Coordinator coordinator(
        {.layout = layout_,
         .dispatcher = config,
         .launcher = launcher_,
         .stop_requests = stop_requests,
         .stops_before_finetune = stops_before_finetune_,
         .finetune_elsewhere = finetune_elsewhere_},
        {.mailbox = socket,
         .clock = clock_,
         .assemble =
             [this](const State& state, std::uint64_t token) {
               return assemble_student(layout_, state, assembly(), token);
             },
         .public_key = socket.public_key(),
         .allowed_keys_news =
             [&] { return news_ ? news_() : allowed_keys_reloader.look(clock_.now()); }},
        std::move(term),
        previous,
        &observer);
    if (!coordinator.dispatcher().state().geometry)
      coordinator.dispatcher().record(RunStarted{geometry_, "test"});
    return coordinator.run();
  }

  std::string endpoint_of_next_coordinator(std::uint64_t after_term = 0) const {
    const auto deadline = std::chrono::steady_clock::now() + seconds(20);
    while (std::chrono::steady_clock::now() < deadline) {
      const auto file = wire::read_coordinator_file(layout_);
      if (file && file->term > after_term) return file->endpoint;
      std::this_thread::yield();
    }
    throw std::runtime_error("no coordinator came");
  }

  std::unique_ptr<worker::CoordinatorClient> connect(const std::string& name,
                                                     const std::string& endpoint,
                                                     const std::string& key_pair = "worker") const {
    worker::ClientOptions options{
        .layout = layout_, .endpoint = endpoint, .hello = {}, .key_pair = key_pair};
    options.hello.worker = {name, 1};
    options.hello.version = "1";
    options.heartbeat = milliseconds(50);
    options.reply_timeout = milliseconds(200);
    options.orphan_timeout = seconds(30);
    return std::make_unique<worker::CoordinatorClient>(std::move(options));
  }

  // What a task leaves behind, invented.
  void execute(worker::CoordinatorClient& client, const wire::Task& task) const {
    const std::uint64_t token = task.fencing_token;
    switch (task.kind) {
      case wire::TaskKind::kCapture:
        for (int shard = task.first_shard; shard < task.first_shard + task.num_shards; ++shard) {
          const std::string name = storage::RunLayout::hidden_shard(task.block + 1, shard, token);
          client.shard_ready(write_attempt(token, name, "shard"), shard);
        }
        client.done({}, nlohmann::json::object());
        break;
      case wire::TaskKind::kLogits:
        client.done({write_attempt(token, storage::RunLayout::logits(task.piece, token), "logits")},
                    nlohmann::json::object());
        break;
      case wire::TaskKind::kTransfer:
        client.done({write_artifact(task.block, token)}, {{"layers", nlohmann::json::array()}});
        break;
      case wire::TaskKind::kEvaluate:
        client.done(
            {write_attempt(token, storage::RunLayout::evaluation(task.subject, token), "{}")},
            {{"perplexity", 12.5}});
        break;
      case wire::TaskKind::kAssemble:
      case wire::TaskKind::kFinetune:
        break;
    }
  }

  // Works until it is told to stop; returns the number of tasks done.
  int serve(worker::CoordinatorClient& client) const {
    int done = 0;
    while (const auto task = client.next_task(-1)) {
      execute(client, *task);
      ++done;
    }
    return done;
  }

  SteadyClock clock_;
  LauncherConfig launcher_{
      .worker_binary = "", .run_directory = layout_.root(), .logs = layout_.logs()};
  std::uint64_t room_for_retry_ = 0;
  std::function<AllowedKeysNews()> news_;  // in place of the real one: called once a turn
  bool saw_stopping_ = false;
  bool stops_before_finetune_ = false;
  bool finetune_elsewhere_ = false;
  std::atomic<int> reload_requests_{0};
};

}  // namespace hedgerow::coordinator
