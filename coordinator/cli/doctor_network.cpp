#include <zmq.h>

#include <algorithm>

#include "coordinator/cli/doctor.hpp"
#include "coordinator/cli/doctor_sockets.hpp"
#include "coordinator/wire/coordinator_file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using Addresses = std::vector<std::string>;

bool is_loopback(const std::string& address) {
  return address == "::1" || address == "localhost" || address.starts_with("127.");
}

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

std::vector<Finding> examine_network(const NetworkFacts& facts) {
  std::vector<Finding> findings = {check_zmq(), check_loopback(facts.port)};
  if (is_loopback(facts.bind) || is_any(facts.bind)) {
    findings.push_back(check_name(facts, facts.addresses_of(facts.host)));
    return findings;
  }
  const std::string problem = reach(facts.bind, facts.port);
  findings.push_back(
      problem.empty()
          ? Finding{"workers.bind", Level::kOk, facts.bind + " listens and answers", ""}
          : Finding{"workers.bind",
                    Level::kFail,
                    problem,
                    "set workers.bind to an address or interface of this machine ('ip address')"});
  return findings;
}

}  // namespace hedgerow::coordinator::cli
