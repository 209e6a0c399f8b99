#include "storage/files/filesystem_error.hpp"

#include <string>

namespace hedgerow::storage {

Error system_error(const std::filesystem::filesystem_error& error) {
  const int number = error.code().value();
  if (error.path2().empty()) return system_error("access", error.path1().string(), number);
  return system_error("write", error.path2().string() + " from " + error.path1().string(), number);
}

}  // namespace hedgerow::storage
