// Random digits of the kernel's, for secrets and for names that no other process draws. What a run
// computes never rests on them: that is keyed by the recipe's seed (philox.hpp).
#pragma once

#include <cstddef>
#include <string>

namespace hedgerow::storage {

// So many random bytes as lower-case hexadecimal digits, two a byte. Any thread. Throws what
// system_error() makes of a kernel that gives none.
[[nodiscard]] std::string random_hex(std::size_t bytes);

}  // namespace hedgerow::storage
