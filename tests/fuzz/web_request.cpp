// What arrives at a run's page: any bytes. Boost.Beast parses them with the server's limits; then
// who does not send the secret is refused, whatever else stands in the request.
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "coordinator/web/access.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace hedgerow;
namespace http = boost::beast::http;

constexpr const char* kSecret = "0123456789abcdef";

std::string_view view_of(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  http::request_parser<http::empty_body> parser;
  parser.header_limit(16 * 1024);
  parser.body_limit(0);
  boost::beast::error_code error;
  parser.put(boost::asio::buffer(input.data(), input.size()), error);
  if (error || !parser.is_header_done()) return 0;
  const auto& request = parser.get();
  const coordinator::WebRequest asked{
      .method = view_of(request.method_string()),
      .target = view_of(request.target()),
      .host = view_of(request[http::field::host]),
      .origin = view_of(request[http::field::origin]),
      .cookie = view_of(request[http::field::cookie]),
      .authorization = view_of(request[http::field::authorization])};
  const coordinator::WebAccess access{
      .secret = kSecret, .hosts = {"localhost", "127.0.0.1"}, .cookie_name = "hedgerow_1"};
  const auto refused = coordinator::refusal(asked, access);
  const bool has_secret = input.find(kSecret) != std::string_view::npos;
  fuzz::expect(refused || has_secret, "nobody is let in without the secret");
  fuzz::expect(refused || asked.method == "GET" || asked.method == "HEAD", "reading alone");
  fuzz::expect(coordinator::path_of(asked.target).find('?') == std::string_view::npos,
               "a path has no query");
  return 0;
}
