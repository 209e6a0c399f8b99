#include "storage/base/error.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace hedgerow::storage {
namespace {

constexpr std::array<std::pair<ErrorKind, std::string_view>, 7> kWords{{
    {ErrorKind::kUsage, "usage"},
    {ErrorKind::kNotFound, "not_found"},
    {ErrorKind::kCorrupt, "corrupt"},
    {ErrorKind::kUnavailable, "unavailable"},
    {ErrorKind::kExhausted, "exhausted"},
    {ErrorKind::kFenced, "fenced"},
    {ErrorKind::kInternal, "internal"},
}};

}  // namespace

std::string_view to_string(ErrorKind kind) {
  for (const auto& [value, word] : kWords) {
    if (value == kind) return word;
  }
  return "internal";
}

ErrorKind error_kind_from_string(std::string_view word) {
  for (const auto& [value, known] : kWords) {
    if (known == word) return value;
  }
  return ErrorKind::kInternal;
}

ExitCode exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
      return ExitCode::kUsage;
    case ErrorKind::kUnavailable:
    case ErrorKind::kExhausted:
      return ExitCode::kEnvironment;
    case ErrorKind::kNotFound:
    case ErrorKind::kCorrupt:
    case ErrorKind::kFenced:
    case ErrorKind::kInternal:
      break;
  }
  return ExitCode::kFailed;
}

std::string without_room_advice(std::string message) {
  const std::size_t at = message.find(kRoomAdvice);
  if (at != std::string::npos) message.erase(at, kRoomAdvice.size());
  return message;
}

Error system_error(std::string_view what, std::string_view object, int error_number) {
  std::string message =
      std::string(what) + " " + std::string(object) + ": " + std::strerror(error_number);
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return {ErrorKind::kExhausted, message + std::string(kRoomAdvice)};
    case EFBIG:
      return {ErrorKind::kExhausted,
              message +
                  "; raise the limit on a file's size (ulimit -f), then run the same command "
                  "again"};
    case ENOENT:
      return {ErrorKind::kNotFound, message};
    case EACCES:
    case EPERM:
    case EROFS:
      return {ErrorKind::kUsage,
              message + "; choose a directory this user may write, or fix its permissions"};
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return {ErrorKind::kUsage, message + "; name another path"};
    default:
      return {ErrorKind::kUnavailable, message};
  }
}

}  // namespace hedgerow::storage
