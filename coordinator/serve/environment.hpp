// What a coordinator lives among: how it hears, where it writes, what time it is, which processes
// are its host's, and who makes the student. Everything else in it is decisions, so that the
// simulator runs the very same loop.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/host/clock.hpp"
#include "coordinator/host/process.hpp"
#include "coordinator/net/allowed_keys_reloader.hpp"
#include "coordinator/net/mailbox.hpp"
#include "coordinator/state/state.hpp"
#include "storage/journal/disk.hpp"

namespace hedgerow::coordinator {

// All of them outlive the coordinator.
struct Environment {
  Mailbox& mailbox;
  const Clock& clock;
  Processes& processes = host_processes();
  storage::Disk& disk = storage::os_disk();
  std::string host = wire::this_host();
  // Writes the student's files into attempts/t<token>/ and returns their records under the final
  // names. Throws DamagedArtifact, storage::Error.
  std::function<std::vector<storage::FileRecord>(const State& state, std::uint64_t token)> assemble;
  std::string public_key{};  // of the mailbox's connections; empty: they are not encrypted
  // What there is to say about who may connect, asked once a turn. Empty: everybody may.
  std::function<AllowedKeysNews()> allowed_keys_news{};
};

}  // namespace hedgerow::coordinator
