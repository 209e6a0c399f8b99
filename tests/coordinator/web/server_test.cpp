// The page's server over real sockets.
#include "coordinator/web/server.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/ip/tcp.hpp>
#include <nlohmann/json.hpp>

#include "coordinator/web/access.hpp"
#include "coordinator/web/prometheus.hpp"
#include "coordinator/web/report.hpp"
#include "coordinator/web/snapshot.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/history/history_file.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class WebServerTest : public testing::Test {
 protected:
  WebServerTest() {
    storage::write_atomically(layout_.recipe(), "seed = 0\n");
    writer_.emplace(layout_, 1);
    append_row(0);
  }

  void append_row(int step) {
    writer_->offer("layer/0", {"mse"}, {step, 1.0, {0.5F}});
    writer_->flush();
  }
  [[nodiscard]] WebConfig config(std::uint16_t port = 0) const {
    return {.layout = layout_, .host = "127.0.0.1", .port = port, .secret = "0123456789abcdef"};
  }
  // A connection that has sent a request; what it answers is read from it.
  static std::unique_ptr<boost::asio::ip::tcp::iostream> ask(const WebServer& server,
                                                             const std::string& request) {
    auto stream = std::make_unique<boost::asio::ip::tcp::iostream>();
    stream->expires_after(std::chrono::seconds(20));
    stream->connect("127.0.0.1", std::to_string(port_of_address(server.address())));
    *stream << request << std::flush;
    return stream;
  }
  static std::string head(const std::string& target, const std::string& fields = "") {
    return "GET " + target + " HTTP/1.1\r\nHost: localhost\r\nCookie: x\r\n" + fields +
           "Authorization: Bearer 0123456789abcdef\r\n";
  }
  static std::string get(const WebServer& server, const std::string& target) {
    const auto stream = ask(server, head(target) + "Connection: close\r\n\r\n");
    return {std::istreambuf_iterator<char>(*stream), {}};
  }
  // Lines of a stream up to and with the first that begins so.
  static std::string read_until(std::istream& stream, const std::string& begin) {
    std::string text;
    for (std::string line; std::getline(stream, line);) {
      text += line + "\n";
      if (line.starts_with(begin)) return text;
    }
    return text + "(the stream ended)";
  }

  tests::TemporaryDirectory directory_;
  storage::RunLayout layout_{directory_.path()};
  std::optional<storage::HistoryWriter> writer_;
};

TEST_F(WebServerTest, ServesThePageItsScriptsTheRunAndItsMetrics) {
  const WebServer server(config());
  const std::string page = get(server, "/");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'self'"));
  EXPECT_THAT(page, HasSubstr("<!DOCTYPE html>"));
  EXPECT_THAT(get(server, "/chart.js"), HasSubstr("Chart.js"));
  EXPECT_THAT(get(server, "/metrics"), HasSubstr("hedgerow_layer_mse{layer=\"0\"} 0.5"));
  const std::string run = get(server, "/api/run");
  const auto json = nlohmann::json::parse(run.substr(run.find("\r\n\r\n")));
  EXPECT_EQ(json["history"]["series"]["layer/0"]["rows"][0][2], 0.5);
  EXPECT_EQ(json["recipe"], "seed = 0\n");
  EXPECT_THAT(get(server, "/nothing"), StartsWith("HTTP/1.1 404"));
}

TEST(Prometheus, TellsPlannedSecondsAndGpuHoursOfARunThatHasAPlan) {
  RunStatus status;
  status.updated_at = "2026-09-21T14:13:20.000Z";
  status.stages.emplace_back().stage = Stage::kCapture;
  EXPECT_THAT(prometheus_text(status, {}), Not(HasSubstr("planned_seconds")));
  status.stages[0].planned = PlannedStage{.stage = Stage::kCapture, .seconds = 62.0};
  status.so_far = Spending{.gpu_hours = 12.5, .cost = std::nullopt};
  const std::string text = prometheus_text(status, {});
  EXPECT_THAT(text, HasSubstr("hedgerow_planned_seconds{stage=\"capture\"} 62"));
  EXPECT_THAT(text, HasSubstr("hedgerow_gpu_seconds_total 45000"));
}

TEST_F(WebServerTest, TheSecretMovesFromTheAddressIntoACookie) {
  const WebServer server(config());
  const std::string answer = get(server, "/?token=0123456789abcdef");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 303"));
  EXPECT_THAT(answer, HasSubstr("Location: /\r\n"));
  EXPECT_THAT(answer, HasSubstr("HttpOnly; SameSite=Strict"));
  const auto stream =
      ask(server, "GET /api/run HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const std::string refused{std::istreambuf_iterator<char>(*stream), {}};
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(refused, Not(HasSubstr("layer/0")));
}

TEST_F(WebServerTest, AStreamSaysWhatIsNewAndAViewerThatComesBackMissesNothing) {
  const WebServer server(config());
  const std::string run = get(server, "/api/run");
  const auto id =
      nlohmann::json::parse(run.substr(run.find("\r\n\r\n")))["id"].get<std::uint64_t>();
  const auto stream = ask(server, head("/api/events?id=" + std::to_string(id)) + "\r\n");
  EXPECT_THAT(read_until(*stream, "retry:"), HasSubstr("text/event-stream"));
  append_row(20);
  const std::string message = read_until(*stream, "data: {\"series\"");
  EXPECT_THAT(message, HasSubstr("event: history"));
  EXPECT_THAT(message, HasSubstr("[20,"));
  const auto again =
      ask(server, head("/api/events", "Last-Event-ID: " + std::to_string(id) + "\r\n") + "\r\n");
  EXPECT_THAT(read_until(*again, "data: {\"series\""), HasSubstr("[20,"));
}

TEST_F(WebServerTest, AViewerOfAnEarlierServerIsToldToFetchEverything) {
  std::uint16_t port = 0;
  {
    const WebServer first(config());
    port = port_of_address(first.address());
  }
  const WebServer second(config(port));
  EXPECT_EQ(port_of_address(second.address()), port) << "its viewers find it again";
  const auto stream = ask(second, head("/api/events", "Last-Event-ID: 17\r\n") + "\r\n");
  EXPECT_THAT(read_until(*stream, "data:"), HasSubstr("event: reset"));
}

TEST_F(WebServerTest, ManyViewersAreServedAtOnceAndThoseThatLeaveAreForgotten) {
  const WebServer server(config());
  std::vector<std::unique_ptr<boost::asio::ip::tcp::iostream>> viewers;
  for (int i = 0; i < 100; ++i) {
    viewers.push_back(ask(server, head("/api/events") + "\r\n"));
    read_until(*viewers.back(), "retry:");
  }
  for (std::size_t i = 0; i < viewers.size(); i += 2) viewers[i]->close();
  append_row(20);
  for (std::size_t i = 1; i < viewers.size(); i += 2)
    EXPECT_THAT(read_until(*viewers[i], "data: {\"series\""), HasSubstr("[20,")) << i;
}

TEST_F(WebServerTest, WhatIsNoRequestEndsItsConnectionAlone) {
  const WebServer server(config());
  const auto wrong = ask(server, std::string("\0\xff not http\r\n\r\n", 16));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(*wrong), {}), "");
  const auto large =
      ask(server, "GET / HTTP/1.1\r\nHost: " + std::string(100'000, 'a') + "\r\n\r\n");
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(*large), {}), Not(HasSubstr("200 OK")));
  EXPECT_THAT(get(server, "/"), StartsWith("HTTP/1.1 200"));
}

TEST_F(WebServerTest, APortThatIsTakenIsOneClearSentence) {
  const WebServer first(config());
  try {
    const WebServer second(config(port_of_address(first.address())));
    FAIL();
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("the port is taken by another program"));
    EXPECT_THAT(error.what(), HasSubstr("--web"));
  }
}

TEST_F(WebServerTest, AReportHoldsEverythingAndNoNameInItEndsItsScript) {
  writer_->append(storage::HistoryEvent{1.0, "run", "noted", "</script><script>alert(1)</script>"});
  writer_->flush();
  storage::HistoryReader reader(layout_);
  static_cast<void>(reader.poll());
  const RunStatus status = read_status(layout_);
  const std::string html = report_html({.status = status,
                                        .history = reader.history(),
                                        .recipe = "seed = 0\n",
                                        .provenance = provenance_of(layout_)});
  EXPECT_THAT(html, Not(HasSubstr("alert(1)</script>")));
  EXPECT_THAT(html, HasSubstr("\\u003c/script>\\u003cscript>alert(1)"));
  EXPECT_THAT(html, Not(HasSubstr("src=\"/")));
  EXPECT_THAT(html, Not(HasSubstr("href=\"/page.css")));
}

TEST(Snapshot, ALongSeriesIsShownBySoManyRowsOfWhichTheLastIsItsLast) {
  storage::History history;
  storage::HistorySeries& series = history.series["layer/0"];
  series.columns = {"mse"};
  for (int step = 0; step < 1000; ++step) series.rows.push_back({step, 0.0, {0.5F}});
  const auto rows = nlohmann::json::parse(history_json(history, 256))["series"]["layer/0"]["rows"];
  EXPECT_LE(rows.size(), 256U);
  EXPECT_EQ(rows.front()[0], 0);
  EXPECT_EQ(rows.back()[0], 999);
}

}  // namespace
}  // namespace hedgerow::coordinator
