// The keys of a run, made by `hedgerow keygen`: keys/ in the run directory, which every node sees
// and only one user may write. Where it is, both sides of the wire use CURVE, and the coordinator
// lets in the public keys of keys/allowed alone. Formats: coordinator/README.md "Keys".
// Invariant: a secret that others may read, and anything here that others may write, be it as its
// owner (root apart; root itself reads everybody's), is refused and never used. No message and no
// log has a secret in it.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "storage/files/run_layout.hpp"

namespace hedgerow::wire {

inline constexpr std::size_t kKeyCharacters = 40;  // Z85 of 32 bytes
inline constexpr const char* kDefaultWorkerKey = "worker";

// Names in keys/. A pair is called "coordinator", "worker", or as `keygen --worker NAME` said: up
// to 64 letters, digits, '-' and '_', and no name that another file has.
[[nodiscard]] bool is_worker_pair(std::string_view pair);
[[nodiscard]] std::filesystem::path secret_key_file(const storage::RunLayout& layout,
                                                    const std::string& pair);
[[nodiscard]] std::filesystem::path public_key_file(const storage::RunLayout& layout,
                                                    const std::string& pair);
[[nodiscard]] std::filesystem::path allowed_keys_file(const storage::RunLayout& layout);
[[nodiscard]] std::filesystem::path http_secret_file(const storage::RunLayout& layout);

[[nodiscard]] bool is_key(std::string_view text);  // 40 characters of Z85
// The public key (Z85) of a secret one. Throws kUsage if that is none.
[[nodiscard]] std::string public_key_of(const std::string& secret_key);
[[nodiscard]] bool has_keys(const storage::RunLayout& layout);

// The one line of a secret file. Throws kUsage with the command that mends it if the file is
// absent, is no plain file, is larger than 4 KiB, belongs to another user, or may be read or
// written by others than its owner.
[[nodiscard]] std::string read_secret_file(const std::filesystem::path& path);

// The key of a line of keys/allowed: its first word, if that is a key, also one that begins with
// '#', which Z85 has. nullopt: a comment or an empty line. Throws kUsage for anything else, naming
// `place`.
[[nodiscard]] std::optional<std::string> allowed_key(std::string_view line,
                                                     const std::string& place);
// All of them. Throws kUsage (absent, over 1 MiB, another user's, writable by others, a line that
// is no key).
[[nodiscard]] std::set<std::string> read_allowed_keys(const storage::RunLayout& layout);

struct CoordinatorKeys {
  std::string secret_key;
  std::set<std::string> allowed;
};
struct WorkerKeys {
  std::string server_key;  // the coordinator's public one
  std::string secret_key;
  bool operator==(const WorkerKeys&) const = default;
};

// nullopt: the run has no keys. Throws kUsage with what to do if it has only some of them, or as
// above.
[[nodiscard]] std::optional<CoordinatorKeys> read_coordinator_keys(
    const storage::RunLayout& layout);
[[nodiscard]] std::optional<WorkerKeys> read_worker_keys(
    const storage::RunLayout& layout, const std::string& pair = kDefaultWorkerKey);

}  // namespace hedgerow::wire
