// A file that is removed at the end of a scope, however the scope ends, unless keep() was called: a
// temporary file that was not published, a journal segment whose term did not begin. It does not
// open the file, and a file that is not there is no error: the one that ended the scope is the one
// to report.
#pragma once

#include <filesystem>
#include <system_error>
#include <utility>

namespace hedgerow::storage {

class ScopedFile {
 public:
  explicit ScopedFile(std::filesystem::path path) : path_(std::move(path)) {}
  ~ScopedFile() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }
  ScopedFile(const ScopedFile&) = delete;
  ScopedFile& operator=(const ScopedFile&) = delete;

  void keep() { path_.clear(); }

 private:
  std::filesystem::path path_;
};

}  // namespace hedgerow::storage
