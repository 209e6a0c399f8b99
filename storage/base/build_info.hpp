// Which build this is: shown by --version, sent in the worker's hello, written into runs and
// artifacts. Byte-equality of results is promised within one build.
#pragma once

#include <string>

namespace hedgerow::storage {

[[nodiscard]] std::string version();  // "0.1.0"
[[nodiscard]] std::string
git_hash();  // 12 digits, "-dirty" behind them if files differ from the commit; "unknown"
[[nodiscard]] std::string build();  // "0.1.0+9f86d081884c"
[[nodiscard]] bool has_cuda();      // the worker built beside it computes on GPUs

}  // namespace hedgerow::storage
