// The pieces of World that its two source files share: hosts, worker processes and coordinator
// processes. Private to world*.cpp.
#pragma once

#include "tests/simulator/world.hpp"

namespace hedgerow::simulator {

inline constexpr const char* kRoot = "/run";

class World::Mailbox final : public coordinator::Mailbox {
 public:
  Mailbox(World& world, std::string endpoint) : world_(world), endpoint_(std::move(endpoint)) {}
  [[nodiscard]] const std::string& endpoint() const override { return endpoint_; }
  [[nodiscard]] std::optional<Incoming> receive(milliseconds) override {
    if (inbox.empty()) return std::nullopt;
    Incoming first = std::move(inbox.front());
    inbox.pop_front();
    return first;
  }
  bool send(const std::string& peer, std::string_view frame) override {
    world_.send_to_member(endpoint_, peer, frame);
    return true;
  }
  std::deque<Incoming> inbox;

 private:
  World& world_;
  std::string endpoint_;
};

// The processes of one host, workers and coordinators.
class World::Host final : public coordinator::Processes {
 public:
  Host(World& world, std::size_t index, std::string name)
      : world_(world), index_(index), name_(std::move(name)) {}
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] wire::ProcessId self() const override { return speaker; }
  [[nodiscard]] bool is_alive(const wire::ProcessId& id) const override;
  [[nodiscard]] wire::ProcessId start(const std::vector<std::string>& argv,
                                      const std::filesystem::path& log,
                                      std::optional<int> blocked) override;
  [[nodiscard]] std::optional<coordinator::ProcessExit> reap(const wire::ProcessId& child) override;
  void signal_group(const wire::ProcessId& leader, int number) override;

  wire::ProcessId speaker;  // the coordinator that is being run now

 private:
  World& world_;
  std::size_t index_;
  std::string name_;
};

struct World::Member {
  std::unique_ptr<SimWorker> worker;
  std::size_t host = 0;
  wire::ProcessId id;
  bool is_elastic = false, is_hanging = false;
  Time scheduled = Time::max();  // of its next wake that counts
  Time paused_until{}, deaf_until{}, mute_until{};
};

struct World::Post {
  std::size_t host = 0;
  wire::ProcessId id;
  std::unique_ptr<Mailbox> mailbox;
  std::unique_ptr<coordinator::Coordinator> core;
  std::atomic<int> stop_requests{0};
  Time scheduled = Time::max();
  Time paused_until{};
  bool is_alive = true;
};

}  // namespace hedgerow::simulator
