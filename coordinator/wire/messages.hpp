// What coordinator and worker say to each other. One message = one ZeroMQ frame: magic, protocol
// number, JSON, 64 KB cap. No code and no path that leaves the run directory ever travels; tensors
// go through the file system. A worker pulls (credit 1): hello -> welcome | refused; anything
// before it -> who_are_you; request -> grant | idle | stop; while it holds a task: heartbeat ->
// heartbeat_ack (valid or not) | stop; checkpointed, shard_ready, done, failed, released ->
// committed | fenced. Each message carries worker uuid, incarnation and, with a task, its fencing
// token, so that late messages of a dead attempt reject themselves. The table is in
// coordinator/README.md.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "coordinator/wire/task.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::wire {

// Another number is refused in the hello, with both numbers named.
inline constexpr std::uint32_t kProtocol = 2;
inline constexpr std::size_t kMaxMessageBytes = 64 * 1024;

// One message a line.
// clang-format off

// Worker -> coordinator
struct Hello {
  WorkerId worker;
  std::string version, build, host, device;  // device model: byte-equality is promised within one
  int pid = 0, threads = 0;
  std::uint64_t memory_bytes = 0;
  bool on_gpu = false;     // where memory_bytes are
  std::string auto_dtype;  // what plan.compute_dtype = "auto" comes to there: bf16 | fp32
  std::optional<Task> held;  // reconnecting with a lease: keeps it unless another worker has it
  int held_block = -1;       // whose weights are loaded (affinity)
};
struct Request { WorkerId worker; int held_block = -1; };
struct Heartbeat { WorkerId worker; std::uint64_t fencing_token = 0; Progress progress; };
// Checkpoints stay where the attempt wrote them: file.name begins with attempts/t<token>/.
struct Checkpointed { WorkerId worker; std::uint64_t fencing_token = 0; storage::FileRecord file; std::int64_t step = 0; };
// file.name is the final name, as RunLayout gives it; the file itself lies under attempts/t<token>/ with the same base
// name. The coordinator checks the token, renames, journals, replies.
struct ShardReady { WorkerId worker; std::uint64_t fencing_token = 0; int shard = 0; storage::FileRecord file; };
struct Done {
  WorkerId worker;
  std::uint64_t fencing_token = 0;
  std::vector<storage::FileRecord> files;  // transfer: the artifact; evaluate: the result; finetune: the adapter's two
  nlohmann::json result;  // an object, shown by status and report; its keys: coordinator/README.md "Results"
};
struct Failed {
  WorkerId worker;
  std::uint64_t fencing_token = 0;
  storage::ErrorKind kind = storage::ErrorKind::kInternal;
  std::string message;
  std::vector<std::string> damaged;  // names of committed files found missing or corrupt: they become `lost`
};
struct Released { WorkerId worker; std::uint64_t fencing_token = 0; std::string reason; };  // SIGTERM, preemption
struct Goodbye { WorkerId worker; };

// Coordinator -> worker
struct Welcome { std::uint64_t term = 0; int lease_seconds = 30; int heartbeat_seconds = 5; bool keeps_task = false; };
struct Refused { std::string reason; };        // final: the worker exits
struct WhoAreYou { std::uint64_t term = 0; };  // a restarted coordinator to a worker it has not met: say hello again
struct Grant { Task task; };
struct Idle { int retry_milliseconds = 500; };
struct HeartbeatAck { std::uint64_t fencing_token = 0; bool lease_valid = true; };
struct Committed { std::uint64_t fencing_token = 0; std::string name; };  // of the (first) file; may be empty
struct Fenced { std::uint64_t fencing_token = 0; std::string reason; };
// Checkpoint, release, exit; is_over: for good, the run has no more work.
struct Stop { std::string reason; bool is_over = false; };

// clang-format on

using Message = std::variant<Hello,
                             Request,
                             Heartbeat,
                             Checkpointed,
                             ShardReady,
                             Done,
                             Failed,
                             Released,
                             Goodbye,  //
                             Welcome,
                             Refused,
                             WhoAreYou,
                             Grant,
                             Idle,
                             HeartbeatAck,
                             Committed,
                             Fenced,
                             Stop>;

[[nodiscard]] std::string encode(
    const Message& message);  // Throws kInternal above kMaxMessageBytes
// The type as the README's wire table spells it: "hello", "shard_ready", ...
[[nodiscard]] std::string_view type_of(const Message& message);
// Throws kCorrupt: wrong magic, truncated, over the cap, unknown type, missing or ill-typed field,
// nesting too deep.
[[nodiscard]] Message decode(std::string_view frame);
// The protocol number of a frame whose magic fits, for the refusal message; nullopt for foreign
// bytes.
[[nodiscard]] std::optional<std::uint32_t> protocol_of(std::string_view frame);

}  // namespace hedgerow::wire
