#include "coordinator/host/run_ownership.hpp"

#include <array>
#include <thread>

#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;
using storage::Error;
using storage::ErrorKind;
using wire::CoordinatorFile;

constexpr std::chrono::seconds kHeartbeatPollInterval{1};
constexpr std::chrono::milliseconds kLookForWinnerEvery{100};

struct Claim {
  fs::path path;
  const char* doing;
  std::optional<CoordinatorFile> file;
};

bool same_life(const std::optional<CoordinatorFile>& a, const std::optional<CoordinatorFile>& b) {
  return a && b && a->host == b->host && a->process == b->process && a->term == b->term &&
         a->heartbeat_count == b->heartbeat_count;
}

std::string describe(const Claim& claim) {
  const std::string term =
      claim.file->term > 0 ? "term " + std::to_string(claim.file->term) + ", " : "";
  return std::string("is ") + claim.doing + " by pid " + std::to_string(claim.file->process.pid) +
         " on " + claim.file->host + " (" + term + "since " + claim.file->started_at +
         "); 'hedgerow watch' shows it, 'hedgerow stop' ends it";
}

[[noreturn]] void refuse(const storage::RunLayout& layout, const Claim& claim) {
  throw Error(ErrorKind::kUsage, "run " + layout.root().string() + " " + describe(claim));
}

std::array<Claim, 2> claims_on(const storage::RunLayout& layout) {
  return {{{layout.coordinator_file(), "coordinated", wire::read_coordinator_file(layout)},
           {layout.tokenize_stage_file(),
            "being prepared",
            wire::read_coordinator_file(layout.tokenize_stage_file())}}};
}

bool is_foreign(const Claim& claim) { return claim.file && claim.file->host != wire::this_host(); }

// Whether it is another process's that lives, as far as one look tells.
bool is_others(const Claim& claim, const Leftovers& known) {
  if (!claim.file || claim.file->process == wire::this_process()) return false;
  if (!is_foreign(claim)) return wire::is_alive(claim.file->process);
  return !same_life(claim.file, known.coordinator) && !same_life(claim.file, known.tokenize_stage);
}

void pause(const OwnershipWait& wait, std::chrono::milliseconds time) {
  wait.pause ? wait.pause(time) : std::this_thread::sleep_for(time);
}

}  // namespace

Leftovers refuse_if_held(const storage::RunLayout& layout,
                         const OwnershipWait& wait,
                         const Leftovers& known) {
  const std::array<Claim, 2> claims = claims_on(layout);
  const Claim* unknown = nullptr;
  for (const Claim& claim : claims) {
    if (!is_others(claim, known)) continue;
    if (!is_foreign(claim)) refuse(layout, claim);
    unknown = &claim;
  }
  if (unknown != nullptr && wait.say) {
    wait.say("run " + layout.root().string() + " was last " + unknown->doing + " by pid " +
             std::to_string(unknown->file->process.pid) + " on " + unknown->file->host +
             "; waiting up to " + std::to_string(kForeignHostTimeout.count()) +
             " s for a sign that it lives");
  }
  for (auto waited = kHeartbeatPollInterval; unknown != nullptr && waited <= kForeignHostTimeout;
       waited += kHeartbeatPollInterval) {
    pause(wait, kHeartbeatPollInterval);
    for (const Claim& claim : claims) {
      if (!is_foreign(claim)) continue;
      const auto now = wire::read_coordinator_file(claim.path);
      if (now && !same_life(now, claim.file)) refuse(layout, {claim.path, claim.doing, now});
    }
  }
  return {claims[0].file, claims[1].file};
}

std::string name_winner(const storage::RunLayout& layout,
                        const storage::Overtaken& what,
                        const Leftovers& known,
                        const OwnershipWait& wait) {
  const std::string sentence = what.what();
  for (std::chrono::milliseconds waited{0};; waited += kLookForWinnerEvery) {
    const auto [coordinator, tokenize_stage] = claims_on(layout);
    if (is_others(coordinator, known)) return sentence + "; the run " + describe(coordinator);
    if (waited >= kWinnerTimeout) {
      return sentence + (is_others(tokenize_stage, known) ? "; the run " + describe(tokenize_stage)
                                                          : "; 'hedgerow status' may tell which");
    }
    pause(wait, kLookForWinnerEvery);
  }
}

}  // namespace hedgerow::coordinator
