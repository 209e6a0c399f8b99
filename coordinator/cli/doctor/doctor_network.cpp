#include <zmq.h>

#include <algorithm>

#include "coordinator/cli/doctor/doctor.hpp"
#include "coordinator/cli/doctor/doctor_sockets.hpp"
#include "coordinator/net/binding.hpp"
#include "coordinator/web/server.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "coordinator/wire/run_keys.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;

Outcome look_at_zmq() {
  int major = 0, minor = 0, patch = 0;
  zmq_version(&major, &minor, &patch);
  const std::string version =
      std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  if (zmq_has("curve") != 0) return {Level::kOk, version + " with CURVE"};
  return {Level::kFail, version + " without CURVE, so connections cannot be encrypted"};
}

Outcome look_at_page() {
  if (has_web_page()) return {Level::kOk, "in this build"};
  return {Level::kOk, "none in this build: 'hedgerow watch' shows a run in the terminal"};
}

Outcome look_at_loopback(int port) {
  const ListeningSocket socket("127.0.0.1", port);
  if (!can_connect("127.0.0.1", socket.port())) return {Level::kFail, "does not answer"};
  return {Level::kOk,
          port > 0 ? "port " + std::to_string(port) + " is free" : "listens and connects"};
}

// As the coordinator's socket does, whose words for addresses and interfaces are ZeroMQ's.
Outcome look_at_bind(const std::string& bind) {
  void* const context = zmq_ctx_new();
  void* const socket = zmq_socket(context, ZMQ_ROUTER);
  const bool works = zmq_bind(socket, (bind_address(bind) + ":*").c_str()) == 0;
  const std::string reason = works ? "can be listened at" : zmq_strerror(zmq_errno());
  zmq_close(socket);
  zmq_ctx_term(context);
  return {works ? Level::kOk : Level::kFail, bind + ": " + reason};
}

// The name that other nodes would be told: one that leads back to themselves is a common trap.
// While the coordinator binds loopback alone, they are told none.
Outcome look_at_name(const NetworkFacts& facts) {
  const std::vector<std::string> addresses = facts.addresses_of(facts.host);
  const auto outer = std::ranges::find_if_not(addresses, is_loopback);
  std::string problem;
  if (outer == addresses.end()) {
    problem = "the name " + facts.host + " leads to no address that other nodes reach";
  } else {
    try {
      const ListeningSocket socket(*outer, 0);
      if (can_connect(*outer, socket.port())) return {Level::kOk, *outer + " answers"};
      problem = *outer + " does not answer";
    } catch (const storage::Error& error) {
      problem = error.what();
    }
  }
  if (is_loopback(facts.bind))
    return {Level::kOk, problem + "; none is needed while workers run here alone"};
  return {Level::kWarn, problem};
}

// As each side would read them. A pod or a node may hold those of one side alone.
Outcome look_at_keys(const storage::RunLayout& layout, const std::string& bind) {
  if (!wire::has_keys(layout)) {
    if (is_loopback(bind)) return {Level::kOk, "none: loopback is all that is bound"};
    return {Level::kFail, "none, and workers.bind = \"" + bind + "\" lets others in"};
  }
  std::string sides;
  if (fs::exists(wire::secret_key_file(layout, "coordinator"))) {
    static_cast<void>(wire::read_coordinator_keys(layout));
    sides = "the coordinator's";
  }
  if (fs::exists(wire::secret_key_file(layout, wire::kDefaultWorkerKey))) {
    static_cast<void>(wire::read_worker_keys(layout));
    sides += sides.empty() ? "a worker's" : " and a worker's";
  }
  if (!sides.empty()) return {Level::kOk, sides};
  return {Level::kFail, "a folder keys without a secret key"};
}

}  // namespace

NetworkFacts network_of_this_machine() {
  return {.host = wire::this_host(), .addresses_of = numeric_addresses};
}

std::vector<Finding> examine_network(const NetworkFacts& facts, const fs::path& directory) {
  // "." is where doctor looks when no run was named.
  const std::string run = directory == "." ? "DIR" : directory.string();
  return run_checks({
      {"libzmq", "build libzmq with libsodium", look_at_zmq},
      {"web page", "configure with -DHEDGEROW_WEB=ON", look_at_page},
      {"loopback",
       "end what holds the port ('ss -ltnp') or change workers.port; without one: ip link set lo "
       "up",
       [&] { return look_at_loopback(facts.port); }},
      {"workers.bind",
       "set workers.bind to an address or interface of this machine ('ip address')",
       [&] { return look_at_bind(facts.bind); }},
      {"address for other nodes",
       "set workers.advertise to an address of this machine that the others reach ('ip address')",
       [&] { return look_at_name(facts); }},
      {"keys",
       "hedgerow keygen --run " + run,
       [&] { return look_at_keys(storage::RunLayout(directory), facts.bind); }},
  });
}

}  // namespace hedgerow::coordinator::cli
