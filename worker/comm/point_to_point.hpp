// Collectives out of send and receive, shared by the backends: with point-to-point messages an
// error can name the peer that is missing, which a library's own collective cannot.
#pragma once

#include "worker/comm/communicator.hpp"

namespace hedgerow::worker {

class PointToPointCommunicator : public Communicator {
 public:
  void send(std::span<const std::byte> bytes, int destination, int tag) final;
  void receive(std::span<std::byte> bytes, int source, int tag) final;
  std::unique_ptr<Message> start_send(std::span<const std::byte> bytes,
                                      std::shared_ptr<const void> owner,
                                      int destination,
                                      int tag) final;
  std::unique_ptr<Message> start_receive(std::span<std::byte> bytes,
                                         std::shared_ptr<const void> owner,
                                         int source,
                                         int tag) final;
  void broadcast(std::span<std::byte> bytes, int root) final;
  std::vector<std::byte> all_gather(std::span<const std::byte> bytes) final;
  void barrier() final;

 protected:
  // As start_send and start_receive, with checked arguments; tags above kMaxTag are the
  // collectives'.
  virtual std::unique_ptr<Message> post(std::span<const std::byte> bytes,
                                        std::shared_ptr<const void> owner,
                                        int destination,
                                        int tag) = 0;
  virtual std::unique_ptr<Message> expect(std::span<std::byte> bytes,
                                          std::shared_ptr<const void> owner,
                                          int source,
                                          int tag) = 0;

 private:
  void check(int peer, int tag) const;
  void send_message(std::span<const std::byte> bytes, int destination, int tag);
  void receive_message(std::span<std::byte> bytes, int source, int tag);
};

}  // namespace hedgerow::worker
