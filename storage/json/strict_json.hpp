// JSON from elsewhere as a value, with what nlohmann's library lets pass refused: duplicate keys
// (it keeps the last silently), deep nesting (it writes and compares by recursion), and numbers
// that are cast to a type that cannot hold them.
#pragma once

#include <concepts>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "storage/base/error.hpp"

namespace hedgerow::storage {

// `name` is the file, for messages. Throws kCorrupt naming the file and the key or the byte.
[[nodiscard]] nlohmann::json parse_strict_json(const std::string& text,
                                               const std::string& name,
                                               std::size_t max_depth = 32);

// Whether brackets outside strings are ever open more than `max_depth` deep. A look at the text,
// without parsing it.
[[nodiscard]] bool is_nested_deeper(std::string_view text, std::size_t max_depth);

// object[key] as a whole number that T can hold. Throws kCorrupt naming the key where get<T>()
// would cast 1e300, which is undefined; nlohmann's exception if there is no such key.
template <std::integral T>
[[nodiscard]] T integer_of(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = object.at(key);
  const bool fits = value.is_number_unsigned()  ? std::in_range<T>(value.get<std::uint64_t>())
                    : value.is_number_integer() ? std::in_range<T>(value.get<std::int64_t>())
                                                : false;
  if (!fits) {
    throw Error(ErrorKind::kCorrupt,
                std::string("'") + key + "' is " + value.dump().substr(0, 40) +
                    ", expected a whole number within its range");
  }
  return value.get<T>();
}

}  // namespace hedgerow::storage
