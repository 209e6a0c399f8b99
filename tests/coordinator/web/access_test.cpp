#include "coordinator/web/access.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "coordinator/web/server.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator {
namespace {

const WebAccess kAccess{.secret = "0123456789abcdef",
                        .hosts = {"localhost", "127.0.0.1", "[::1]"},
                        .cookie_name = "hedgerow_80"};

int status(WebRequest request) {
  if (request.method.empty()) request.method = "GET";
  if (request.host.empty()) request.host = "127.0.0.1:80";
  if (request.target.empty()) request.target = "/";
  const auto refused = refusal(request, kAccess);
  return refused ? refused->status : 200;
}

TEST(WebAccess, TheSecretOpensInAnAddressACookieOrAHeaderAndNothingElseDoes) {
  EXPECT_EQ(status({}), 401);
  EXPECT_EQ(status({.target = "/?token=0123456789abcdef"}), 200);
  EXPECT_EQ(status({.target = "/?a=b&token=0123456789abcdef&c"}), 200);
  EXPECT_EQ(status({.target = "/?token=0123456789abcdeX"}), 401);
  EXPECT_EQ(status({.target = "/?token="}), 401);
  EXPECT_EQ(status({.target = "/?xtoken=0123456789abcdef"}), 401);
  EXPECT_EQ(status({.cookie = "a=b; hedgerow_80=0123456789abcdef"}), 200);
  EXPECT_EQ(status({.cookie = "hedgerow_81=0123456789abcdef"}), 401) << "another run's";
  EXPECT_EQ(status({.authorization = "Bearer 0123456789abcdef"}), 200);
  EXPECT_EQ(status({.authorization = "Basic 0123456789abcdef"}), 401);
  EXPECT_EQ(refusal({.method = "GET", .target = "/?token=", .host = "localhost"},
                    {.secret = "", .hosts = {"localhost"}, .cookie_name = "c"})
                ->status,
            401)
      << "no secret is known: nobody is let in";
}

TEST(WebAccess, AHostNameOfAnotherSiteIsRefusedWhateverItKnows) {
  const char* const target = "/?token=0123456789abcdef";
  EXPECT_EQ(status({.target = target, .host = "evil.example:80"}), 421);
  EXPECT_EQ(status({.target = target, .host = "127.0.0.1.evil.example"}), 421);
  EXPECT_EQ(status({.target = target, .host = "LOCALHOST:1234"}), 200) << "through a tunnel";
  EXPECT_EQ(status({.target = target, .host = "[::1]:80"}), 200);
  EXPECT_EQ(status({.target = target, .host = "[::1]"}), 200);
}

TEST(WebAccess, APageOfAnotherOriginIsRefused) {
  const char* const target = "/?token=0123456789abcdef";
  EXPECT_EQ(status({.target = target, .origin = "http://127.0.0.1:80"}), 200);
  EXPECT_EQ(status({.target = target, .origin = "http://127.0.0.1:81"}), 403);
  EXPECT_EQ(status({.target = target, .origin = "https://evil.example"}), 403);
  EXPECT_EQ(status({.target = target, .origin = "null"}), 403);
}

TEST(WebAccess, NothingButReadingIsAnswered) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT"})
    EXPECT_EQ(status({.method = method, .target = "/?token=0123456789abcdef"}), 405) << method;
  EXPECT_EQ(status({.method = "HEAD", .target = "/?token=0123456789abcdef"}), 200);
}

TEST(WebAccess, TheSecretIsMadeOnceAndReadableByItsOwnerAlone) {
  const tests::TemporaryDirectory directory;
  const storage::RunLayout layout(directory.path());
  const std::string secret = web_secret(layout);
  EXPECT_EQ(secret.size(), 64U) << "256 bits in hexadecimal digits";
  EXPECT_EQ(web_secret(layout), secret);
  struct stat file {};
  ASSERT_EQ(stat(layout.web_secret_file().c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600U);
  storage::write_atomically(layout.web_secret_file(), "\n", 0600);
  EXPECT_THROW(static_cast<void>(web_secret(layout)), storage::Error)
      << "an empty one would open to all";
}

TEST(WebAddress, IsAHostAPortOrBoth) {
  EXPECT_EQ(parse_web_address("0.0.0.0:8080").host, "0.0.0.0");
  EXPECT_EQ(parse_web_address("0.0.0.0:8080").port, 8080);
  EXPECT_EQ(parse_web_address("8080").host, "127.0.0.1");
  EXPECT_EQ(parse_web_address("8080").port, 8080);
  EXPECT_EQ(parse_web_address("node7").port, 0);
  EXPECT_EQ(parse_web_address("[::1]:9").host, "::1");
  for (const char* text : {"", ":80", "host:", "host:x", "host:70000", "99999", "host:-1"})
    EXPECT_THROW(static_cast<void>(parse_web_address(text)), storage::Error) << text;
  EXPECT_EQ(port_of_address("http://127.0.0.1:8080/"), 8080);
  EXPECT_EQ(port_of_address("http://[::1]:8080/"), 8080);
  EXPECT_EQ(port_of_address(""), 0);
  EXPECT_EQ(port_of_address("ftp://x"), 0);
}

}  // namespace
}  // namespace hedgerow::coordinator
