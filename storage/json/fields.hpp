// A struct and its JSON object, each field named once: beside the struct stands
//
//   template <typename Visitor, Is<Idle> T>
//   void visit_fields(Visitor& visitor, T& idle) {
//     visitor.field("retry_milliseconds", idle.retry_milliseconds);
//   }
//
// FieldWriter makes the object and FieldReader reads it, strictly (json_fields.hpp): throws
// kCorrupt naming the field.
#pragma once

#include <concepts>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "storage/base/error.hpp"
#include "storage/json/json_fields.hpp"

namespace hedgerow::storage {

template <typename T, typename Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

// The word of an enum; others have theirs beside them.
inline void from_word(std::string_view word, ErrorKind& kind) {
  kind = error_kind_from_string(word);
}

class FieldWriter {
 public:
  template <typename T>
  void field(const char* key, const T& value) {
    // Built where it stays: nlohmann's initializer list would make an array of every pair first.
    object_.emplace(key, to_value(value));
  }
  // Absent where it has no value.
  template <typename T>
  void field(const char* key, const std::optional<T>& value) {
    if (value) field(key, *value);
  }
  // One that files or peers of earlier builds lack.
  template <typename T>
  void optional_field(const char* key, const T& value) {
    field(key, value);
  }
  // The fields of a value beside these; absent where it has none. `key` is one of them.
  template <typename T>
  void fields_of(const char* /*key*/, const std::optional<T>& value) {
    if (value) visit_fields(*this, *value);
  }
  // Left out where the value is that of a default-made object.
  template <typename T>
  void sparse_field(const char* key, const T& value) {
    if (!(value == T{})) field(key, value);
  }

  [[nodiscard]] nlohmann::json take() { return std::move(object_); }

 private:
  template <typename T>
  static nlohmann::json to_value(const T& value);

  nlohmann::json::object_t object_;
};

class FieldReader {
 public:
  explicit FieldReader(const nlohmann::json& object) : object_(object) {}

  template <typename T>
  void field(const char* key, T& value);
  template <typename T>
  void field(const char* key, std::optional<T>& value) {
    value.reset();
    if (object_.contains(key)) field(key, value.emplace());
  }
  template <typename T>
  void optional_field(const char* key, T& value) {
    if (object_.contains(key)) field(key, value);
  }
  template <typename T>
  void fields_of(const char* key, std::optional<T>& value) {
    value.reset();
    if (object_.contains(key)) visit_fields(*this, value.emplace());
  }
  template <typename T>
  void sparse_field(const char* key, T& value) {
    optional_field(key, value);
  }

 private:
  const nlohmann::json& object_;
};

template <typename T>
[[nodiscard]] nlohmann::json fields_to_json(const T& value) {
  FieldWriter writer;
  visit_fields(writer, value);
  return writer.take();
}

template <typename T>
[[nodiscard]] T fields_from_json(const nlohmann::json& object) {
  T value;
  FieldReader reader(object);
  visit_fields(reader, value);
  return value;
}

template <typename T>
concept HasFields = requires(FieldWriter& writer, const T& value) {
  visit_fields(writer, value);
};

// A value that is written as its word: an enum, or a name.
template <typename T>
concept HasWord = std::is_enum_v<T> || requires(const T& value, T& read) {
  to_string(value);
  from_word(std::string(), read);
};

template <typename T>
concept IsList = requires(const T& list) {
  typename T::value_type;
  requires std::same_as<T, std::vector<typename T::value_type>>;
};

template <typename T>
nlohmann::json FieldWriter::to_value(const T& value) {
  if constexpr (HasFields<T>) {
    return fields_to_json(value);
  } else if constexpr (HasWord<T>) {
    return to_string(value);
  } else if constexpr (std::same_as<T, FileRecord>) {
    return record_to_json(value);
  } else if constexpr (std::same_as<T, std::vector<FileRecord>>) {
    return records_to_json(value);
  } else if constexpr (IsList<T>) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& each : value) list.push_back(to_value(each));
    return list;
  } else {
    return value;
  }
}

template <typename T>
void FieldReader::field(const char* key, T& value) {
  if constexpr (HasFields<T>) {
    value = fields_from_json<T>(object_field(object_, key));
  } else if constexpr (HasWord<T>) {
    from_word(string_field(object_, key), value);
  } else if constexpr (std::same_as<T, FileRecord>) {
    value = record_from_json(object_field(object_, key));
  } else if constexpr (std::same_as<T, std::vector<FileRecord>>) {
    value = records_from_json(object_, key);
  } else if constexpr (std::same_as<T, std::string>) {
    value = string_field(object_, key);
  } else if constexpr (std::same_as<T, bool>) {
    value = bool_field(object_, key);
  } else if constexpr (std::same_as<T, int>) {
    value = int_field(object_, key);
  } else if constexpr (std::same_as<T, std::int64_t>) {
    value = int64_field(object_, key);
  } else if constexpr (std::same_as<T, std::uint64_t>) {
    value = uint_field(object_, key);
  } else if constexpr (std::same_as<T, double>) {
    value = double_field(object_, key);
  } else if constexpr (std::same_as<T, std::vector<double>>) {
    value = doubles_field(object_, key);
  } else if constexpr (std::same_as<T, std::vector<std::string>>) {
    value = strings_field(object_, key);
  } else if constexpr (std::same_as<T, nlohmann::json>) {
    value = storage::field(object_, key);
    if (!value.is_structured() && !value.is_null()) throw_ill_typed(key, "an object", value);
  } else {
    static_assert(IsList<T>);
    value.clear();
    const nlohmann::json& list = storage::field(object_, key);
    if (!list.is_array()) throw_ill_typed(key, "an array", list);
    for (const auto& each : list) {
      typename T::value_type& item = value.emplace_back();
      if constexpr (HasFields<typename T::value_type>) {
        item = fields_from_json<typename T::value_type>(each);
      } else {
        const nlohmann::json one = {{key, each}};
        FieldReader(one).field(key, item);
      }
    }
  }
}

}  // namespace hedgerow::storage
