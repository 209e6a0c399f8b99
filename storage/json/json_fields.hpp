// Strict reading of JSON that came from elsewhere: a missing field, another type or a number that
// does not fit is a kCorrupt error that names the field. nlohmann's own get<T>() converts between
// numbers silently. Shared by messages, events and the coordinator's files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/files/file_record.hpp"

namespace hedgerow::storage {

// An object, nested at most 16 deep (dump() recurses). Throws kCorrupt.
[[nodiscard]] nlohmann::json parse_document(std::string_view text);

[[nodiscard]] const nlohmann::json& field(const nlohmann::json& object, const char* key);
[[nodiscard]] const nlohmann::json& object_field(const nlohmann::json& object, const char* key);
[[nodiscard]] std::string string_field(const nlohmann::json& object, const char* key);
[[nodiscard]] std::uint64_t uint_field(const nlohmann::json& object, const char* key);
[[nodiscard]] std::int64_t int64_field(const nlohmann::json& object, const char* key);
[[nodiscard]] int int_field(const nlohmann::json& object, const char* key);
[[nodiscard]] bool bool_field(const nlohmann::json& object, const char* key);
[[nodiscard]] double double_field(const nlohmann::json& object,
                                  const char* key);  // null, as NaN is written: NaN
[[nodiscard]] std::vector<double> doubles_field(const nlohmann::json& object, const char* key);
[[nodiscard]] std::vector<std::string> strings_field(const nlohmann::json& object, const char* key);

[[nodiscard]] nlohmann::json record_to_json(const FileRecord& record);
[[nodiscard]] FileRecord record_from_json(const nlohmann::json& object);
[[nodiscard]] nlohmann::json records_to_json(const std::vector<FileRecord>& records);
[[nodiscard]] std::vector<FileRecord> records_from_json(const nlohmann::json& object,
                                                        const char* key);

[[noreturn]] void throw_ill_typed(const char* key,
                                  const char* expected,
                                  const nlohmann::json& found);

}  // namespace hedgerow::storage
