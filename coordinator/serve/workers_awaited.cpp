#include "coordinator/serve/workers_awaited.hpp"

#include <algorithm>
#include <map>
#include <variant>

#include "coordinator/host/clock.hpp"
#include "coordinator/host/process.hpp"
#include "coordinator/serve/live_status.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "storage/base/error.hpp"
#include "storage/base/utc.hpp"

namespace hedgerow::coordinator {

std::vector<wire::Hello> await_workers(const WorkersAwaited& call) {
  constexpr std::chrono::milliseconds kTurn{200};
  const SteadyClock clock;
  wire::CoordinatorFile file{.host = wire::this_host(),
                             .process = host_processes().self(),
                             .term = 0,
                             .endpoint = call.mailbox.endpoint(),
                             .public_key = call.public_key,
                             .started_at = clock.utc(),
                             .heartbeat_count = 0,
                             .children = {}};
  RunStatus status;
  status.run = call.layout.root().string();
  status.state = "running";
  status.host = file.host;
  status.endpoint = file.endpoint;
  status.pid = file.process.pid;
  status.warnings = {
      "waits for a worker, whose memory and device decide the rest of the recipe; "
      "'hedgerow worker --run " +
      status.run + "' joins, on any machine that sees the directory"};
  const auto publish = [&] {
    wire::write_coordinator_file(call.layout, file);
    status.updated_at = storage::utc_now();
    write_status(call.layout, status);
    if (call.on_status) call.on_status(status);
  };
  publish();
  std::map<std::string, wire::Hello> workers;
  TimePoint last_news = clock.now(), next_heartbeat = clock.now() + wire::kHeartbeatInterval;
  while (workers.empty() || clock.now() - last_news < call.settle) {
    if (call.stop_requests != nullptr && call.stop_requests->load() > 0) return {};
    if (clock.now() >= next_heartbeat) {
      next_heartbeat = clock.now() + wire::kHeartbeatInterval;
      ++file.heartbeat_count;
      publish();
    }
    const auto incoming = call.mailbox.receive(kTurn);
    if (!incoming) continue;
    try {
      const wire::Message message = wire::decode(incoming->frame);
      const auto* hello = std::get_if<wire::Hello>(&message);
      if (hello != nullptr && workers.try_emplace(hello->worker.uuid, *hello).second)
        last_news = clock.now();
    } catch (const storage::Error&) {  // its sender says it again to the coordinator
    }
  }
  std::vector<wire::Hello> hellos;
  for (auto& [uuid, hello] : workers) hellos.push_back(std::move(hello));
  return hellos;
}

std::string common_dtype(const std::vector<wire::Hello>& hellos) {
  const bool is_fast = std::all_of(hellos.begin(), hellos.end(), [](const wire::Hello& hello) {
    return hello.auto_dtype == "bf16";
  });
  return is_fast ? "bf16" : "fp32";
}

}  // namespace hedgerow::coordinator
