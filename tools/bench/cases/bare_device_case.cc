// Measures a GPU's own launches, hand-overs between streams and copies. They are the upper limits
// to which the other GPU figures are compared.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tools/bench/cases/cases.h"
#include "tutti/base/text.h"
#include "tutti/tensor/device_runtime.h"
#include "tutti/tensor/tensor.h"

namespace tutti::bench {

namespace {

constexpr int64_t kCopied = int64_t{64} << 20;  // bytes

// Two streams, the events and memory flags by which they hand over to each other, and memory on
// both sides of the bus.
class Bare {
 public:
  Bare(DeviceRuntime& runtime, Device device)
      : runtime_(runtime),
        one_(runtime.create_stream(device)),
        other_(runtime.create_stream(device)),
        event_(runtime.create_event(device)),
        answer_(runtime.create_event(device)),
        word_(runtime.take_word()),
        reply_(runtime.take_word()),
        host_(static_cast<std::byte*>(runtime.allocate_host(kCopied))),
        tensor_(Shape{1}, DataType::f32, device),
        small_(Shape{1}, DataType::f32, device),
        large_(Shape{kCopied}, DataType::u8, device),
        piece_{tensor_.data(), DataType::f32, 0, 1},
        bucket_{small_.data(), DataType::f32, 1, 0, 0, false} {}
  ~Bare() {
    runtime_.synchronize(one_);
    runtime_.synchronize(other_);
    runtime_.free_host(host_);
    for (auto* word : {word_, reply_}) runtime_.give_back_word(word);
    for (auto* event : {event_, answer_}) runtime_.destroy_event(event);
    for (const auto stream : {one_, other_}) runtime_.destroy_stream(stream);
  }
  Bare(const Bare&) = delete;
  Bare& operator=(const Bare&) = delete;

  void launch() { runtime_.pack(bucket_, {&piece_, 1}, {}, false, one_); }
  void finish() {
    runtime_.synchronize(one_);
    runtime_.synchronize(other_);
  }
  void launch_and_wait() {
    launch();
    runtime_.synchronize(one_);
  }
  // Hands over to the other stream and back, by events.
  void hand_over_by_events() {
    runtime_.record(event_, one_);
    runtime_.wait_event(other_, event_);
    runtime_.record(answer_, other_);
    runtime_.wait_event(one_, answer_);
  }
  // Each wait is queued after the store that ends it, so both streams may share a hardware queue.
  void hand_over_by_words() {
    ++turn_;
    runtime_.write_word(one_, word_, turn_);
    runtime_.wait_word(other_, word_, turn_);
    runtime_.write_word(other_, reply_, turn_);
    runtime_.wait_word(one_, reply_, turn_);
  }
  void to_device() { runtime_.copy(large_.data(), host_, kCopied, one_); }
  void to_host() { runtime_.copy(host_, large_.data(), kCopied, one_); }

  // Returns how many bytes of a pattern are wrong after it was copied to the device and back.
  int64_t count_wrong() {
    const auto at = [](int64_t i) { return static_cast<std::byte>(i % 251); };
    for (int64_t i = 0; i < kCopied; ++i) host_[i] = at(i);
    to_device();
    runtime_.synchronize(one_);
    std::memset(host_, 255, kCopied);
    to_host();
    runtime_.synchronize(one_);
    int64_t wrong = 0;
    for (int64_t i = 0; i < kCopied; ++i) wrong += host_[i] != at(i);
    return wrong;
  }

 private:
  DeviceRuntime& runtime_;
  const StreamRef one_, other_;
  void* const event_;
  void* const answer_;
  uint64_t* const word_;
  uint64_t* const reply_;
  std::byte* const host_;
  uint64_t turn_ = 0;
  Tensor tensor_, small_, large_;
  const Piece piece_;
  const DeviceBucket bucket_;
};

}  // namespace

bool run_bare_device(Session& session) {
  auto& runtime = device_runtime(DeviceKind::cuda);
  const Device device{DeviceKind::cuda, session.rank() % std::max(runtime.count(), 1)};
  auto& report = session.report();
  report.print(
      fmt::format("# tutti-bench bare_device: {} on {}\n"
                  "#{:>16} {:>12} {:>12} {:>12} {:>12} {:>8} {:>6}\n",
                  format_count(session.size(), "rank"), to_string(device), "what", "bytes",
                  "time (us)", "min", "max", "GB/s", "#wrong"));
  Bare bare(runtime, device);
  const int64_t wrong = session.count(bare.count_wrong());
  const auto measure = [&](const char* what, int64_t bytes, auto&& once) {
    auto record = session.record(Way::blocking);
    record.way = what;
    record.dtype = to_string(DataType::u8);
    record.op = "none";
    record.bytes = bytes;
    session.set_timing(record, session.measure({nullptr, [&](int64_t iterations) {
                                                  for (int64_t i = 0; i < iterations; ++i) once();
                                                  bare.finish();
                                                }}));
    record.wrong = bytes > 0 ? wrong : 0;
    const double speed = static_cast<double>(bytes) / record.time_us / 1000;
    record.extra["gb_per_s"] = speed;
    report.print(fmt::format(" {:>16} {:>12} {:>12.2f} {:>12.2f} {:>12.2f} {:>8.1f} {:>6}\n", what,
                             bytes, record.time_us, record.min_us, record.max_us, speed,
                             record.wrong));
    report.add(record);
  };
  measure("launch", 0, [&] { bare.launch(); });
  measure("launch and wait", 0, [&] { bare.launch_and_wait(); });
  measure("events", 0, [&] { bare.hand_over_by_events(); });
  measure("words", 0, [&] { bare.hand_over_by_words(); });
  measure("from the host", kCopied, [&] { bare.to_device(); });
  measure("to the host", kCopied, [&] { bare.to_host(); });
  return wrong == 0;
}

}  // namespace tutti::bench
