// What answers where the page of a run would, in a build without it (HEDGEROW_WEB=OFF).
#include "coordinator/web/report.hpp"
#include "coordinator/web/server.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

[[noreturn]] void refuse(const std::string& asked) {
  throw storage::Error(storage::ErrorKind::kUsage,
                       asked +
                           ": this hedgerow was built without the page of a run; use 'hedgerow "
                           "watch', or configure with -DHEDGEROW_WEB=ON and build again");
}

}  // namespace

class WebServer::Impl {};

WebServer::WebServer(WebConfig) { refuse("--web"); }
WebServer::~WebServer() = default;
const std::string& WebServer::address() const { refuse("--web"); }

WebAddress parse_web_address(const std::string& text) { refuse("--web " + text); }
std::uint16_t port_of_address(const std::string&) { return 0; }
bool has_web_page() { return false; }

std::string report_html(const Snapshot&) { refuse("report"); }

}  // namespace hedgerow::coordinator
