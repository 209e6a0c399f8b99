#include "storage/base/openmp_spin.hpp"

#include <cstdlib>
#include <initializer_list>

namespace hedgerow::storage {

bool limit_openmp_spinning() {
  for (const char* name : {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}) {
    if (std::getenv(name) != nullptr) return false;
  }
  return ::setenv("GOMP_SPINCOUNT", kOpenMpSpinCount, /*overwrite=*/0) == 0;
}

}  // namespace hedgerow::storage
