#include <zmq.h>

#include <algorithm>

#include "coordinator/cli/doctor/doctor.hpp"
#include "coordinator/cli/doctor/doctor_sockets.hpp"
#include "coordinator/net/binding.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "coordinator/wire/run_keys.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using Addresses = std::vector<std::string>;

bool is_any(const std::string& address) {
  return address == "*" || address == "0.0.0.0" || address == "::";
}

std::string listed(const Addresses& addresses) {
  std::string text;
  for (const std::string& address : addresses) text += (text.empty() ? "" : ", ") + address;
  return text;
}

Finding check_zmq() {
  int major = 0, minor = 0, patch = 0;
  zmq_version(&major, &minor, &patch);
  const std::string version =
      std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  if (zmq_has("curve") != 0) return {"libzmq", Level::kOk, version + " with CURVE", ""};
  return {"libzmq",
          Level::kFail,
          version + " without CURVE",
          "connections between machines cannot be encrypted; build libzmq with libsodium"};
}

// As the coordinator's socket does, whose words for addresses and interfaces are ZeroMQ's.
std::string bind_as_coordinator(const std::string& bind, int port) {
  void* const context = zmq_ctx_new();
  void* const socket = zmq_socket(context, ZMQ_ROUTER);
  const std::string where = bind_address(bind) + ":" + (port > 0 ? std::to_string(port) : "*");
  const std::string problem =
      zmq_bind(socket, where.c_str()) == 0 ? "" : where + ": " + zmq_strerror(zmq_errno());
  zmq_close(socket);
  zmq_ctx_term(context);
  return problem;
}

// Listens at the address and connects to it.
std::string reach(const std::string& address, int port) {
  try {
    const ListeningSocket socket(address, port);
    return can_connect(address, socket.port(), std::chrono::seconds(5)) ? "" : "does not answer";
  } catch (const storage::Error& error) {
    return error.what();
  }
}

Finding check_loopback(int port) {
  const std::string problem = reach("127.0.0.1", port);
  if (problem.empty()) {
    return {"loopback",
            Level::kOk,
            port > 0 ? "port " + std::to_string(port) + " is free" : "listens and connects",
            ""};
  }
  return {"loopback",
          Level::kFail,
          problem,
          port > 0 ? "end what holds the port ('ss -ltnp'), or change workers.port"
                   : "bring the interface up: ip link set lo up"};
}

// What other nodes would be told: a name that leads back to themselves is a common trap. Nobody is
// told anything while the coordinator binds loopback alone.
Finding check_name(const NetworkFacts& facts, const Addresses& addresses) {
  const std::string check = "address for other nodes";
  std::string problem;
  if (addresses.empty()) {
    problem = "the name " + facts.host + " has no address";
  } else if (std::ranges::all_of(addresses, is_loopback)) {
    problem = "the name " + facts.host + " means " + listed(addresses) + ", on every node itself";
  } else {
    const auto outer = std::ranges::find_if_not(addresses, is_loopback);
    const std::string failure = reach(*outer, 0);
    const std::string found = (*outer == facts.host ? "" : facts.host + " is ") + *outer;
    if (failure.empty()) return {check, Level::kOk, found + ", and answers", ""};
    problem = found + ": " + failure;
  }
  if (is_loopback(facts.bind))
    return {check, Level::kOk, problem + "; none is needed while workers run here alone", ""};
  return {
      check,
      Level::kWarn,
      problem,
      "set workers.advertise to an address of this machine that the others reach ('ip address')"};
}

}  // namespace

NetworkFacts network_of_this_machine() {
  return {.host = wire::this_host(), .addresses_of = numeric_addresses};
}

Finding examine_keys(const std::filesystem::path& directory, const std::string& bind) {
  const storage::RunLayout layout(directory);
  // "." is where doctor looks when no run was named.
  const std::string made =
      "hedgerow keygen --run " + (directory == "." ? "DIR" : directory.string());
  if (!wire::has_keys(layout)) {
    if (is_loopback(bind)) return {"keys", Level::kOk, "none: loopback is all that is bound", ""};
    return {"keys", Level::kFail, "none, and workers.bind = \"" + bind + "\" lets others in", made};
  }
  std::string sides;
  try {
    // A pod or a node may hold those of one side alone.
    if (std::filesystem::exists(wire::secret_key_file(layout, "coordinator"))) {
      static_cast<void>(wire::read_coordinator_keys(layout));
      sides = "the coordinator's";
    }
    if (std::filesystem::exists(wire::secret_key_file(layout, wire::kDefaultWorkerKey))) {
      static_cast<void>(wire::read_worker_keys(layout));
      sides += sides.empty() ? "a worker's" : " and a worker's";
    }
  } catch (const std::exception& error) {
    return {"keys", Level::kFail, error.what(), "what is missing is made by: " + made};
  }
  if (!sides.empty()) return {"keys", Level::kOk, sides, ""};
  return {"keys", Level::kFail, "a folder keys without a secret key", made};
}

std::vector<Finding> examine_network(const NetworkFacts& facts) {
  std::vector<Finding> findings = {check_zmq(), check_loopback(facts.port)};
  if (!is_loopback(facts.bind) && !is_any(facts.bind)) {
    const std::string problem = bind_as_coordinator(facts.bind, facts.port);
    findings.push_back(
        problem.empty()
            ? Finding{"workers.bind", Level::kOk, facts.bind + " can be listened at", ""}
            : Finding{
                  "workers.bind",
                  Level::kFail,
                  problem,
                  "set workers.bind to an address or interface of this machine ('ip address')"});
  }
  findings.push_back(check_name(facts, facts.addresses_of(facts.host)));
  return findings;
}

}  // namespace hedgerow::coordinator::cli
