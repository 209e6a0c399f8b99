// In place of storage/base/build_info.cpp: hedgerow-worker's own objects linked with this are a
// worker of another version, as it would come from a node that was not upgraded.
#include "storage/base/build_info.hpp"

namespace hedgerow::storage {

std::string version() { return "0.0.1"; }
std::string git_hash() { return "000000000000"; }
std::string build() { return version() + "+" + git_hash(); }
bool has_cuda() { return false; }

}  // namespace hedgerow::storage
