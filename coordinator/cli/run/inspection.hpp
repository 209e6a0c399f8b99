// What `check` and `clean` find in a run directory, held against what the journal names. Finding is
// apart from mending, so that a look costs nothing but reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/state/state.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/journal/journal.hpp"

namespace hedgerow::coordinator::cli {

// What `check --repair` does about a damage.
enum class Repair {
  kNone,      // nothing: it cannot be read now, or its bytes are lost
  kMarkLost,  // the journal names the file and its bytes are not there: a run makes it again
  kPutBack,   // of run.toml, whose text the journal has
  kSettle,    // of the journal: the next term goes on without those records
};

struct Damage {
  std::string file;     // relative to the run directory
  std::string where;    // "sequence 12", "line 7", "whole file"
  std::string problem;  // the full message
  Repair repair = Repair::kNone;
};

struct Inspection {
  std::vector<Damage> damage;
  std::uint64_t num_files = 0;
  std::uint64_t num_bytes = 0;
  std::size_t num_settled = 0;  // damages of the journal that an earlier term went on without
};

// Reads every byte that the journal has committed (shards, artifacts, checkpoints, results),
// run.toml, the tokens files and the journal itself. `progress` gets the share done, 0..1;
// returning false ends the look early.
[[nodiscard]] Inspection inspect(const storage::RunLayout& layout,
                                 const storage::ReplayResult& replayed,
                                 const State& state,
                                 int vocab_size,
                                 const std::function<bool(double)>& progress);

// Bytes of the files that the journal has committed and that nothing has taken away.
[[nodiscard]] std::uint64_t committed_bytes(const State& state);

struct Surplus {
  std::string path;  // relative; a directory or a file
  std::string why;
  std::uint64_t bytes = 0;
  std::optional<Event> record{};  // what the journal says first
};

// Boundaries that nothing reads any more, attempts without a lease, shards that no record names.
[[nodiscard]] std::vector<Surplus> find_surplus(const storage::RunLayout& layout,
                                                const State& state);

// Throws kUsage if a coordinator works on the run, which alone may write the journal then, or a
// `run` that still makes its tokens. `say` hears if it takes a wait to find out.
void require_idle(const storage::RunLayout& layout,
                  const std::function<void(const std::string&)>& say);

// Appends events as a term of its own and makes them durable; `state` is fold(replayed)'s. The term
// also settles the damage that `replayed` went around.
void append_events(const storage::RunLayout& layout,
                   const storage::ReplayResult& replayed,
                   const State& state,
                   const std::vector<Event>& events);

}  // namespace hedgerow::coordinator::cli
