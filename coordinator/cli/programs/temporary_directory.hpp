// A directory of a command's own under TMPDIR, which goes with the object.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "hedgerow-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw storage::Error(
          storage::ErrorKind::kUnavailable,
          name + " cannot be made: " + std::generic_category().message(errno) + "; set TMPDIR");
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace hedgerow::coordinator::cli
