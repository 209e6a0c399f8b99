#include "storage/history/tensorboard.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "storage/files/file.hpp"

namespace hedgerow::storage {
namespace {

// Castagnoli's polynomial, reflected.
constexpr std::array<std::uint32_t, 256> kCrc32c = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    table[byte] = byte;
    for (int bit = 0; bit < 8; ++bit)
      table[byte] = table[byte] >> 1 ^ ((table[byte] & 1U) != 0 ? 0x82F63B78U : 0U);
  }
  return table;
}();

// TFRecord's: of a checksum that is stored beside its own data.
std::uint32_t masked_crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes)
    crc = crc >> 8 ^ kCrc32c[(crc ^ static_cast<unsigned char>(byte)) & 0xFFU];
  return std::rotr(~crc, 15) + 0xA282EAD8U;
}

template <typename Number>
void put_little_endian(std::string& out, Number number) {
  for (std::size_t i = 0; i < sizeof(Number); ++i)
    out += static_cast<char>(number >> (8 * i) & 0xFFU);
}

void put_varint(std::string& out, std::uint64_t number) {
  for (; number >= 0x80; number >>= 7) out += static_cast<char>(number | 0x80U);
  out += static_cast<char>(number);
}

// How a field of a protobuf message is encoded.
enum class Wire : std::uint64_t { kVarint = 0, kDouble = 1, kBytes = 2, kFloat = 5 };

void put_key(std::string& out, std::uint64_t field, Wire wire) {
  put_varint(out, field << 3 | static_cast<std::uint64_t>(wire));
}

void put_bytes(std::string& out, std::uint64_t field, std::string_view bytes) {
  put_key(out, field, Wire::kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// Event: wall_time = 1, step = 2, and one of file_version = 3, summary = 5.
std::string event(double time, std::int64_t step, std::uint64_t field, std::string_view content) {
  std::string message;
  put_key(message, 1, Wire::kDouble);
  put_little_endian(message, std::bit_cast<std::uint64_t>(time));
  put_key(message, 2, Wire::kVarint);
  put_varint(message, static_cast<std::uint64_t>(step));
  put_bytes(message, field, content);
  return message;
}

// Appends a Summary's value = 1: tag = 1, simple_value = 2.
void put_value(std::string& summary, std::string_view tag, float number) {
  std::string value;
  put_bytes(value, 1, tag);
  put_key(value, 2, Wire::kFloat);
  put_little_endian(value, std::bit_cast<std::uint32_t>(number));
  put_bytes(summary, 1, value);
}

void write_record(const TextSink& sink, std::string_view payload) {
  std::string record;
  put_little_endian(record, static_cast<std::uint64_t>(payload.size()));
  put_little_endian(record, masked_crc32c(record));
  record += payload;
  put_little_endian(record, masked_crc32c(payload));
  sink(record);
}

double first_time(const History& history) {
  double first = std::numeric_limits<double>::infinity();
  for (const auto& [name, series] : history.series) {
    for (const HistoryRow& row : series.rows) first = std::min(first, row.time);
  }
  return std::isfinite(first) ? first : 0.0;
}

}  // namespace

void write_tensorboard(const std::filesystem::path& directory, const History& history) {
  const double first = first_time(history);
  std::filesystem::create_directories(directory);
  const std::string name =
      "events.out.tfevents." + std::to_string(static_cast<std::int64_t>(first)) + ".hedgerow";
  write_atomically(directory / name, [&](const TextSink& sink) {
    constexpr std::uint64_t kFileVersion = 3, kSummary = 5;
    write_record(sink, event(first, 0, kFileVersion, "brain.Event:2"));
    for (const auto& [name_of_series, series] : history.series) {
      for (const HistoryRow& row : series.rows) {
        std::string summary;
        // A row of an older build may lack the last columns.
        for (std::size_t i = 0; i < std::min(row.values.size(), series.columns.size()); ++i) {
          if (!std::isnan(row.values[i]))
            put_value(summary, name_of_series + "/" + series.columns[i], row.values[i]);
        }
        if (!summary.empty()) write_record(sink, event(row.time, row.step, kSummary, summary));
      }
    }
  });
}

}  // namespace hedgerow::storage
