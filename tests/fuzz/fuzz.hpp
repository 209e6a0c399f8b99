// What the fuzz targets share. A target is libFuzzer's LLVMFuzzerTestOneInput over one parser of
// bytes from elsewhere: it may refuse by throwing storage::Error of the kinds that its header
// names, and nothing else; what it accepts must keep the promises that expect() states. Anything
// else is a crash, with the input that led to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace hedgerow::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A promise of the parser's. Stays in builds with NDEBUG.
inline void expect(bool condition, const char* promise) {
  if (condition) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

}  // namespace hedgerow::fuzz
