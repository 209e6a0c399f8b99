#include "storage/tensors/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "storage/base/error.hpp"

namespace hedgerow::storage {
namespace {

using Json = nlohmann::json;

// Names come from the file: cut and made printable before they go into a message or a terminal.
std::string printable(std::string_view name) {
  constexpr std::size_t kShown = 80;
  std::string out = "'";
  for (const char c : name.substr(0, kShown)) out += c >= ' ' && c < 0x7f ? c : '?';
  return out + (name.size() > kShown ? "...'" : "'");
}

[[noreturn]] void refuse_safetensors(const std::string& file, const std::string& rule) {
  throw Error(
      ErrorKind::kCorrupt,
      fmt::format("safetensors file {}: {}; get the file again, or write it again", file, rule));
}

struct TensorSpan {
  std::string name;
  std::uint64_t begin = 0, end = 0;
};

// Walks the header's events. nlohmann's DOM keeps the last of two equal keys silently, so that two
// parsers may see two different tensors in one file: here the second one is an error. The grammar
// is fixed (an object of objects with three known keys), so anything deeper or other is refused
// where it stands and nothing unbounded is ever kept.
class HeaderReader {
 public:
  HeaderReader(std::string file, std::uint64_t buffer_bytes)
      : file_(std::move(file)), buffer_bytes_(buffer_bytes) {}

  bool null() { unexpected("null"); }
  bool boolean(bool) { unexpected("a boolean"); }
  bool number_float(double, const std::string& text) {
    unexpected("the number " + text.substr(0, 32));
  }
  bool binary(Json::binary_t&) { unexpected("binary data"); }

  bool number_integer(std::int64_t value) {
    unexpected(fmt::format("the negative number {}", value));
  }

  bool number_unsigned(std::uint64_t value) {
    if (place_ == Place::kShape) {
      if (shape_.size() == kMaxSafetensorsDimensions) {
        refuse_tensor(fmt::format("more than {} dimensions", kMaxSafetensorsDimensions));
      }
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        refuse_tensor(fmt::format("dimension {} exceeds 2^63 - 1", value));
      }
      shape_.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (num_offsets_ == offsets_.size()) refuse_tensor("data_offsets has more than two numbers");
      offsets_[num_offsets_++] = value;
      return true;
    }
    unexpected(fmt::format("the number {}", value));
  }

  bool string(std::string& value) {
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = std::move(value);
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") {
      dtype_word_ = std::move(value);
      return true;
    }
    unexpected("a string");
  }

  bool start_object(std::size_t) {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop && name_ == "__metadata__") {
      place_ = Place::kMetadata;
    } else if (place_ == Place::kTop) {
      place_ = Place::kTensor;
      keys_.clear();
      dtype_word_.clear();
      shape_.clear();
      num_offsets_ = 0;
    } else {
      unexpected("an object (nesting too deep)");
    }
    return true;
  }

  bool key(std::string& key) {
    if (key.size() > kMaxSafetensorsNameBytes) {
      refuse_safetensors(file_,
                         fmt::format("the name {} is {} bytes long, the limit is {}",
                                     printable(key),
                                     key.size(),
                                     kMaxSafetensorsNameBytes));
    }
    if (place_ == Place::kTop) {
      name_ = key;
      const bool is_known = header_.tensors.contains(key) || header_.unread.contains(key);
      if (key == "__metadata__" ? has_metadata_ : is_known) {
        refuse_safetensors(file_, fmt::format("the key {} stands twice", printable(key)));
      }
      if (header_.tensors.size() + header_.unread.size() == kMaxSafetensorsTensors) {
        refuse_safetensors(file_, fmt::format("more than {} tensors", kMaxSafetensorsTensors));
      }
    } else if (place_ == Place::kMetadata) {
      if (header_.metadata.contains(key)) {
        refuse_safetensors(file_, fmt::format("the metadata key {} stands twice", printable(key)));
      }
      if (header_.metadata.size() == kMaxSafetensorsTensors) {
        refuse_safetensors(file_,
                           fmt::format("more than {} metadata keys", kMaxSafetensorsTensors));
      }
    } else {
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        refuse_tensor("unknown key " + printable(key) +
                      "; dtype, shape and data_offsets are known");
      }
      if (!keys_.insert(key).second) refuse_tensor("the key " + printable(key) + " stands twice");
    }
    key_ = std::move(key);
    return true;
  }

  bool end_object() {
    if (place_ == Place::kTensor) {
      finish_tensor();
      place_ = Place::kTop;
    } else if (place_ == Place::kMetadata) {
      has_metadata_ = true;
      place_ = Place::kTop;
    } else {
      place_ = Place::kEnd;
    }
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      unexpected("an array");
    }
    return true;
  }

  bool end_array() {
    place_ = Place::kTensor;
    return true;
  }

  [[noreturn]] bool parse_error(std::size_t position, const std::string&, const Json::exception&) {
    refuse_safetensors(
        file_, fmt::format("the header is not valid JSON at byte {} of the file", position + 8));
  }

  SafetensorsHeader take() { return std::move(header_); }
  std::vector<TensorSpan> take_spans() { return std::move(spans_); }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  [[noreturn]] void refuse_tensor(const std::string& rule) const {
    refuse_safetensors(file_, fmt::format("tensor {}: {}", printable(name_), rule));
  }

  [[noreturn]] void unexpected(const std::string& what) const {
    if (place_ == Place::kStart) refuse_safetensors(file_, "the header is not a JSON object");
    if (place_ == Place::kMetadata) {
      refuse_safetensors(
          file_, fmt::format("__metadata__ {} holds {}, expected a string", printable(key_), what));
    }
    if (place_ == Place::kTop) {
      refuse_safetensors(file_,
                         fmt::format("entry {} is {}, expected an object", printable(name_), what));
    }
    refuse_tensor(fmt::format("{} holds {}", printable(key_), what));
  }

  void finish_tensor() {
    for (const char* required : {"dtype", "shape", "data_offsets"}) {
      if (!keys_.contains(required))
        refuse_tensor(fmt::format("the key '{}' is missing", required));
    }
    const std::optional<DType> dtype = dtype_from_string(dtype_word_);
    if (num_offsets_ != 2) refuse_tensor("data_offsets must be two numbers");
    std::uint64_t bytes = dtype ? size_of(*dtype) : 1;
    for (const std::int64_t dimension : shape_) {
      if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dimension), &bytes)) {
        refuse_tensor("the product of its shape overflows 64 bits");
      }
    }
    const auto [begin, end] = offsets_;
    if (begin > end)
      refuse_tensor(fmt::format("data_offsets [{}, {}] are not in order", begin, end));
    if (end > buffer_bytes_) {
      refuse_tensor(
          fmt::format("data_offsets end at {}, but the data has {} bytes", end, buffer_bytes_));
    }
    spans_.push_back({name_, begin, end});
    if (!dtype) {  // of a size that only its readers know
      header_.unread.emplace(name_, printable(dtype_word_));
      return;
    }
    if (end - begin != bytes) {
      refuse_tensor(fmt::format(
          "data_offsets span {} bytes, but dtype and shape need {}", end - begin, bytes));
    }
    header_.tensors.emplace(name_, SafetensorsEntry{*dtype, shape_, begin, end});
  }

  std::string file_;
  std::uint64_t buffer_bytes_;
  Place place_ = Place::kStart;
  SafetensorsHeader header_;
  std::vector<TensorSpan> spans_;
  bool has_metadata_ = false;
  std::string name_;  // of the entry of the top object that is being read
  std::string key_;   // inside that entry
  std::set<std::string> keys_;
  std::string dtype_word_;
  std::vector<std::int64_t> shape_;
  std::array<std::uint64_t, 2> offsets_{};
  std::size_t num_offsets_ = 0;
};

// No overlap, no hole, nothing before the first and nothing after the last tensor: every byte
// belongs to one name, so that no two readers can disagree and nothing can be smuggled.
void check_coverage(std::vector<TensorSpan> spans,
                    std::uint64_t buffer_bytes,
                    const std::string& file) {
  std::sort(spans.begin(), spans.end(), [](const TensorSpan& a, const TensorSpan& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t covered = 0;
  for (const auto& [name, begin, end] : spans) {
    if (begin < covered) {
      refuse_safetensors(
          file,
          fmt::format("tensor {}: its data begins at {} and overlaps the tensor before it, "
                      "which ends at {}",
                      printable(name),
                      begin,
                      covered));
    }
    if (begin > covered) {
      refuse_safetensors(file,
                         fmt::format("tensor {}: a hole of {} bytes lies before its data at {}",
                                     printable(name),
                                     begin - covered,
                                     begin));
    }
    covered = end;
  }
  if (covered != buffer_bytes) {
    refuse_safetensors(file,
                       fmt::format("the last {} of {} data bytes belong to no tensor",
                                   buffer_bytes - covered,
                                   buffer_bytes));
  }
}

}  // namespace

std::uint64_t safetensors_header_length(std::string_view first_bytes,
                                        std::uint64_t file_bytes,
                                        const std::string& file) {
  if (first_bytes.size() < 8 || file_bytes < 8) {
    refuse_safetensors(
        file, fmt::format("{} bytes are too few for the 8-byte header length", file_bytes));
  }
  if (first_bytes.substr(0, 8) == "version ") {
    refuse_safetensors(
        file,
        "it is a Git LFS pointer and not the file itself (run 'git lfs pull' in the model "
        "directory)");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    length |= static_cast<std::uint64_t>(static_cast<unsigned char>(first_bytes[i])) << (8 * i);
  }
  if (length > kMaxSafetensorsHeaderBytes) {
    refuse_safetensors(
        file,
        fmt::format("header length {} exceeds {} bytes, so this is no safetensors file",
                    length,
                    kMaxSafetensorsHeaderBytes));
  }
  if (length > file_bytes - 8) {
    refuse_safetensors(
        file,
        fmt::format("header length {} exceeds the file ({} bytes), which is truncated",
                    length,
                    file_bytes));
  }
  return length;
}

SafetensorsHeader parse_safetensors_header(std::string_view json,
                                           std::uint64_t buffer_bytes,
                                           const std::string& file) {
  if (json.empty() || json.front() != '{')
    refuse_safetensors(file, "the header does not begin with '{'");
  HeaderReader reader(file, buffer_bytes);
  Json::sax_parse(json.begin(), json.end(), &reader);
  check_coverage(reader.take_spans(), buffer_bytes, file);
  return reader.take();
}

}  // namespace hedgerow::storage
