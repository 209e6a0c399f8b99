#include "coordinator/web/server.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <chrono>
#include <deque>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "coordinator/web/access.hpp"
#include "coordinator/web/assets.hpp"
#include "coordinator/web/prometheus.hpp"
#include "coordinator/web/run_feed.hpp"
#include "storage/base/error.hpp"
#include "storage/base/utc.hpp"

namespace hedgerow::coordinator {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using beast::error_code;
using Response = http::response<http::string_body>;
using Request = http::request<http::empty_body>;
using Text = std::shared_ptr<const std::string>;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kPollEvery{500};
constexpr milliseconds kEndTimeout{1000}, kEndPollEvery{10};
constexpr seconds kRequestTimeout{20};
constexpr seconds kKeepAliveEvery{10};
constexpr std::size_t kMaxConnections = 512;
constexpr std::uint32_t kMaxHeaderBytes = 16 * 1024;
// What a viewer that reads too slowly may leave waiting before it is cut: it comes back by itself.
constexpr std::size_t kMaxQueuedBytes = 16U << 20;

constexpr const char* kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n"
    "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\nretry: 2000\n\n";

std::string_view view_of(beast::string_view text) { return {text.data(), text.size()}; }

std::string_view field_of(const Request& request, http::field field) {
  return view_of(request[field]);
}

Response answer_with(const Request& request,
                     http::status status,
                     std::string_view type,
                     std::string body) {
  Response response(status, request.version());
  response.keep_alive(request.keep_alive());
  response.set(http::field::content_type, beast::string_view(type.data(), type.size()));
  response.set(http::field::cache_control, "no-store");
  response.set(http::field::x_frame_options, "DENY");
  response.set("X-Content-Type-Options", "nosniff");
  response.set("Referrer-Policy", "no-referrer");
  response.set("Content-Security-Policy",
               "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
               "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
  response.body() = std::move(body);
  const std::size_t size = response.body().size();
  if (request.method() == http::verb::head) response.body().clear();
  response.content_length(size);
  return response;
}

Response answer_text(const Request& request, http::status status, const std::string& sentence) {
  return answer_with(request, status, "text/plain; charset=utf-8", sentence + "\n");
}

}  // namespace

class WebServer::Impl {
 public:
  explicit Impl(WebConfig config)
      : config_(std::move(config)),
        feed_(config_.layout, static_cast<std::uint64_t>(storage::wall_seconds() * 1000.0)),
        acceptor_(context_),
        timer_(context_) {
    listen();
    accept();
    wait();
    thread_ = std::thread([this] { context_.run(); });
    pthread_setname_np(thread_.native_handle(), "page");  // what watching costs is measured by it
  }
  ~Impl() {
    asio::post(context_, [this] {
      tick();  // viewers are told how the run ended before they lose it
      stop_when_sent(kEndTimeout);
    });
    thread_.join();
  }

  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  class Session;

  void listen();
  void accept();
  void wait();
  void tick();
  void stop_when_sent(milliseconds left);
  [[nodiscard]] Response answer(const Request& request);
  void poll();

  WebConfig config_;
  RunFeed feed_;
  asio::io_context context_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer timer_;
  WebAccess access_;
  std::string address_;
  std::set<std::shared_ptr<Session>> viewers_;  // those that wait for messages
  std::size_t num_connections_ = 0;
  std::chrono::steady_clock::time_point next_keep_alive_{};
  std::thread thread_;
};

// One connection: requests one after the other, or, from its request for /api/events on, a stream.
class WebServer::Impl::Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Impl& server, tcp::socket socket) : server_(server), stream_(std::move(socket)) {
    ++server_.num_connections_;
  }
  ~Session() { --server_.num_connections_; }

  void read() {
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    parser_->body_limit(0);
    stream_.expires_after(kRequestTimeout);
    http::async_read(
        stream_, buffer_, *parser_, [self = shared_from_this()](error_code error, std::size_t) {
          if (error)
            self->close();
          else
            self->serve();
        });
  }

  void send(Text text) {
    queued_bytes_ += text->size();
    if (queued_bytes_ > kMaxQueuedBytes) return close();
    queue_.push_back(std::move(text));
    if (queue_.size() == 1) write_next();
  }
  [[nodiscard]] bool is_sending() const { return !queue_.empty(); }

 private:
  void serve() {
    const Request& request = parser_->get();
    Response response = server_.answer(request);
    if (response.result() == http::status::ok &&
        path_of(view_of(request.target())) == "/api/events" && request.method() == http::verb::get)
      return begin_stream(view_of(request["Last-Event-ID"]));
    auto owned = std::make_shared<Response>(std::move(response));
    http::async_write(
        stream_, *owned, [self = shared_from_this(), owned](error_code error, std::size_t) {
          if (error || owned->need_eof() || !owned->keep_alive())
            self->close();
          else
            self->read();
        });
  }

  // A viewer without an id has just fetched the snapshot, or will: it needs what comes from now on.
  void begin_stream(std::string_view last_id) {
    stream_.expires_never();
    server_.viewers_.insert(shared_from_this());
    send(std::make_shared<const std::string>(kStreamHead));
    if (last_id.empty()) last_id = parameter_of(view_of(parser_->get().target()), "id");
    std::uint64_t id = 0;
    const auto [end, problem] =
        std::from_chars(last_id.data(), last_id.data() + last_id.size(), id);
    if (problem == std::errc() && end == last_id.data() + last_id.size())
      for (const RunFeed::Message& message : server_.feed_.since(id)) send(message.text);
    watch();
  }

  // Nothing more is expected of it: whatever comes is its end.
  void watch() {
    stream_.async_read_some(asio::buffer(ignored_),
                            [self = shared_from_this()](error_code error, std::size_t) {
                              if (error)
                                self->close();
                              else
                                self->watch();
                            });
  }

  void write_next() {
    asio::async_write(stream_,
                      asio::buffer(*queue_.front()),
                      [self = shared_from_this()](error_code error, std::size_t) {
                        if (error || self->queue_.empty()) return self->close();
                        self->queued_bytes_ -= self->queue_.front()->size();
                        self->queue_.pop_front();
                        if (!self->queue_.empty()) self->write_next();
                      });
  }

  void close() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.socket().close(ignored);
    server_.viewers_.erase(shared_from_this());
  }

  Impl& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::empty_body>> parser_;
  std::deque<Text> queue_;
  std::size_t queued_bytes_ = 0;
  std::array<char, 64> ignored_{};
};

void WebServer::Impl::listen() {
  const auto refuse = [this](const std::string& why) {
    throw storage::Error(storage::ErrorKind::kUsage,
                         "the run's page cannot listen at " + config_.host + ":" +
                             std::to_string(config_.port) + ": " + why +
                             "; name another address with --web HOST:PORT, or --web none");
  };
  error_code error;
  tcp::resolver resolver(context_);
  const auto found = resolver.resolve(config_.host == "*" ? "0.0.0.0" : config_.host,
                                      std::to_string(config_.port),
                                      tcp::resolver::passive,
                                      error);
  if (error || found.empty()) refuse("no such address (" + error.message() + ")");
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol());
  // Workers that are started later must not hold the port: they outlive a coordinator that is
  // killed, and the next one is to have it.
  fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
  acceptor_.native_non_blocking(true);
  acceptor_.set_option(tcp::acceptor::reuse_address(true));
  acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error == asio::error::address_in_use) refuse("the port is taken by another program");
  if (error) refuse(error.message());

  const tcp::endpoint bound = acceptor_.local_endpoint();
  std::array<char, 256> own{};
  std::string host_name = gethostname(own.data(), own.size() - 1) == 0 ? own.data() : "localhost";
  std::string address = bound.address().to_string();
  if (bound.address().is_v6()) address = "[" + address + "]";
  const std::string shown = bound.address().is_unspecified() ? host_name : address;
  const std::string port = std::to_string(bound.port());
  address_ = "http://" + shown + ":" + port + "/";
  std::transform(host_name.begin(), host_name.end(), host_name.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  access_ = {.secret = config_.secret,
             .hosts = {"localhost", "127.0.0.1", "[::1]", address, config_.host, host_name},
             .cookie_name = "hedgerow_" + port};
}

// accept4, because a connection that asio accepts would be inherited by a worker that is started at
// that moment: its viewer would not learn of the coordinator's death.
void WebServer::Impl::accept() {
  acceptor_.async_wait(tcp::acceptor::wait_read, [this](error_code error) {
    if (error == asio::error::operation_aborted) return;
    const int descriptor = accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
    if (descriptor >= 0) {
      tcp::socket socket(context_, acceptor_.local_endpoint().protocol(), descriptor);
      if (num_connections_ < kMaxConnections)
        std::make_shared<Session>(*this, std::move(socket))->read();
    }
    accept();
  });
}

void WebServer::Impl::wait() {
  timer_.expires_after(kPollEvery);
  timer_.async_wait([this](error_code error) {
    if (error) return;
    tick();
    wait();
  });
}

void WebServer::Impl::poll() {
  try {
    const auto viewers = viewers_;  // a slow one may leave while they are served
    for (const RunFeed::Message& message : feed_.poll())
      for (const auto& viewer : viewers) viewer->send(message.text);
  } catch (const std::exception&) {
    // A file system that does not answer now: the next turn looks again.
  }
}

void WebServer::Impl::tick() {
  if (viewers_.empty()) return;
  poll();
  const auto now = std::chrono::steady_clock::now();
  if (now < next_keep_alive_) return;
  next_keep_alive_ = now + kKeepAliveEvery;
  const auto comment = std::make_shared<const std::string>(": still there\n\n");
  const auto viewers = viewers_;
  for (const auto& viewer : viewers) viewer->send(comment);
}

// Its timer is that of wait(), which ends with that.
void WebServer::Impl::stop_when_sent(milliseconds left) {
  const bool is_sending = std::any_of(
      viewers_.begin(), viewers_.end(), [](const auto& viewer) { return viewer->is_sending(); });
  if (!is_sending || left <= milliseconds::zero()) return context_.stop();
  timer_.expires_after(kEndPollEvery);
  timer_.async_wait([this, left](error_code) { stop_when_sent(left - kEndPollEvery); });
}

Response WebServer::Impl::answer(const Request& request) {
  const std::string_view target = view_of(request.target());
  const auto refused = refusal({.method = view_of(request.method_string()),
                                .target = target,
                                .host = field_of(request, http::field::host),
                                .origin = field_of(request, http::field::origin),
                                .cookie = field_of(request, http::field::cookie),
                                .authorization = field_of(request, http::field::authorization)},
                               access_);
  if (refused) {
    return answer_text(request, static_cast<http::status>(refused->status), refused->reason);
  }
  const std::string_view path = path_of(target);
  if (path == "/" && !parameter_of(target, "token").empty()) {
    // The secret goes from the address, and so from the history and the screen, into a cookie.
    Response response = answer_text(request, http::status::see_other, "see /");
    response.set(http::field::location, "/");
    response.set(
        http::field::set_cookie,
        access_.cookie_name + "=" + access_.secret + "; Path=/; HttpOnly; SameSite=Strict");
    return response;
  }
  if (path == "/api/events")
    return answer_text(request, http::status::ok, "");  // the head of a stream takes its place
  if (path == "/api/run") {
    poll();
    return answer_with(request, http::status::ok, "application/json", feed_.snapshot());
  }
  if (path == "/metrics") {
    poll();
    return answer_with(request,
                       http::status::ok,
                       "text/plain; version=0.0.4; charset=utf-8",
                       prometheus_text(feed_.status(), feed_.history()));
  }
  for (const Asset& asset : web_assets())
    if (asset.path == path || (path == "/" && asset.path == "/index.html"))
      return answer_with(request, http::status::ok, asset.type, std::string(asset.body));
  return answer_text(request, http::status::not_found, "there is nothing at this address");
}

WebAddress parse_web_address(const std::string& text) {
  WebAddress address;
  const std::size_t bracket = text.rfind(']');
  const std::size_t colon = text.rfind(':');
  const bool has_colon =
      colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
  const bool is_port_alone =
      !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  std::string port = has_colon ? text.substr(colon + 1) : is_port_alone ? text : "";
  if (!is_port_alone) address.host = text.substr(0, has_colon ? colon : text.size());
  if (address.host.starts_with('[') && address.host.ends_with(']'))
    address.host = address.host.substr(1, address.host.size() - 2);
  const auto [end, problem] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  const bool is_number = problem == std::errc() && end == port.data() + port.size();
  if (address.host.empty() || ((has_colon || is_port_alone) && !is_number))
    throw storage::Error(
        storage::ErrorKind::kUsage,
        "--web " + text + ": expected HOST:PORT, a port from 1 to 65535, HOST, or none");
  return address;
}

bool has_web_page() { return true; }

std::uint16_t port_of_address(const std::string& address) {
  constexpr std::string_view kScheme = "http://";
  if (!address.starts_with(kScheme) || !address.ends_with('/')) return 0;
  try {
    return parse_web_address(address.substr(kScheme.size(), address.size() - kScheme.size() - 1))
        .port;
  } catch (const storage::Error&) {
    return 0;
  }
}

WebServer::WebServer(WebConfig config) : impl_(std::make_unique<Impl>(std::move(config))) {}
WebServer::~WebServer() = default;
const std::string& WebServer::address() const { return impl_->address(); }

}  // namespace hedgerow::coordinator
