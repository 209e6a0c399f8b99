#include "coordinator/serve/run_inputs.hpp"

#include <algorithm>

#include "storage/files/hash.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;
using storage::Error;
using storage::ErrorKind;
using storage::FileRecord;

constexpr const char* kWhatToDo = "; put the old one back, or start a new run directory";

// Advice: tokens that were damaged, and not changed, come again the same.
std::string what_to_do_about_tokens(const storage::RunLayout& layout) {
  const std::string run = " --run " + layout.root().string() + "'";
  return "; 'hedgerow check --repair" + run + " takes it away and 'hedgerow run" + run +
         " makes it again, if its text is still the same; else put the old one back, or start a "
         "new run directory";
}

const FileRecord* find(const std::vector<FileRecord>& files, const std::string& name) {
  const auto found = std::find_if(
      files.begin(), files.end(), [&](const FileRecord& file) { return file.name == name; });
  return found == files.end() ? nullptr : &*found;
}

std::string text(const FileRecord& file) {
  return std::to_string(file.size) + " bytes, hash " + file.root_hash.hex();
}

}  // namespace

RunInputs inputs_of(const storage::RunLayout& layout, const storage::ModelDirectory& model) {
  RunInputs inputs{model.fingerprint(), {}};
  for (const std::string& name : layout.existing_tokens()) {
    const fs::path path = layout.resolve(name);
    inputs.tokens.push_back({name, fs::file_size(path), storage::hash_file(path)});
  }
  return inputs;
}

void check_same_inputs(const RunInputs& recorded,
                       const RunInputs& now,
                       const storage::RunLayout& layout,
                       const fs::path& model) {
  if (recorded.teacher != now.teacher) {
    throw Error(ErrorKind::kUsage,
                "the model " + model.string() + " changed since the run began: fingerprint " +
                    recorded.teacher + " then, " + now.teacher + " now" + kWhatToDo);
  }
  for (const FileRecord& file : recorded.tokens) {
    const FileRecord* found = find(now.tokens, file.name);
    if (found != nullptr && *found == file) continue;
    const std::string there = found == nullptr ? "missing" : text(*found);
    throw Error(ErrorKind::kUsage,
                layout.resolve(file.name).string() +
                    " is not the file that the run began with: " + text(file) + " then, " + there +
                    " now" + (found == nullptr ? kWhatToDo : what_to_do_about_tokens(layout)));
  }
  for (const FileRecord& file : now.tokens) {
    if (find(recorded.tokens, file.name) != nullptr) continue;
    throw Error(
        ErrorKind::kUsage,
        layout.resolve(file.name).string() +
            " was not there when the run began; take it away, or start a new run directory");
  }
}

}  // namespace hedgerow::coordinator
