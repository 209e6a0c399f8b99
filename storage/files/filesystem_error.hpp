// What std::filesystem throws, as an error of ours. Called where processes and tasks end: the
// binaries' mains and the worker's task loop.
#pragma once

#include <filesystem>

#include "storage/base/error.hpp"

namespace hedgerow::storage {

// Classified as system_error() in error.hpp does; of two paths both are named, the one written to
// first.
[[nodiscard]] Error system_error(const std::filesystem::filesystem_error& error);

}  // namespace hedgerow::storage
