// A text that is made piece by piece and never held whole, because it may take as much memory as
// all that it tells of.
#pragma once

#include <functional>
#include <string_view>

namespace hedgerow::storage {

using TextSink = std::function<void(std::string_view)>;
// Hands the text to the sink in order. Whatever it throws goes through its caller.
using TextWriter = std::function<void(const TextSink&)>;

}  // namespace hedgerow::storage
