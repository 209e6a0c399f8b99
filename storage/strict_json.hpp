// JSON from elsewhere (config.json, index.json) as a value, with what nlohmann's parser lets pass
// refused: duplicate keys (it keeps the last silently) and deep nesting.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

namespace hedgerow::storage {

// `name` is the file, for messages. Throws kCorrupt naming the file and the key or the byte.
[[nodiscard]] nlohmann::json parse_strict_json(const std::string& text,
                                               const std::string& name,
                                               std::size_t max_depth = 32);

}  // namespace hedgerow::storage
