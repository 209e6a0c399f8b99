#include "coordinator/cli/export/partial_directory.hpp"

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;

fs::path without_slash(const fs::path& path) {
  const fs::path plain = fs::absolute(path).lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

}  // namespace

PartialDirectory::PartialDirectory(const fs::path& out) : out_(without_slash(out)), path_(out_) {
  path_ += ".partial";
  if (fs::exists(out_) && !(fs::is_directory(out_) && fs::is_empty(out_))) {
    throw storage::Error(storage::ErrorKind::kUsage,
                         out.string() + " is there and not empty; choose a new directory");
  }
  fs::remove_all(path_);
  fs::create_directories(path_);
}

PartialDirectory::~PartialDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void PartialDirectory::publish() {
  fs::remove(out_);  // an empty directory of the user's, at most
  storage::publish(path_, out_);
}

}  // namespace hedgerow::coordinator::cli
