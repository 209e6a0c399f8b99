#include "tests/support/foreign_device.hpp"
#include "tests/support/other_device.hpp"

namespace hedgerow::tests {

std::string why_no_other_device() { return ""; }
at::Device other_device() { return foreign_device(); }

}  // namespace hedgerow::tests
