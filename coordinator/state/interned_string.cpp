#include "coordinator/state/interned_string.hpp"

#include <mutex>
#include <unordered_set>

namespace hedgerow::coordinator {
namespace {

struct Names {
  std::mutex mutex;
  std::unordered_set<std::string> texts;  // whose elements stay where they are
};

}  // namespace

InternedString::InternedString(std::string_view text) {
  static const std::string nothing;
  text_ = &nothing;
  if (text.empty()) return;
  static Names& names = *new Names;  // outlives whatever else ends with the process
  const std::lock_guard lock(names.mutex);
  text_ = &*names.texts.emplace(text).first;
}

}  // namespace hedgerow::coordinator
