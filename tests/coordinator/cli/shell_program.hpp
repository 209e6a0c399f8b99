// Programs of other people's names, written by a test, that only take notes.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "storage/files/file.hpp"

namespace hedgerow::coordinator::cli {

inline void write_program(const std::filesystem::path& path, const std::string& body) {
  std::ofstream(path) << "#!/bin/bash\n" << body << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

// The notes so far; empty if nobody took any.
inline std::string text_of(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? storage::read_text(path) : "";
}

}  // namespace hedgerow::coordinator::cli
