// The one exception of hedgerow, classified by what the catcher should do about it, never by which
// call failed. The coordinator's retry policy is a switch over ErrorKind and nothing else; the
// process's exit code is exit_code(kind). Messages say what, which object, expected against found,
// and what to do.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace hedgerow::storage {

enum class ErrorKind {
  kUsage,        // the user mends something: recipe, path, flag, or a file that they name
  kNotFound,     // a named object is absent
  kCorrupt,      // quarantine and recompute
  kUnavailable,  // retry, maybe elsewhere
  kExhausted,    // memory or disk: shrink or stop
  kFenced,       // the lease is lost: drop the work silently
  kInternal,     // a bug of ours
};

// Exit codes of both binaries. Scripts, Slurm and Kubernetes rules depend on them: do not change
// the values.
enum class ExitCode : int {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kPartial = 3,      // some blocks are quarantined, the rest is done
  kInterrupted = 4,  // resumable: the same command goes on
  kEnvironment = 5,  // the machine, not the request: disk full, port taken, node lost
};

// Lower-case words ("usage", "not_found", ...), stable: they stand in the journal and on the wire.
[[nodiscard]] std::string_view to_string(ErrorKind kind);
[[nodiscard]] ErrorKind error_kind_from_string(std::string_view word);  // unknown word: kInternal

// kUsage -> 2; kUnavailable, kExhausted -> 5; everything else -> 1.
[[nodiscard]] ExitCode exit_code(ErrorKind kind);

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

// What people hand over (a model, a student, an adapter) is theirs to mend: what is damaged or
// absent there is kUsage.
template <typename Read>
auto read_given(const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt && error.kind() != ErrorKind::kNotFound) throw;
    throw Error(ErrorKind::kUsage, error.what());
  }
}

// What to do about a full disk. It ends the message of each system_error() of that kind. Code that
// adds to such a message moves it to the end again.
inline constexpr std::string_view kRoomAdvice =
    "; free space or raise the quota, then run the same command again";
[[nodiscard]] std::string without_room_advice(std::string message);

// Error of a failed system call: "<what> <object>: <strerror>", ENOSPC, EDQUOT and EFBIG ->
// kExhausted, ENOENT -> kNotFound; EACCES, EPERM, EROFS and a path that cannot be one (ENOTDIR,
// EISDIR, ELOOP, ENAMETOOLONG) -> kUsage with a hint; everything else -> kUnavailable.
[[nodiscard]] Error system_error(std::string_view what, std::string_view object, int error_number);

}  // namespace hedgerow::storage
