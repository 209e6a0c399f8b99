// A directory that a command makes: it has another name until it is complete, and vanishes when the
// command fails, so that nothing half made is ever taken for whole or stands in the way of the next
// try. Used by export and import.
#pragma once

#include <filesystem>

namespace hedgerow::coordinator::cli {

class PartialDirectory {
 public:
  // Throws kUsage unless `out` is absent or empty; makes "<out>.partial" beside it, after removing
  // what a killed command left there.
  explicit PartialDirectory(const std::filesystem::path& out);
  ~PartialDirectory();
  PartialDirectory(const PartialDirectory&) = delete;
  PartialDirectory& operator=(const PartialDirectory&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  void publish();  // gives it its name; nothing may be written through path() after

 private:
  std::filesystem::path out_, path_;
};

}  // namespace hedgerow::coordinator::cli
