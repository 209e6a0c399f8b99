#include "coordinator/net/key_maker.hpp"

#include <sys/stat.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <set>
#include <sstream>

#include "coordinator/wire/run_keys.hpp"
#include "storage/base/error.hpp"
#include "storage/base/random.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;
using storage::Error;
using storage::ErrorKind;
using storage::RunLayout;

constexpr int kSecretMode = 0600;
constexpr int kPublicMode = 0644;
constexpr std::size_t kSecretBytes = 32;
constexpr const char* kListHead =
    "# The workers that may connect to this run: a public key a line, and behind it its name.\n"
    "# The coordinator reads this when it starts and when it gets SIGHUP.\n";

void check_name(const std::string& name) {
  if (wire::is_worker_pair(name)) return;
  throw Error(ErrorKind::kUsage,
              "--worker '" + name +
                  "': expected up to 64 letters, digits, '-' and '_', and neither coordinator, "
                  "http nor allowed");
}

std::string new_secret_key() {
  std::array<char, wire::kKeyCharacters + 1> open{}, secret{};
  if (zmq_curve_keypair(open.data(), secret.data()) != 0) {
    throw Error(ErrorKind::kUnavailable,
                "this libzmq cannot make CURVE keys; install one that was built with libsodium");
  }
  return secret.data();
}

void make_folder(const RunLayout& layout) {
  std::error_code error;
  fs::create_directories(layout.root(), error);
  if (error) throw storage::system_error("create directory", layout.root().string(), error.value());
  const fs::path folder = layout.keys_directory();
  // 0700 from the first moment on, whatever the umask.
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    throw storage::system_error("create directory", folder.string(), errno);
  storage::sync_directory(layout.root());
}

class Maker {
 public:
  Maker(const RunLayout& layout, bool rotate) : layout_(layout), rotate_(rotate) {}

  // The pair's public key, which its secret one alone decides.
  std::string pair(const std::string& name) {
    const fs::path secret = wire::secret_key_file(layout_, name);
    if (rotate_ && fs::exists(secret))
      retired_.insert(wire::public_key_of(wire::read_secret_file(secret)));
    if (rotate_ || !fs::exists(secret)) write(secret, new_secret_key(), kSecretMode);
    const std::string open = wire::public_key_of(wire::read_secret_file(secret));
    const fs::path path = wire::public_key_file(layout_, name);
    if (!fs::exists(path) || storage::read_text(path, kMaxBytes) != open + "\n")
      write(path, open, kPublicMode);
    report_.public_keys[name] = open;
    return open;
  }

  void http_secret() {
    const fs::path path = wire::http_secret_file(layout_);
    if (rotate_ || !fs::exists(path)) write(path, storage::random_hex(kSecretBytes), kSecretMode);
    static_cast<void>(wire::read_secret_file(path));  // says so if others may read it
  }

  // One line a pair: older lines of its name or of a key that was replaced go, lines about others
  // stay byte for byte.
  void list(const std::map<std::string, std::string>& workers) {
    const fs::path path = wire::allowed_keys_file(layout_);
    std::string before;
    if (fs::exists(path)) {
      static_cast<void>(wire::read_allowed_keys(layout_));  // says so if it is no list
      before = storage::read_text(path, kMaxBytes);
    }
    std::string after = before.empty() ? kListHead : kept_lines(before, workers);
    for (const auto& [name, key] : workers) {
      if (!names(after, name, key)) after += key + " " + name + "\n";
    }
    if (after != before) write_text(path, after, kPublicMode);
  }

  KeyReport report() && { return std::move(report_); }

 private:
  static constexpr std::uint64_t kMaxBytes = 1U << 20;

  struct Line {
    std::string text, name;
    std::optional<std::string> key;
  };

  static std::vector<Line> lines_of(const std::string& text) {
    std::vector<Line> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
      std::istringstream words(line);
      std::string key, name;
      words >> key >> name;
      lines.push_back({line, name, wire::allowed_key(line, "keys/allowed")});
    }
    return lines;
  }

  [[nodiscard]] std::string kept_lines(const std::string& text,
                                       const std::map<std::string, std::string>& workers) const {
    std::string kept;
    for (const Line& line : lines_of(text)) {
      const auto pair = workers.find(line.name);
      const bool is_old = line.key && pair != workers.end() && pair->second != *line.key;
      if (!is_old && !(line.key && retired_.contains(*line.key))) kept += line.text + "\n";
    }
    return kept;
  }

  static bool names(const std::string& text, const std::string& name, const std::string& key) {
    return std::ranges::any_of(
        lines_of(text), [&](const Line& line) { return line.key == key && line.name == name; });
  }

  void write(const fs::path& path, const std::string& line, int mode) {
    write_text(path, line + "\n", mode);
  }
  void write_text(const fs::path& path, const std::string& text, int mode) {
    storage::write_atomically(path, text, mode);
    report_.written.push_back(path.filename().string());
  }

  const RunLayout& layout_;
  bool rotate_;
  std::set<std::string> retired_;
  KeyReport report_;
};

}  // namespace

std::vector<std::string> worker_pairs(const RunLayout& layout) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(layout.keys_directory(), ignored)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() == ".secret" && wire::is_worker_pair(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

KeyReport make_keys(const RunLayout& layout, const KeyRequest& request) {
  for (const std::string& name : request.workers) check_name(name);
  make_folder(layout);
  Maker maker(layout, request.rotate);
  std::map<std::string, std::string> workers;
  if (request.of_coordinator) maker.pair("coordinator");
  for (const std::string& name : request.workers) workers[name] = maker.pair(name);
  maker.list(workers);
  if (request.of_coordinator) maker.http_secret();
  return std::move(maker).report();
}

}  // namespace hedgerow::coordinator
