#include "coordinator/holder.hpp"

#include <thread>

#include "storage/error.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;
using storage::Error;
using storage::ErrorKind;
using wire::CoordinatorFile;

constexpr std::chrono::seconds kLookForBeatEvery{1};

struct Claim {
  fs::path path;
  const char* doing;
  std::optional<CoordinatorFile> file;
};

bool same_life(const std::optional<CoordinatorFile>& a, const std::optional<CoordinatorFile>& b) {
  return a && b && a->host == b->host && a->process == b->process && a->term == b->term &&
         a->beat == b->beat;
}

[[noreturn]] void refuse(const storage::RunLayout& layout, const Claim& claim) {
  const std::string term =
      claim.file->term > 0 ? "term " + std::to_string(claim.file->term) + ", " : "";
  throw Error(ErrorKind::kUsage,
              "run " + layout.root().string() + " is " + claim.doing + " by pid " +
                  std::to_string(claim.file->process.pid) + " on " + claim.file->host + " (" +
                  term + "since " + claim.file->started_at +
                  "); 'hedgerow watch' shows it, 'hedgerow stop' ends it");
}

bool is_foreign(const Claim& claim) { return claim.file && claim.file->host != wire::this_host(); }

}  // namespace

Leftovers refuse_if_held(const storage::RunLayout& layout,
                         const HolderWait& wait,
                         const Leftovers& known) {
  const Claim claims[] = {
      {layout.coordinator_file(), "coordinated", wire::read_coordinator_file(layout)},
      {layout.preparation_file(),
       "being prepared",
       wire::read_coordinator_file(layout.preparation_file())}};
  const Claim* unknown = nullptr;
  for (const Claim& claim : claims) {
    if (!claim.file) continue;
    const bool is_this = claim.file->process == wire::this_process();
    if (is_foreign(claim)) {
      if (same_life(claim.file, known.coordinator) || same_life(claim.file, known.preparation))
        continue;
      unknown = &claim;
    } else if (!is_this && wire::is_alive(claim.file->process)) {
      refuse(layout, claim);
    }
  }
  if (unknown != nullptr && wait.say) {
    wait.say("run " + layout.root().string() + " was last " + unknown->doing + " by pid " +
             std::to_string(unknown->file->process.pid) + " on " + unknown->file->host +
             "; waiting up to " + std::to_string(kForeignPatience.count()) +
             " s for a sign that it lives");
  }
  for (auto waited = kLookForBeatEvery; unknown != nullptr && waited <= kForeignPatience;
       waited += kLookForBeatEvery) {
    wait.pause ? wait.pause(kLookForBeatEvery) : std::this_thread::sleep_for(kLookForBeatEvery);
    for (const Claim& claim : claims) {
      if (!is_foreign(claim)) continue;
      const auto now = wire::read_coordinator_file(claim.path);
      if (now && !same_life(now, claim.file)) refuse(layout, {claim.path, claim.doing, now});
    }
  }
  return {claims[0].file, claims[1].file};
}

}  // namespace hedgerow::coordinator
