#include "coordinator/wire/run_keys.hpp"

#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <sstream>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::wire {
namespace {

namespace fs = std::filesystem;
using storage::Error;
using storage::ErrorKind;
using storage::RunLayout;

constexpr std::uint64_t kMaxSecretBytes = 4096;
constexpr std::uint64_t kMaxAllowedBytes = 1U << 20;
constexpr std::size_t kLongestPairName = 64;
constexpr unsigned kOthersMayRead = 077;  // or write
constexpr unsigned kOthersMayWrite = 022;
constexpr std::string_view kZ85 =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

[[noreturn]] void refuse(const fs::path& path, const std::string& what) {
  throw Error(ErrorKind::kUsage, path.string() + ": " + what);
}

std::string octal(unsigned mode) {
  std::ostringstream text;
  text << std::oct << mode;
  return text.str();
}

void require_mode(const fs::path& path, mode_t mode, unsigned forbidden, const char* mended) {
  const unsigned bits = mode & 0777U;
  if ((bits & forbidden) == 0) return;
  refuse(path,
         std::string("others than its owner may ") +
             ((bits & kOthersMayWrite) != 0 ? "write" : "read") + " it (mode " + octal(bits) +
             "); 'chmod " + mended + " " + path.string() + "', and 'hedgerow keygen --rotate' if " +
             "somebody may have");
}

// The owner of a file can write it, and give it any mode, whatever its mode is now.
void require_owner(const fs::path& path, uid_t owner) {
  const uid_t reader = ::geteuid();
  if (owner == reader || owner == 0 || reader == 0) return;
  refuse(path,
         "it belongs to user id " + std::to_string(owner) + ", expected " + std::to_string(reader) +
             " (this user) or 0 (root), because its owner may change it; run as the user who made "
             "the keys, or 'chown " +
             std::to_string(reader) + " " + path.string() + "' as root if its content is right");
}

// The text of a plain file in keys/ that only this user or root can have written.
std::string read_guarded(const fs::path& path,
                         unsigned forbidden,
                         const char* mended,
                         std::uint64_t max_bytes) {
  struct stat status {};
  // Looked at first, because opening a pipe would wait for a writer.
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == EACCES)
      refuse(path, "this user may not read it; run as the user who made the keys");
    const std::string pair = path.stem().string();
    const bool has_a_name = is_worker_pair(pair) && pair != kDefaultWorkerKey;
    refuse(path,
           "no such file; 'hedgerow keygen --run " + path.parent_path().parent_path().string() +
               (has_a_name ? " --worker " + pair : "") + "' makes what is missing");
  }
  if (!S_ISREG(status.st_mode)) refuse(path, "is not a plain file; put the key there again");
  struct stat directory {};
  if (::stat(path.parent_path().c_str(), &directory) == 0) {
    require_owner(path.parent_path(), directory.st_uid);
    require_mode(path.parent_path(), directory.st_mode, kOthersMayWrite, "700");
  }
  // Checked before it is opened, because another user's secret cannot be opened; then the opened
  // file.
  require_owner(path, status.st_uid);
  const storage::File file = storage::File::open_read(path);
  if (::fstat(file.descriptor(), &status) != 0)
    throw storage::system_error("stat", path.string(), errno);
  require_owner(path, status.st_uid);
  require_mode(path, status.st_mode, forbidden, mended);
  const std::uint64_t size = file.size();
  if (size > max_bytes) {
    refuse(path,
           std::to_string(size) + " bytes, expected at most " + std::to_string(max_bytes) +
               "; this is no key file");
  }
  std::string text(size, '\0');
  file.read_exact(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

std::string first_line(const std::string& text) {
  const std::size_t end = text.find_first_of("\r\n");
  return text.substr(0, end);
}

std::string require_key(const fs::path& path, std::string text) {
  if (!is_key(text)) {
    // Its content is not shown: it may be a secret with one character too many.
    refuse(path,
           "it does not hold a key (40 characters of Z85); copy it anew, or make another with "
           "'hedgerow keygen --rotate'");
  }
  return text;
}

}  // namespace

fs::path secret_key_file(const RunLayout& layout, const std::string& pair) {
  return layout.keys_directory() / (pair + ".secret");
}

fs::path public_key_file(const RunLayout& layout, const std::string& pair) {
  return layout.keys_directory() / (pair + ".public");
}

fs::path allowed_keys_file(const RunLayout& layout) { return layout.keys_directory() / "allowed"; }

fs::path http_secret_file(const RunLayout& layout) {
  return layout.keys_directory() / "http.secret";
}

bool is_worker_pair(std::string_view pair) {
  const bool is_plain = std::ranges::all_of(
      pair, [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; });
  return is_plain && !pair.empty() && pair.size() <= kLongestPairName && pair != "coordinator" &&
         pair != "http" && pair != "allowed";
}

bool is_key(std::string_view text) {
  return text.size() == kKeyCharacters && text.find_first_not_of(kZ85) == std::string_view::npos;
}

std::string public_key_of(const std::string& secret_key) {
  std::array<char, kKeyCharacters + 1> open{};
  if (!is_key(secret_key) || zmq_curve_public(open.data(), secret_key.c_str()) != 0)
    throw Error(ErrorKind::kUsage, "a secret key is not 40 characters of Z85; make another one");
  return open.data();
}

bool has_keys(const RunLayout& layout) {
  // What cannot be looked at may be keys: who took that for none would talk in the open.
  std::error_code unreadable;
  const fs::file_status status = fs::status(layout.keys_directory(), unreadable);
  if (status.type() == fs::file_type::not_found) return false;
  if (unreadable) refuse(layout.keys_directory(), unreadable.message());
  return true;
}

std::string read_secret_file(const fs::path& path) {
  return first_line(read_guarded(path, kOthersMayRead, "600", kMaxSecretBytes));
}

std::optional<std::string> allowed_key(std::string_view line, const std::string& place) {
  constexpr std::string_view kSpaces = " \t\r";
  const std::size_t begin = line.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return std::nullopt;
  const std::size_t end = std::min(line.find_first_of(kSpaces, begin), line.size());
  const std::string_view word = line.substr(begin, end - begin);
  if (is_key(word)) return std::string(word);
  if (word.front() == '#') return std::nullopt;
  throw Error(ErrorKind::kUsage,
              place +
                  ": its first word is no public key (40 characters of Z85); a comment begins "
                  "with '#' and a space");
}

std::set<std::string> read_allowed_keys(const RunLayout& layout) {
  const fs::path path = allowed_keys_file(layout);
  std::istringstream text(read_guarded(path, kOthersMayWrite, "644", kMaxAllowedBytes));
  std::set<std::string> keys;
  int number = 0;
  for (std::string line; std::getline(text, line);) {
    const auto key = allowed_key(line, path.string() + ":" + std::to_string(++number));
    if (key) keys.insert(*key);
  }
  return keys;
}

std::optional<CoordinatorKeys> read_coordinator_keys(const RunLayout& layout) {
  if (!has_keys(layout)) return std::nullopt;
  const fs::path secret = secret_key_file(layout, "coordinator");
  return CoordinatorKeys{.secret_key = require_key(secret, read_secret_file(secret)),
                         .allowed = read_allowed_keys(layout)};
}

std::optional<WorkerKeys> read_worker_keys(const RunLayout& layout, const std::string& pair) {
  if (!has_keys(layout)) return std::nullopt;
  if (!is_worker_pair(pair))
    throw Error(ErrorKind::kUsage, "'" + pair + "' is no name of a worker's key pair");
  const fs::path secret = secret_key_file(layout, pair);
  const fs::path server = public_key_file(layout, "coordinator");
  return WorkerKeys{
      .server_key = require_key(
          server, first_line(read_guarded(server, kOthersMayWrite, "644", kMaxSecretBytes))),
      .secret_key = require_key(secret, read_secret_file(secret))};
}

}  // namespace hedgerow::wire
