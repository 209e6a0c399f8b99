// A published file as the journal records it.
#pragma once

#include <cstdint>
#include <string>

#include "storage/files/hash.hpp"

namespace hedgerow::storage {

// Readers open only what a record names.
struct FileRecord {
  std::string name;  // relative to the run directory
  std::uint64_t size = 0;
  Hash128 root_hash;
  bool operator==(const FileRecord&) const = default;
};

}  // namespace hedgerow::storage
