// The beginning of a coordinator's term: the journal read and folded, the next segment opened, and
// the records that every term begins with.
#pragma once

#include <string>

#include "coordinator/dispatch/dispatcher.hpp"
#include "coordinator/host/clock.hpp"
#include "coordinator/state/fold.hpp"
#include "storage/journal/disk.hpp"
#include "storage/journal/journal.hpp"

namespace hedgerow::coordinator {

// Tokens of the next term exceed this: those on disk, and after damage also those of grants that
// are unreadable now. (Tokens in readable records are in the state.)
[[nodiscard]] std::uint64_t token_floor(const storage::RunLayout& layout,
                                        const storage::ReplayResult& replayed,
                                        const storage::Disk& disk = storage::os_disk());

struct Term {
  FoldedRun folded;
  storage::Journal journal;
};

// `folded` is fold(replayed). Finishes the deletions that an earlier term journaled. Throws as
// Journal::start_term.
[[nodiscard]] Term open_term(const storage::RunLayout& layout,
                             const storage::ReplayResult& replayed,
                             FoldedRun folded,
                             const Clock& clock,
                             storage::Disk& disk = storage::os_disk());

// Once it is folded: what was read of a large run takes several times the memory of its state, and
// goes back to the system.
void release(storage::ReplayResult replayed);

// How a capture is cut into tasks depends on the machine, so the first term's choice stands; any
// other difference throws kUsage.
void check_same_shape(const Geometry& recorded, Geometry now);

// The first records of a run; in later terms, what changed since and which tasks get another
// chance. `recipe`: the text of run.toml, recorded where the journal does not have it; empty:
// never.
void begin_term(Dispatcher& dispatcher,
                const Geometry& geometry,
                const RunInputs& inputs,
                const std::string& build,
                const std::string& earlier_build,
                const std::string& recipe);

}  // namespace hedgerow::coordinator
