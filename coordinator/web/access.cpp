#include "coordinator/web/access.hpp"

#include <algorithm>
#include <filesystem>

#include "coordinator/wire/run_keys.hpp"
#include "storage/base/error.hpp"
#include "storage/base/random.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator {
namespace {

constexpr std::size_t kSecretBytes = 32, kFewestCharacters = 16;

// In a time that does not depend on where they differ.
bool is_same(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(given.size(), secret.size()); ++i)
    if (given[i] != secret[i]) difference |= 1;
  return difference == 0 && !secret.empty();
}

// "localhost:8080" -> "localhost", "[::1]:8080" -> "[::1]".
std::string name_of_host(std::string_view host) {
  const std::size_t bracket = host.rfind(']');
  const std::size_t colon = host.rfind(':');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket))
    host = host.substr(0, colon);
  std::string name(host);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return name;
}

std::string_view cookie_value(std::string_view cookies, std::string_view name) {
  while (!cookies.empty()) {
    const std::size_t end = std::min(cookies.find(';'), cookies.size());
    std::string_view cookie = cookies.substr(0, end);
    while (cookie.starts_with(' ')) cookie.remove_prefix(1);
    if (cookie.starts_with(name) && cookie.substr(name.size()).starts_with('='))
      return cookie.substr(name.size() + 1);
    cookies.remove_prefix(std::min(end + 1, cookies.size()));
  }
  return {};
}

}  // namespace

std::string web_secret(const storage::RunLayout& layout) {
  std::filesystem::path path = wire::http_secret_file(layout);
  if (!std::filesystem::exists(path)) path = layout.web_secret_file();
  if (!std::filesystem::exists(path))
    storage::write_atomically(path, storage::random_hex(kSecretBytes) + "\n", 0600);
  std::string text = wire::read_secret_file(path);
  const bool is_word = text.size() >= kFewestCharacters &&
                       std::all_of(text.begin(), text.end(), [](unsigned char c) {
                         return std::isalnum(c) != 0 || c == '-' || c == '_';
                       });
  if (!is_word)
    throw storage::Error(storage::ErrorKind::kUsage,
                         path.string() +
                             " holds no secret for the page: expected 16 or more letters and "
                             "digits; remove it, and another is made");
  return text;
}

std::string address_to_open(const std::string& address, const std::string& secret) {
  return address + "?token=" + secret;
}

std::string_view path_of(std::string_view target) {
  return target.substr(0, std::min(target.find('?'), target.size()));
}

std::string_view parameter_of(std::string_view target, std::string_view name) {
  const std::size_t begin = target.find('?');
  std::string_view query =
      begin == std::string_view::npos ? std::string_view() : target.substr(begin + 1);
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view parameter = query.substr(0, end);
    if (parameter.starts_with(name) && parameter.substr(name.size()).starts_with('='))
      return parameter.substr(name.size() + 1);
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return {};
}

std::optional<Refusal> refusal(const WebRequest& request, const WebAccess& access) {
  const std::string host = name_of_host(request.host);
  if (std::find(access.hosts.begin(), access.hosts.end(), host) == access.hosts.end())
    return Refusal{421,
                   "this page does not answer to that host name; open the address that 'hedgerow "
                   "run' printed, or 127.0.0.1 through a tunnel"};
  if (!request.origin.empty() && request.origin != "http://" + std::string(request.host))
    return Refusal{403, "another page may not read this one"};
  if (request.method != "GET" && request.method != "HEAD")
    return Refusal{405, "this page is read-only"};
  constexpr std::string_view kBearer = "Bearer ";
  const bool is_known = is_same(parameter_of(request.target, "token"), access.secret) ||
                        is_same(cookie_value(request.cookie, access.cookie_name), access.secret) ||
                        (request.authorization.starts_with(kBearer) &&
                         is_same(request.authorization.substr(kBearer.size()), access.secret));
  if (!is_known)
    return Refusal{401,
                   "open the address that 'hedgerow run' printed: it carries the run's secret "
                   "('hedgerow watch --web' prints it again)"};
  return std::nullopt;
}

}  // namespace hedgerow::coordinator
