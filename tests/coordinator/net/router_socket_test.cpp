// Who gets through to the coordinator's socket, with the worker's own end of the wire.
#include "coordinator/net/router_socket.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "coordinator/net/binding.hpp"
#include "coordinator/net/key_maker.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "coordinator/wire/messages.hpp"
#include "storage/base/error.hpp"
#include "tests/support/temporary_directory.hpp"
#include "worker/client/coordinator_link.hpp"
#include "worker/client/dealer_socket.hpp"

namespace hedgerow::coordinator {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Lt;
using worker::DealerSocket;
using worker::HandshakeFailure;

constexpr milliseconds kLookEvery{10};
constexpr std::chrono::seconds kTimeout{20};

// Lets both ends work until the condition holds.
bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
  }
  return false;
}

class Router : public ::testing::Test {
 protected:
  Router() { std::ignore = make_keys(layout_, {.workers = {"worker", "stranger"}}); }

  [[nodiscard]] wire::CoordinatorKeys coordinator_keys() const {
    wire::CoordinatorKeys keys = *wire::read_coordinator_keys(layout_);
    keys.allowed = {key("worker")};
    return keys;
  }
  [[nodiscard]] std::string key(const std::string& pair) const {
    return wire::public_key_of(wire::read_worker_keys(layout_, pair)->secret_key);
  }
  [[nodiscard]] auto keys(const std::string& pair) const {
    return wire::read_worker_keys(layout_, pair);
  }

  // The first message that the router gets from this dealer.
  static std::optional<std::string> heard(RouterSocket& router, DealerSocket& dealer) {
    dealer.send("hello");
    std::optional<RouterSocket::Incoming> incoming;
    comes_true([&] {
      std::ignore = dealer.receive(kLookEvery);
      incoming = router.receive(kLookEvery);
      return incoming || dealer.failure();
    });
    if (!incoming) return std::nullopt;
    router.send(incoming->peer, "welcome");
    std::optional<std::string> answer;
    EXPECT_TRUE(comes_true([&] { return (answer = dealer.receive(kLookEvery)).has_value(); }));
    EXPECT_EQ(answer, "welcome");
    return incoming->frame;
  }

  tests::TemporaryDirectory directory_;
  storage::RunLayout layout_{directory_ / "run"};
};

TEST_F(Router, AnAllowedKeyIsHeardAndAnyOtherIsRefusedAndNamedOnce) {
  RouterSocket router({.keys = coordinator_keys()});
  EXPECT_EQ(router.public_key(), keys("worker")->server_key);
  DealerSocket worker(router.endpoint(), keys("worker"));
  EXPECT_EQ(heard(router, worker), "hello");
  EXPECT_TRUE(router.take_refused().empty());
  for (int i = 0; i < 2; ++i) {
    DealerSocket stranger(router.endpoint(), keys("stranger"));
    EXPECT_EQ(heard(router, stranger), std::nullopt);
    EXPECT_EQ(stranger.failure(), HandshakeFailure::kKeyRefused);
  }
  const std::vector<RefusedKey> refused = router.take_refused();
  ASSERT_EQ(refused.size(), 1U) << "the same key twice is one line";
  EXPECT_EQ(refused.front().key, key("stranger"));
  EXPECT_EQ(refused.front().address, "127.0.0.1");
}

TEST_F(Router, AKeyThatIsPutOnTheListIsLetInAndOneTakenOffIsHeardNoMore) {
  RouterSocket router({.keys = coordinator_keys()});
  DealerSocket worker(router.endpoint(), keys("worker"));
  EXPECT_EQ(heard(router, worker), "hello");
  router.set_allowed({key("stranger")});
  DealerSocket late(router.endpoint(), keys("stranger"));
  EXPECT_EQ(heard(router, late), "hello");
  // The connection still stands, but what comes over it counts no more.
  worker.send("again");
  std::optional<std::string> answer;
  EXPECT_TRUE(comes_true([&] {
    EXPECT_EQ(router.receive(kLookEvery), std::nullopt);
    return (answer = worker.receive(kLookEvery)).has_value();
  }));
  const auto message = std::get<wire::Refused>(wire::decode(*answer));
  EXPECT_THAT(message.reason, HasSubstr(key("worker") + " was taken off keys/allowed"));
}

TEST_F(Router, AWorkerWithoutKeysAndACoordinatorWithoutKeysAreToldApartFromSilence) {
  RouterSocket with_keys({.keys = coordinator_keys()});
  DealerSocket open(with_keys.endpoint());
  // Either may close before its greeting is read, on a busy machine every time; then the link tells
  // the two apart by the run's file (worker/client/coordinator_link.cpp).
  const auto sees_the_mismatch = [](DealerSocket& dealer) {
    return comes_true([&] {
      std::ignore = dealer.receive(kLookEvery);
      return dealer.failure() == HandshakeFailure::kMechanism ||
             dealer.failure() == HandshakeFailure::kClosed;
    });
  };
  EXPECT_EQ(heard(with_keys, open), std::nullopt);
  EXPECT_TRUE(sees_the_mismatch(open));
  RouterSocket without_keys({});
  EXPECT_EQ(without_keys.public_key(), "");
  DealerSocket encrypting(without_keys.endpoint(), keys("worker"));
  EXPECT_EQ(heard(without_keys, encrypting), std::nullopt);
  EXPECT_TRUE(sees_the_mismatch(encrypting));
}

TEST_F(Router, AMessageComesWithTheHostOfItsSender) {
  for (const bool encrypted : {false, true}) {
    RouterSocket router({.keys = encrypted ? std::optional(coordinator_keys()) : std::nullopt});
    DealerSocket dealer(router.endpoint(), encrypted ? keys("worker") : std::nullopt);
    dealer.send("hello");
    std::optional<RouterSocket::Incoming> incoming;
    ASSERT_TRUE(comes_true([&] {
      std::ignore = dealer.receive(kLookEvery);
      return (incoming = router.receive(kLookEvery)).has_value();
    }));
    EXPECT_EQ(incoming->address, "127.0.0.1");
  }
}

// One of ours that comes after a hundred strangers is named as well.
TEST_F(Router, EachRefusedKeyIsNamedHoweverManyWereBefore) {
  RouterSocket router({.keys = coordinator_keys()});
  std::set<std::string> named;
  for (int i = 0; i < 105; ++i) {
    std::array<char, 41> pub{}, secret{};
    ASSERT_EQ(zmq_curve_keypair(pub.data(), secret.data()), 0);
    auto own = keys("stranger");
    own->secret_key = secret.data();
    DealerSocket stranger(router.endpoint(), own);
    EXPECT_TRUE(comes_true([&] {
      std::ignore = router.receive(milliseconds(1));
      std::ignore = stranger.receive(milliseconds(1));
      for (const RefusedKey& refused : router.take_refused()) named.insert(refused.key);
      return named.contains(pub.data());
    })) << "stranger "
        << i;
  }
}

TEST_F(Router, WhoeverWaitsGathersForAWhile) {
  constexpr milliseconds kGathering{20};
  RouterSocket router({.gather = kGathering});
  DealerSocket dealer(router.endpoint());
  ASSERT_EQ(heard(router, dealer), "hello");
  for (int i = 0; i < 3; ++i) dealer.send("more");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(comes_true([&] { return router.receive(kLookEvery).has_value(); }));
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 2 * kGathering);
}

TEST_F(Router, WhoeverOnlyLooksNeverGathers) {
  RouterSocket router({.gather = std::chrono::hours(1)});
  DealerSocket dealer(router.endpoint());
  std::ignore = router.receive(kLookEvery);  // from here on, whoever waits waits an hour
  for (int i = 0; i < 3; ++i) dealer.send("more");
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(comes_true([&] { return router.receive(milliseconds(0)).has_value(); }));
  }
}

TEST_F(Router, ACoordinatorWithAnotherKeyThanTheWorkerKnowsGetsNoMessage) {
  RouterSocket router({.keys = coordinator_keys()});
  auto wrong = keys("worker");
  wrong->server_key = key("stranger");
  DealerSocket worker(router.endpoint(), wrong);
  EXPECT_EQ(heard(router, worker), std::nullopt);
  EXPECT_EQ(worker.failure(), HandshakeFailure::kClosed);
}

TEST_F(Router, ACoordinatorThatIsSlowOrAbsentIsNoFailureOfTheHandshake) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  DealerSocket worker("tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port)), keys("worker"));
  EXPECT_EQ(worker.receive(milliseconds(200)), std::nullopt) << "accepted and never answered";
  EXPECT_EQ(worker.failure(), std::nullopt);
  ::close(listener);
  EXPECT_EQ(worker.receive(milliseconds(200)), std::nullopt);
  EXPECT_EQ(worker.failure(), std::nullopt) << "closed once is not closed for good";
}

TEST_F(Router, MessagesOverTheCapCutTheConnectionAndTheNextOneIsHeard) {
  RouterSocket router({.keys = coordinator_keys()});
  DealerSocket worker(router.endpoint(), keys("worker"));
  worker.send(std::string(wire::kMaxMessageBytes + 1, 'x'));
  EXPECT_EQ(router.receive(milliseconds(300)), std::nullopt);
  EXPECT_EQ(heard(router, worker), "hello");
}

TEST_F(Router, AnAddressThatOthersReachNeedsKeys) {
  for (const char* bind : {"0.0.0.0", "*", "::", "10.1.2.3", "no-such-interface"}) {
    EXPECT_FALSE(is_loopback(bind)) << bind;
    try {
      RouterSocket router({.bind = bind});
      ADD_FAILURE() << "bound " << bind << " without keys";
    } catch (const storage::Error& error) {
      EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage) << error.what();
    }
    EXPECT_NO_THROW(require_keys_for(bind, true, layout_));
    try {
      require_keys_for(bind, false, layout_);
      ADD_FAILURE() << bind;
    } catch (const storage::Error& error) {
      EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("hedgerow keygen --run " + layout_.root().string()));
    }
  }
  for (const char* bind : {"127.0.0.1", "127.8.9.1", "::1", "localhost", "lo"}) {
    EXPECT_TRUE(is_loopback(bind)) << bind;
    EXPECT_NO_THROW(require_keys_for(bind, false, layout_));
  }
}

TEST_F(Router, TheEndpointNamesAnAddressThatWorkersCanConnectTo) {
  const auto host_of = [&](const std::string& bind, const std::string& advertise) {
    const RouterSocket router({.bind = bind, .advertise = advertise, .keys = coordinator_keys()});
    const std::string& endpoint = router.endpoint();
    return endpoint.substr(6, endpoint.rfind(':') - 6);
  };
  EXPECT_EQ(host_of("127.0.0.1", ""), "127.0.0.1");
  EXPECT_EQ(host_of("localhost", ""), "127.0.0.1");
  EXPECT_EQ(host_of("lo", ""), "127.0.0.1");
  EXPECT_EQ(host_of("*", ""), wire::this_host());
  EXPECT_EQ(host_of("0.0.0.0", ""), wire::this_host());
  EXPECT_EQ(host_of("*", "node7.cluster"), "node7.cluster");
  EXPECT_EQ(host_of("0.0.0.0", "fd00::7"), "[fd00::7]");
  RouterSocket router({.bind = "*", .keys = coordinator_keys()});
  DealerSocket worker(router.endpoint(), keys("worker"));
  EXPECT_EQ(heard(router, worker), "hello");
  try {
    RouterSocket nowhere({.bind = "no-such-interface", .keys = coordinator_keys()});
    ADD_FAILURE() << "bound " << nowhere.endpoint();
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("this host has no such address or interface"));
  }
}

TEST_F(Router, APortThatTheRecipeNamesIsTheOneOrNone) {
  const auto port_of = [](const RouterSocket& router) { return wire::port_of(router.endpoint()); };
  const RouterSocket any({});
  try {
    const RouterSocket same({.port = port_of(any)});
    ADD_FAILURE() << "took " << same.endpoint() << " in its place";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("workers.port = " + std::to_string(port_of(any))));
  }
  const RouterSocket other({.preferred_port = port_of(any)});
  EXPECT_NE(port_of(other), port_of(any)) << "a preference is no demand";
}

// What libzmq keeps of a connection grows with the messages that went over it, in the coordinator
// for each of its workers.
TEST_F(Router, SeesAWorkerBeginItsConnectionAnewBeforeItIsLargeAndMissesNoMessage) {
  RouterSocket router({.keys = coordinator_keys()});
  worker::CoordinatorLink link(layout_, router.endpoint(), "worker");
  constexpr int kConnections = 4;
  std::map<std::string, int> heard;  // by peer
  for (int i = 0; i < kConnections * worker::kFramesPerConnection; ++i) {
    link.connect(router.endpoint());
    link.send("message " + std::to_string(i));
    std::optional<std::string> answer;
    ASSERT_TRUE(comes_true([&] {
      if (const auto incoming = router.receive(milliseconds(1))) {
        EXPECT_EQ(incoming->frame, "message " + std::to_string(i));
        ++heard[incoming->peer];
        router.send(incoming->peer, "answer " + std::to_string(i));
      }
      answer = link.receive(milliseconds(1));
      return answer.has_value();
    })) << i;
    EXPECT_EQ(*answer, "answer " + std::to_string(i));
  }
  EXPECT_EQ(heard.size(), static_cast<std::size_t>(kConnections));
  for (const auto& [peer, count] : heard) EXPECT_EQ(count, worker::kFramesPerConnection);
}

TEST_F(Router, KeepsAConnectionThatOwesAnAnswer) {
  RouterSocket router({.keys = coordinator_keys()});
  worker::CoordinatorLink link(layout_, router.endpoint(), "worker");
  std::set<std::string> peers;
  for (int i = 0; i < 2 * worker::kFramesPerConnection; ++i) {
    link.connect(router.endpoint());
    link.send("message");
    ASSERT_TRUE(comes_true([&] {
      std::ignore = link.receive(milliseconds(1));
      const auto incoming = router.receive(milliseconds(1));
      if (incoming) peers.insert(incoming->peer);
      return incoming.has_value();
    })) << i;
  }
  EXPECT_EQ(peers.size(), 1U);
}

// libzmq tells how long it will wait, so that nobody has to measure it.
TEST(Dealer, TriesMoreAndMoreSeldomWhileNobodyIsThere) {
  std::vector<std::uint32_t> waits;  // milliseconds
  void* const context = zmq_ctx_new();
  void* const dealer = zmq_socket(context, ZMQ_DEALER);
  void* const monitor = zmq_socket(context, ZMQ_PAIR);
  const std::string nobody = "tcp://127.0.0.1:1";
  worker::configure_dealer(dealer, nobody, std::nullopt);
  ASSERT_EQ(zmq_socket_monitor(dealer, "inproc://monitor", ZMQ_EVENT_CONNECT_RETRIED), 0);
  const int timeout = 20'000;
  ASSERT_EQ(zmq_setsockopt(monitor, ZMQ_RCVTIMEO, &timeout, sizeof timeout), 0);
  ASSERT_EQ(zmq_connect(monitor, "inproc://monitor"), 0);
  ASSERT_EQ(zmq_connect(dealer, nobody.c_str()), 0);
  while (waits.size() < 4) {
    std::array<char, 64> event{};  // a 16-bit number and its 32-bit value; then the address
    ASSERT_EQ(zmq_recv(monitor, event.data(), event.size(), 0), 6);
    std::memcpy(&waits.emplace_back(), event.data() + 2, sizeof(std::uint32_t));
    ASSERT_GT(zmq_recv(monitor, event.data(), event.size(), 0), 0);
  }
  EXPECT_LT(waits[0], 500U);
  EXPECT_THAT(waits[1], AllOf(Ge(500U), Lt(1000U)));
  EXPECT_THAT(std::vector(waits.begin() + 2, waits.end()), Each(AllOf(Ge(1000U), Lt(1500U))));
  zmq_close(monitor);
  zmq_close(dealer);
  zmq_ctx_term(context);
}

}  // namespace
}  // namespace hedgerow::coordinator
