// Bytes as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace hedgerow::coordinator {

[[nodiscard]] std::string bytes_text(std::uint64_t bytes);  // "812 B", "33.6 MB", "9.2 TB"

}  // namespace hedgerow::coordinator
