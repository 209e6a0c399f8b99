// A ZeroMQ DEALER that another thread can wake: CoordinatorClient's thread waits on it. All but
// wake() from one thread.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace hedgerow::worker {

class DealerSocket {
 public:
  explicit DealerSocket(const std::string& endpoint);  // Throws kUnavailable
  ~DealerSocket();
  DealerSocket(const DealerSocket&) = delete;
  DealerSocket& operator=(const DealerSocket&) = delete;

  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
  void reconnect(const std::string& endpoint);  // what was queued for the old one is dropped
  // nullopt: nothing within `patience`, or woken.
  [[nodiscard]] std::optional<std::string> receive(std::chrono::milliseconds patience);
  void send(std::string_view frame);  // dropped when the queue is full: whoever sent it repeats it
  void wake();                        // any thread

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string endpoint_;
};

}  // namespace hedgerow::worker
