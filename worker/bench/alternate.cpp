#include "worker/bench/alternate.hpp"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>

#include "worker/task/stopwatch.hpp"

namespace hedgerow::worker::bench {
namespace {

constexpr double kLeastMilliseconds = 2;  // of a repeat on the CPU: a thousand times its clock
constexpr int kMostCalls = 1000;
constexpr std::int64_t kLargerThanL2 = std::int64_t{256} << 20;  // bytes; an H100 has 50 MiB

double milliseconds_on_device(const std::function<void()>& call,
                              int calls,
                              const at::Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream stream = guard.getStream(device);
  const at::Tensor cache = at::empty({kLargerThanL2}, at::TensorOptions(device).dtype(at::kByte));
  std::vector<c10::Event> events;
  for (int i = 0; i < 2 * calls; ++i)
    events.emplace_back(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  for (int i = 0; i < calls; ++i) {
    cache.zero_();
    events[2 * static_cast<std::size_t>(i)].record(stream);
    call();
    events[2 * static_cast<std::size_t>(i) + 1].record(stream);
  }
  events.back().synchronize();
  double total = 0;
  for (std::size_t i = 0; i < events.size(); i += 2) total += events[i].elapsedTime(events[i + 1]);
  return total;
}

int calls_of_a_repeat(const Contender& contender, double warm_up_ms, const at::Device& device) {
  const int round = std::max(1, contender.calls_a_round);
  if (!device.is_cpu()) return round;
  const double wanted = std::ceil(kLeastMilliseconds / std::max(warm_up_ms, 1e-6));
  const int calls = static_cast<int>(std::min<double>(wanted, kMostCalls));
  return (calls + round - 1) / round * round;
}

}  // namespace

double milliseconds(const std::function<void()>& call, int calls, const at::Device& device) {
  if (!device.is_cpu()) return milliseconds_on_device(call, calls, device);
  const Stopwatch clock;
  for (int i = 0; i < calls; ++i) call();
  return clock.seconds() * 1e3;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::vector<Timing> alternate(std::span<const Contender> contenders,
                              int repeats,
                              const at::Device& device) {
  std::vector<Timing> timings;
  std::vector<int> calls;
  for (const Contender& contender : contenders) {
    timings.push_back({.warm_up_ms = milliseconds(contender.call, 1, device)});
    // The very first call may be a slow one; the number of calls follows one that was not.
    const bool is_long = timings.back().warm_up_ms > 10 * kLeastMilliseconds;
    const double warm =
        is_long ? timings.back().warm_up_ms : milliseconds(contender.call, 1, device);
    calls.push_back(calls_of_a_repeat(contender, warm, device));
  }
  std::vector<std::vector<double>> times(contenders.size());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      times[i].push_back(milliseconds(contenders[i].call, calls[i], device) / calls[i]);
    }
  }
  for (std::size_t i = 0; i < contenders.size(); ++i) timings[i].median_ms = median(times[i]);
  return timings;
}

}  // namespace hedgerow::worker::bench
