// How the finetune stage begins where the coordinator does not start its ranks itself
// (finetune.launch = "elsewhere": a Kubernetes MPIJob, a job of its own under a batch system). Two
// files in the run directory, because that is all that both sides know of each other before:
//   finetune.request.json   rank 0 asks for the stage, under a name drawn for this launch, and goes
//                           on asking while it lives
//   finetune.start.json     the coordinator answers that name with a fencing token of its own
// A token is given to one name once, so two launches never write under the same one. Neither file
// outlives its use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "storage/files/run_layout.hpp"

namespace hedgerow::wire {

struct StageRequest {
  std::string launch;  // the name
  std::string host;
  int ranks = 0;
  std::uint64_t heartbeat_count =
      0;  // grows while its rank 0 lives, which may die without taking it back
  bool operator==(const StageRequest&) const = default;
};

struct StageStart {
  std::string launch;  // whose request this answers
  std::uint64_t fencing_token = 0;
  std::string student{};   // of the run directory: "student/t12"
  std::string endpoint{};  // of the coordinator
  int threads = 0;         // of each rank; 0: it decides
  // The mesh of the ranks that asked: "2x4"; "auto": they decide. Absent from files of older
  // builds.
  std::string mesh = "auto";
  bool operator==(const StageStart&) const = default;
};

// nullopt: there is none, or it is none of ours.
[[nodiscard]] std::optional<StageRequest> read_stage_request(const storage::RunLayout& layout);
[[nodiscard]] std::optional<StageStart> read_stage_start(const storage::RunLayout& layout);
void write_stage_request(const storage::RunLayout& layout, const StageRequest& request);
void write_stage_start(const storage::RunLayout& layout, const StageStart& start);
// Only if it is still that launch's. Never throw.
void withdraw_stage_request(const storage::RunLayout& layout, const std::string& launch);
void withdraw_stage_start(const storage::RunLayout& layout);

}  // namespace hedgerow::wire
