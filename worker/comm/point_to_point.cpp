#include "worker/comm/point_to_point.hpp"

#include <algorithm>
#include <array>

#include "storage/base/error.hpp"

namespace hedgerow::worker {
namespace {

constexpr int kBroadcastTag = kMaxTag + 1;
constexpr int kGatherTag = kMaxTag + 2;

}  // namespace

void PointToPointCommunicator::check(int peer, int tag) const {
  if (peer < 0 || peer >= world_size() || peer == rank() || tag < 0 || tag > kMaxTag) {
    throw storage::Error(storage::ErrorKind::kInternal,
                         "rank " + std::to_string(rank()) + " of " + std::to_string(world_size()) +
                             ": no message to or from rank " + std::to_string(peer) + " with tag " +
                             std::to_string(tag) + " is possible");
  }
}

void PointToPointCommunicator::send(std::span<const std::byte> bytes, int destination, int tag) {
  check(destination, tag);
  send_message(bytes, destination, tag);
}

void PointToPointCommunicator::receive(std::span<std::byte> bytes, int source, int tag) {
  check(source, tag);
  receive_message(bytes, source, tag);
}

std::unique_ptr<Message> PointToPointCommunicator::start_send(std::span<const std::byte> bytes,
                                                              std::shared_ptr<const void> owner,
                                                              int destination,
                                                              int tag) {
  check(destination, tag);
  return post(bytes, std::move(owner), destination, tag);
}

std::unique_ptr<Message> PointToPointCommunicator::start_receive(std::span<std::byte> bytes,
                                                                 std::shared_ptr<const void> owner,
                                                                 int source,
                                                                 int tag) {
  check(source, tag);
  return expect(bytes, std::move(owner), source, tag);
}

// Through memory of their own: when the deadline passes the library still holds it, and may read or
// write long after the caller's is gone.
void PointToPointCommunicator::send_message(std::span<const std::byte> bytes,
                                            int destination,
                                            int tag) {
  const auto own = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
  post(*own, own, destination, tag)->wait();
}

void PointToPointCommunicator::receive_message(std::span<std::byte> bytes, int source, int tag) {
  const auto own = std::make_shared<std::vector<std::byte>>(bytes.size());
  expect(*own, own, source, tag)->wait();
  std::ranges::copy(*own, bytes.begin());
}

// A binomial tree around the root: log2(world_size) messages deep.
void PointToPointCommunicator::broadcast(std::span<std::byte> bytes, int root) {
  const int size = world_size();
  const int relative = (rank() - root + size) % size;
  int reach = 1;
  while (reach < size) reach *= 2;
  for (int distance = reach / 2; distance >= 1; distance /= 2) {
    if (relative % (2 * distance) == 0 && relative + distance < size) {
      send_message(bytes, (rank() + distance) % size, kBroadcastTag);
    } else if (relative % (2 * distance) == distance) {
      receive_message(bytes, (rank() - distance + size) % size, kBroadcastTag);
    }
  }
}

std::vector<std::byte> PointToPointCommunicator::all_gather(std::span<const std::byte> bytes) {
  const auto size = static_cast<std::size_t>(world_size());
  std::vector<std::byte> all(bytes.size() * size);
  const auto own =
      std::span(all).subspan(bytes.size() * static_cast<std::size_t>(rank()), bytes.size());
  std::ranges::copy(bytes, own.begin());
  if (rank() != 0) {
    send_message(bytes, 0, kGatherTag);
  } else {
    for (int source = 1; source < world_size(); ++source) {
      receive_message(
          std::span(all).subspan(bytes.size() * static_cast<std::size_t>(source), bytes.size()),
          source,
          kGatherTag);
    }
  }
  broadcast(all, 0);
  return all;
}

void PointToPointCommunicator::barrier() {
  const std::array<std::byte, 1> here{};
  all_gather(here);
}

}  // namespace hedgerow::worker
