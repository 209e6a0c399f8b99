#include "storage/files/run_layout.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <string_view>

#include "storage/base/error.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;

// More digits would not be a token that we gave out, and could overflow.
constexpr std::size_t kMaxTokenDigits = 18;

// As many as never overflow; of Hash128::hex().
constexpr std::size_t kMaxStepDigits = 18, kHashDigits = 32;
constexpr const char* kTokens = "tokens";
constexpr std::string_view kCheckpointPrefix = "checkpoint.s";
constexpr std::string_view kCheckpointSuffix = ".safetensors";

std::string padded(std::uint64_t number, int width) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%0*llu", width, static_cast<unsigned long long>(number));
  return text.data();
}

std::string padded(int number, int width) {
  return padded(static_cast<std::uint64_t>(number), width);
}

std::string token_part(FencingToken token) { return "t" + std::to_string(token); }

bool is_control(char c) { return (c >= 0 && c < ' ') || c == 0x7f; }

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_lower_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); }

// The token of "t<digits>" at `begin`, 0 unless a digit run of sane length ends at '.', '/' or the
// end.
FencingToken token_at(const std::string& name, std::size_t begin) {
  std::size_t end = begin + 1;
  FencingToken token = 0;
  while (end < name.size() && is_digit(name[end]) && end - begin <= kMaxTokenDigits) {
    token = token * 10 + static_cast<FencingToken>(name[end++] - '0');
  }
  const bool ends_well = end == name.size() || name[end] == '.' || name[end] == '/';
  return ends_well ? token : 0;
}

// A name may come from anywhere: what is shown of it is short and printable.
[[noreturn]] void refuse_path(const std::string& name,
                              const fs::path& root,
                              const std::string& why) {
  constexpr std::size_t kShown = 200;
  std::string shown = name.substr(0, kShown);
  std::ranges::replace_if(shown, is_control, '?');
  throw Error(ErrorKind::kUsage,
              "file name '" + shown + "' " + why + "; names must stay inside the run directory " +
                  root.string());
}

// A link to what does not exist yet. weakly_canonical() takes it for a free name, and a writer
// would create the file that it points to.
void refuse_dangling_links(const fs::path& name, const std::string& shown, const fs::path& root) {
  fs::path path = root;
  for (const fs::path& part : name) {
    path /= part;
    std::error_code error;
    if (fs::is_symlink(path, error) && !fs::exists(path, error))
      refuse_path(shown, root, "leads through a symbolic link to nowhere, " + path.string());
  }
}

fs::path real_path(const fs::path& path, const std::string& name, const fs::path& root) {
  std::error_code error;
  fs::path real = fs::weakly_canonical(path, error);
  // Too long, a circle of links, a directory that may not be looked into.
  if (error) refuse_path(name, root, "leads nowhere (" + error.message() + ")");
  return real;
}

}  // namespace

const char* to_string(DataStage stage) {
  switch (stage) {
    case DataStage::kTransfer:
      return "transfer";
    case DataStage::kFinetune:
      return "finetune";
    case DataStage::kEvaluate:
      return "evaluate";
  }
  return "transfer";
}

fs::path RunLayout::journal_segment(std::uint64_t term) const {
  return journal_directory() / (padded(term, 6) + ".jsonl");
}

fs::path RunLayout::history_segment(std::uint64_t term, int part) const {
  return history_directory() /
         (padded(term, 6) + (part == 1 ? "" : "_" + std::to_string(part)) + ".history");
}

fs::path RunLayout::snapshot(std::uint64_t term) const {
  return journal_directory() / (padded(term, 6) + ".snapshot.json");
}

std::string RunLayout::tokens(const TokensOf& of) {
  return std::string(kTokens) + "/" + to_string(of.stage) + (of.text.empty() ? "" : "-" + of.text) +
         ".h5";
}

std::vector<std::string> RunLayout::existing_tokens() const {
  std::vector<std::string> names;
  for (const DataStage stage : {DataStage::kTransfer, DataStage::kFinetune, DataStage::kEvaluate}) {
    if (fs::exists(root_ / tokens(stage))) names.push_back(tokens(stage));
  }
  const auto num_sections = static_cast<std::ptrdiff_t>(names.size());
  const std::string prefix = std::string(to_string(DataStage::kEvaluate)) + "-";
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(root_ / kTokens, none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(".h5"))
      names.push_back(std::string(kTokens) + "/" + name);
  }
  std::sort(names.begin() + num_sections, names.end());
  return names;
}

std::string RunLayout::hidden_shard(int boundary, int shard, FencingToken token) {
  return "hidden/b" + padded(boundary, 4) + "/s" + padded(shard, 5) + "." + token_part(token) +
         ".h5";
}

std::string RunLayout::logits(int piece, FencingToken token) {
  return "logits/p" + padded(piece, 5) + "." + token_part(token) + ".h5";
}

std::vector<std::string> RunLayout::existing_logits() const {
  std::map<std::string, std::pair<FencingToken, std::string>> last;  // by piece
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(root_ / "logits", none)) {
    const std::string name = "logits/" + entry.path().filename().string();
    const FencingToken token = token_in_name(name);
    if (token == 0 || !name.ends_with(".h5")) continue;
    auto& found = last[name.substr(0, name.find('.'))];
    if (token > found.first) found = {token, name};
  }
  std::vector<std::string> names;
  for (const auto& [piece, found] : last) names.push_back(found.second);
  return names;
}

std::string RunLayout::block_artifact(int block, FencingToken token) {
  return "blocks/b" + padded(block, 4) + "/artifact." + token_part(token) + ".safetensors";
}

std::string RunLayout::attempt_directory(FencingToken token) {
  return "attempts/" + token_part(token);
}

std::string RunLayout::checkpoint(FencingToken token, std::int64_t step, const Hash128& hash) {
  return attempt_directory(token) + "/" + std::string(kCheckpointPrefix) + std::to_string(step) +
         "." + hash.hex() + std::string(kCheckpointSuffix);
}

std::string RunLayout::checkpoint_part(FencingToken token,
                                       std::int64_t step,
                                       int stage,
                                       const Hash128& hash) {
  return attempt_directory(token) + "/part.s" + std::to_string(step) + ".p" +
         std::to_string(stage) + "." + hash.hex() + std::string(kCheckpointSuffix);
}

std::optional<RunLayout::CheckpointName> RunLayout::parse_checkpoint(const std::string& base_name) {
  std::string_view rest = base_name;
  if (!rest.starts_with(kCheckpointPrefix)) return std::nullopt;
  rest.remove_prefix(kCheckpointPrefix.size());
  if (!rest.ends_with(kCheckpointSuffix)) return std::nullopt;
  rest.remove_suffix(kCheckpointSuffix.size());
  const std::size_t dot = rest.find('.');
  if (dot == 0 || dot == std::string_view::npos || dot > kMaxStepDigits) return std::nullopt;
  const std::string step(rest.substr(0, dot)), hash(rest.substr(dot + 1));
  const bool is_hash = hash.size() == kHashDigits && std::ranges::all_of(hash, is_lower_hex);
  if (!is_hash || !std::ranges::all_of(step, is_digit)) return std::nullopt;
  return CheckpointName{std::stoll(step), Hash128::from_hex(hash)};
}

std::string RunLayout::attempt_file(FencingToken token, const std::string& name) {
  const std::string folder = "/" + token_part(token) + "/";
  const std::size_t at = name.find(folder);
  const std::string own =
      at == std::string::npos ? name.substr(name.rfind('/') + 1) : name.substr(at + folder.size());
  return attempt_directory(token) + "/" + own;
}

std::string RunLayout::student_directory(FencingToken token) {
  return "student/" + token_part(token);
}

std::string RunLayout::adapter_directory(FencingToken token) {
  return "adapter/" + token_part(token);
}

std::string RunLayout::weight_hash(int layer_idx) {
  return layer_idx < 0 ? "weights/outer.hash" : "weights/l" + padded(layer_idx, 4) + ".hash";
}

std::string RunLayout::evaluation(const std::string& subject, FencingToken token) {
  return "evaluate/" + subject + "." + token_part(token) + ".json";
}

std::string RunLayout::evaluation_piece(const std::string& subject, int piece, FencingToken token) {
  return "evaluate/" + subject + ".p" + padded(piece, 2) + "." + token_part(token) + ".json";
}

fs::path RunLayout::resolve(const std::string& relative) const {
  const fs::path name(relative);
  if (relative.empty()) refuse_path(relative, root_, "is empty");
  if (name.is_absolute()) refuse_path(relative, root_, "is absolute");
  // A zero would end the name for the system, but not for us.
  if (std::ranges::any_of(relative, is_control))
    refuse_path(relative, root_, "has control characters");
  for (const fs::path& part : name) {
    if (part == "..") refuse_path(relative, root_, "contains '..'");
    if (part.empty() || part == ".")
      refuse_path(relative, root_, "is not written in its plain form");
  }
  refuse_dangling_links(name, relative, root_);
  const fs::path real_root = real_path(root_, relative, root_);
  const fs::path real = real_path(root_ / name, relative, root_);
  const auto [rest, ignored] =
      std::mismatch(real_root.begin(), real_root.end(), real.begin(), real.end());
  if (rest != real_root.end()) {
    refuse_path(relative, root_, "leads through a symbolic link to " + real.string());
  }
  return root_ / name;
}

bool RunLayout::is_own_directory(const std::string& relative) {
  for (const std::string_view prefix : {"hidden/b", "blocks/b"}) {
    if (!relative.starts_with(prefix) || relative.size() == prefix.size()) continue;
    return std::all_of(
        relative.begin() + static_cast<std::ptrdiff_t>(prefix.size()), relative.end(), is_digit);
  }
  return false;
}

FencingToken RunLayout::token_in_name(const std::string& relative) {
  FencingToken token = 0;
  for (std::size_t i = 0; i + 2 < relative.size(); ++i) {
    const bool starts = relative[i] == '/' || relative[i] == '.';
    if (starts && relative[i + 1] == 't') token = std::max(token, token_at(relative, i + 1));
  }
  return token;
}

}  // namespace hedgerow::storage
