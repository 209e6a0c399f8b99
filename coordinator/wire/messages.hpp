// What coordinator and worker say to each other. One message = one ZeroMQ frame: magic, protocol number, JSON, 64 KB cap.
// No code and no path that leaves the run directory ever travels; tensors go through the file system.
// A worker pulls (credit 1): hello -> welcome | refused; request -> grant | idle | stop; while it holds a task:
// heartbeat -> heartbeat_ack (renewed | revoked | stop), checkpointed, shard_ready -> committed | fenced,
// done | failed | released -> committed | fenced. Each message carries worker uuid, incarnation and, with a task, its
// fencing token, so that late messages of a dead attempt reject themselves. The table is in coordinator/README.md.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "storage/error.hpp"
#include "storage/hidden_shard.hpp"

namespace hedgerow::wire {

inline constexpr std::uint32_t kProtocol = 1;  // another number is refused in the hello, with both numbers named
inline constexpr std::size_t kMaxMessageBytes = 64 * 1024;

// kFinetune is granted to the MPI stage that the coordinator launched: its rank 0 joins with Hello{held}.
enum class TaskKind { kCapture, kTransfer, kEvaluate, kFinetune };

// A worker task. Everything else (recipe, layout, model) the worker reads from the run directory.
struct Task {
  TaskKind kind = TaskKind::kCapture;
  std::uint64_t fencing_token = 0;
  int block = -1;                       // capture, transfer
  int first_layer = 0, num_layers = 0;  // of the block
  // Sequences of tokens/transfer.h5: those the step budget visits, then validation.
  int first_shard = 0, num_shards = 0;  // capture: shards of boundary block + 1 to write
  std::int64_t sequences_per_shard = 0;
  std::vector<storage::FileRecord> inputs;    // capture, transfer: committed shards of boundary `block` (none for block 0);
                                              // evaluate: student artifact and adapter files
  std::optional<storage::FileRecord> resume;  // transfer: the last committed checkpoint
  std::uint64_t seed = 0;                     // transfer: differs from the recipe's after a retry with another seed
  std::string subject;                        // evaluate: teacher | transfer | lora
  bool operator==(const Task&) const;
};

struct WorkerId {
  std::string uuid;
  std::uint64_t incarnation = 0;
};

// Measured progress; rides on heartbeats and into metrics.jsonl.
struct Progress {
  std::string phase;            // "loading", "capturing", "training", "validating", "evaluating", "idle"
  std::int64_t step = 0, num_steps = 0;
  std::int64_t tokens = 0;      // of this task so far
  double seconds = 0.0;         // of this task so far
  double seconds_waited_on_data = 0.0;
  std::vector<double> layer_mse;       // transfer: last validation, by layer of the block
  std::vector<double> linear_share;    // transfer: last validation, by layer
  double loss = 0.0;                   // evaluate, finetune
};

// Worker -> coordinator
struct Hello {
  WorkerId worker;
  std::string version, build, host, device;  // device model: byte-equality is promised within one
  int pid = 0, threads = 0;
  std::uint64_t memory_bytes = 0;
  std::optional<Task> held;  // reconnecting with a lease: keeps it if nobody else was granted it
  int held_block = -1;       // whose weights are loaded (affinity)
};
struct Request { WorkerId worker; int held_block = -1; };
struct Heartbeat { WorkerId worker; std::uint64_t fencing_token = 0; Progress progress; };
struct Checkpointed { WorkerId worker; std::uint64_t fencing_token = 0; storage::FileRecord file; std::int64_t step = 0; };
// Files lie under attempts/t<token>/; the coordinator checks the token, renames to `file.name`, journals, replies.
struct ShardReady { WorkerId worker; std::uint64_t fencing_token = 0; int shard = 0; storage::FileRecord file; };
struct Done {
  WorkerId worker;
  std::uint64_t fencing_token = 0;
  std::optional<storage::FileRecord> file;  // transfer: the artifact; evaluate: the result JSON
  nlohmann::json result;                    // per-layer MSE, perplexity, tokens/s, ... shown by status and report
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
struct Refused { std::string reason; };
struct Grant { Task task; };
struct Idle { int retry_milliseconds = 500; };
struct HeartbeatAck { std::uint64_t fencing_token = 0; bool lease_valid = true; };
struct Committed { std::uint64_t fencing_token = 0; std::string name; };
struct Fenced { std::uint64_t fencing_token = 0; std::string reason; };
struct Stop { std::string reason; };  // checkpoint, release, exit

using Message = std::variant<Hello, Request, Heartbeat, Checkpointed, ShardReady, Done, Failed, Released, Goodbye,  //
                             Welcome, Refused, Grant, Idle, HeartbeatAck, Committed, Fenced, Stop>;

[[nodiscard]] std::string encode(const Message& message);  // Throws kInternal above kMaxMessageBytes
// Throws kCorrupt: wrong magic, truncated, over the cap, unknown type, missing or ill-typed field, nesting too deep.
[[nodiscard]] Message decode(std::string_view frame);
// The protocol number of a frame whose magic fits, for the refusal message; nullopt for foreign bytes.
[[nodiscard]] std::optional<std::uint32_t> protocol_of(std::string_view frame);

void to_json(nlohmann::json& json, const Task& task);
void from_json(const nlohmann::json& json, Task& task);
void to_json(nlohmann::json& json, const Progress& progress);
void from_json(const nlohmann::json& json, Progress& progress);

}  // namespace hedgerow::wire
