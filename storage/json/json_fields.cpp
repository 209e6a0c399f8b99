#include "storage/json/json_fields.hpp"

#include <limits>

#include "storage/base/error.hpp"
#include "storage/json/strict_json.hpp"

namespace hedgerow::storage {
namespace {

using nlohmann::json;
constexpr std::size_t kMaxDepth = 16;

double to_double(const char* key, const json& value) {
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (!value.is_number()) throw_ill_typed(key, "a number", value);
  return value.get<double>();
}

const json& array_field(const json& object, const char* key) {
  const json& value = field(object, key);
  if (!value.is_array()) throw_ill_typed(key, "an array", value);
  return value;
}

}  // namespace

void throw_ill_typed(const char* key, const char* expected, const json& found) {
  throw Error(
      ErrorKind::kCorrupt,
      std::string("field '") + key + "' must be " + expected + ", found " + found.type_name());
}

json parse_document(std::string_view text) {
  // Before it is parsed: asked at each value, the parser takes a sixth longer.
  if (is_nested_deeper(text, kMaxDepth)) {
    throw Error(ErrorKind::kCorrupt,
                "JSON is nested deeper than " + std::to_string(kMaxDepth) + " levels");
  }
  json document;
  try {
    document = json::parse(text);
  } catch (const json::exception& error) {
    throw Error(ErrorKind::kCorrupt, std::string("not JSON: ") + error.what());
  }
  if (!document.is_object()) throw Error(ErrorKind::kCorrupt, "the JSON document is not an object");
  return document;
}

const json& field(const json& object, const char* key) {
  if (!object.is_object()) throw_ill_typed(key, "in an object", object);
  const auto found = object.find(key);
  if (found == object.end())
    throw Error(ErrorKind::kCorrupt, std::string("field '") + key + "' is missing");
  return *found;
}

const json& object_field(const json& object, const char* key) {
  const json& value = field(object, key);
  if (!value.is_object()) throw_ill_typed(key, "an object", value);
  return value;
}

std::string string_field(const json& object, const char* key) {
  const json& value = field(object, key);
  if (!value.is_string()) throw_ill_typed(key, "a string", value);
  return value.get<std::string>();
}

std::uint64_t uint_field(const json& object, const char* key) {
  const json& value = field(object, key);
  if (!value.is_number_unsigned()) {
    if (!value.is_number_integer() || value.get<std::int64_t>() < 0)
      throw_ill_typed(key, "a whole number >= 0", value);
  }
  return value.get<std::uint64_t>();
}

std::int64_t int64_field(const json& object, const char* key) {
  const json& value = field(object, key);
  if (!value.is_number_integer()) throw_ill_typed(key, "a whole number", value);
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() >
          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    throw_ill_typed(key, "a whole number that fits 63 bits", value);
  }
  return value.get<std::int64_t>();
}

int int_field(const json& object, const char* key) {
  const std::int64_t value = int64_field(object, key);
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max()) {
    throw_ill_typed(key, "a whole number that fits 32 bits", field(object, key));
  }
  return static_cast<int>(value);
}

bool bool_field(const json& object, const char* key) {
  const json& value = field(object, key);
  if (!value.is_boolean()) throw_ill_typed(key, "true or false", value);
  return value.get<bool>();
}

double double_field(const json& object, const char* key) {
  return to_double(key, field(object, key));
}

std::vector<double> doubles_field(const json& object, const char* key) {
  std::vector<double> values;
  for (const json& value : array_field(object, key)) values.push_back(to_double(key, value));
  return values;
}

std::vector<std::string> strings_field(const json& object, const char* key) {
  std::vector<std::string> values;
  for (const json& value : array_field(object, key)) {
    if (!value.is_string()) throw_ill_typed(key, "an array of strings", value);
    values.push_back(value.get<std::string>());
  }
  return values;
}

json record_to_json(const FileRecord& record) {
  json::object_t object;  // nlohmann's initializer list would make an array of every pair first
  object.emplace("name", record.name);
  object.emplace("size", record.size);
  object.emplace("hash", record.root_hash.hex());
  return object;
}

FileRecord record_from_json(const json& object) {
  return {string_field(object, "name"),
          uint_field(object, "size"),
          Hash128::from_hex(string_field(object, "hash"))};
}

json records_to_json(const std::vector<FileRecord>& records) {
  json out = json::array();
  for (const FileRecord& record : records) out.push_back(record_to_json(record));
  return out;
}

std::vector<FileRecord> records_from_json(const json& object, const char* key) {
  std::vector<FileRecord> records;
  for (const json& value : array_field(object, key)) records.push_back(record_from_json(value));
  return records;
}

}  // namespace hedgerow::storage
