#include "tests/tensor/fake_device.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tests/tensor/fake_flags.h"
#include "tests/tensor/fake_shared_memory.h"
#include "tutti/base/check.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/kernels/convert.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

namespace {

constexpr size_t kMostPending = 65'536;
constexpr double kSynchronizeSeconds = 60;

// True on the threads of streams, which must not call the runtime.
thread_local bool on_stream_thread = false;

// A thread that runs operations in order, each after a random delay.
class Stream {
 public:
  Stream(const FakeDevice::Options& options, uint64_t number)
      : options_(options), random_(options.seed + number), thread_([this] { run(); }) {}
  ~Stream() {
    abandon();
    thread_.join();
  }

  void submit(std::function<void()> operation) {
    if (on_stream_thread)
      throw Error(ErrorCode::internal, "a host function called the device runtime");
    const std::lock_guard lock(mutex_);
    TUTTI_CHECK(!closed_ && operations_.size() < kMostPending);
    if (is_stopped_) return;
    operations_.push_back(std::move(operation));
    changed_.notify_all();
  }

  // Drops all operations that have not begun, and all that are submitted before the next start().
  void stop() {
    std::deque<std::function<void()>> dropped;  // their destructors may call the device
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    stops_.fetch_add(1);
    dropped.swap(operations_);
    changed_.notify_all();
  }
  void start() {
    const std::lock_guard lock(mutex_);
    is_stopped_ = false;
  }

  // Holds the stream, from within an operation, until `condition` is true. It polls, as a GPU does,
  // because a write to memory notifies nobody.
  template <class Condition>
  void hold_until(Condition&& condition) const {
    // If a stream is held for long, it polls less often, so that other threads of a busy machine
    // can work.
    for (int polls = 0; !condition() && !abandoned_.load() && stops_.load() == stops_before_;
         ++polls)
      std::this_thread::sleep_for(std::chrono::microseconds(polls < 50 ? 20 : 200));
  }

  bool wait_until_idle(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline.when(),
                               [this] { return operations_.empty() && !is_running_; });
  }

  // Ends the submissions. Operations that were submitted still run.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  void run() {
    on_stream_thread = true;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return closed_ || !operations_.empty(); });
      if (operations_.empty() || abandoned_.load()) return;
      const auto operation = std::move(operations_.front());
      operations_.pop_front();
      is_running_ = true;
      stops_before_ = stops_.load();
      lock.unlock();
      std::this_thread::sleep_for(random_delay());
      if (stops_.load() == stops_before_) operation();
      lock.lock();
      is_running_ = false;
      changed_.notify_all();
    }
  }

  // Half of the operations get the least delay, so that both bursts and gaps occur.
  std::chrono::microseconds random_delay() {
    const auto least = options_.least_delay.count();
    if (random_() % 2 == 0) return options_.least_delay;
    return std::chrono::microseconds(std::uniform_int_distribution(
        least, std::max(least, options_.most_delay.count()))(random_));
  }

  void abandon() {
    abandoned_.store(true);
    close();
  }

  const FakeDevice::Options options_;
  std::mt19937_64 random_;  // used only by the stream's thread
  std::atomic<bool> abandoned_{false};
  std::atomic<int> stops_{0};
  int stops_before_ = 0;  // stops_ when the current operation began; used only by the stream's
                          // thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> operations_;  // this and the fields below are guarded by mutex_
  bool is_running_ = false;
  bool is_stopped_ = false;
  bool closed_ = false;
  std::thread thread_;  // last, because it starts when everything else is constructed
};

// One recording of an event. Waiting streams share it, so an event may be recorded again or
// destroyed meanwhile.
struct Point {
  std::atomic<bool> reached{false};
};
struct Event {
  std::mutex mutex;
  std::shared_ptr<Point> latest;

  std::shared_ptr<Point> point() {
    const std::lock_guard lock(mutex);
    return latest;
  }
};

std::byte* lane_of(const DeviceBucket& bucket, int64_t lane) {
  return bucket.data + (bucket.count + lane) * size_of(bucket.dtype);
}

void set_lane(const DeviceBucket& bucket, int64_t lane, bool one) {
  const double value = one ? 1 : 0;
  cast(DataType::f64, reinterpret_cast<const std::byte*>(&value), bucket.dtype,
       lane_of(bucket, lane), 1);
}

bool is_clean(const DeviceBucket& bucket) {
  for (int64_t lane = 0; lane < bucket.lanes; ++lane) {
    double value = 0;
    cast(bucket.dtype, lane_of(bucket, lane), DataType::f64, reinterpret_cast<std::byte*>(&value),
         1);
    if (value != bucket.clean()) return false;
  }
  return true;
}

Event& event_of(void* event) { return *static_cast<Event*>(event); }

}  // namespace

class FakeDevice::Implementation {
 public:
  explicit Implementation(const Options& options) : options_(options), default_(options, 0) {
    for (int queue = 0; queue < options.queues; ++queue) add_queue();
  }
  ~Implementation() { finish_streams(); }

  void finish_streams() {
    const auto deadline = Deadline::at(Clock::now() + options_.farewell);
    for (auto* stream : all_streams()) stream->wait_until_idle(deadline);
  }

  Stream& stream(StreamRef reference) {
    return reference.native == nullptr ? default_ : *static_cast<Place*>(reference.native)->queue;
  }
  void* add_stream() {
    const std::lock_guard lock(mutex_);
    auto* queue =
        options_.queues == 0 ? add_queue() : queues_[places_.size() % queues_.size()].get();
    return &places_.emplace_back(queue);
  }
  void close(StreamRef reference) {
    if (options_.queues == 0) stream(reference).close();
  }
  // The caller may itself have to release operations of other streams in the same queue. So this
  // waits only for the caller's stream.
  bool wait_until_idle(StreamRef reference, Deadline deadline) {
    auto& queue = stream(reference);
    if (options_.queues == 0 || reference.native == nullptr) return queue.wait_until_idle(deadline);
    const auto here = std::make_shared<Point>();
    queue.submit([here] { here->reached.store(true); });
    while (!here->reached.load() && !deadline.passed())
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    return here->reached.load();
  }

  // Streams live as long as this object. The operations that they drop may call the device.
  void fail(bool failed) {
    for (auto* stream : all_streams()) failed ? stream->stop() : stream->start();
  }

  uint64_t* take_word() {
    const std::lock_guard lock(mutex_);
    if (free_words_.empty()) return &words_.emplace_back(0);
    auto* word = free_words_.back();
    free_words_.pop_back();
    *word = 0;
    return word;
  }
  void give_back_word(uint64_t* word) {
    const std::lock_guard lock(mutex_);
    free_words_.push_back(word);
  }

  // Remembers the stream in whose order this memory is freed.
  void remember(void* memory, StreamRef stream) {
    const std::lock_guard lock(mutex_);
    streams_of_[memory] = stream;
  }
  bool forget(void* memory, StreamRef& stream) {
    const std::lock_guard lock(mutex_);
    const auto found = streams_of_.find(memory);
    if (found == streams_of_.end()) return false;
    stream = found->second;
    streams_of_.erase(found);
    return true;
  }

  const Options& options() const { return options_; }

  std::atomic<int64_t> synchronize_count{0};
  FakeSharedMemory shared;

 private:
  std::vector<Stream*> all_streams() {
    std::vector<Stream*> all{&default_};
    const std::lock_guard lock(mutex_);
    for (const auto& queue : queues_) all.push_back(queue.get());
    return all;
  }
  Stream* add_queue() {
    return queues_.emplace_back(std::make_unique<Stream>(options_, queues_.size() + 1)).get();
  }

  // A stream as callers see it.
  struct Place {
    explicit Place(Stream* its_queue) : queue(its_queue) {}
    Stream* queue;
  };
  const Options options_;
  Stream default_;
  std::mutex mutex_;
  // Destroyed streams stay here until the end, because destroying one must not wait for it.
  std::vector<std::unique_ptr<Stream>> queues_;
  std::deque<Place> places_;
  std::deque<uint64_t> words_;
  std::vector<uint64_t*> free_words_;
  std::unordered_map<void*, StreamRef> streams_of_;
};

FakeDevice::FakeDevice() : FakeDevice(Options{}) {}

FakeDevice::FakeDevice(Options options)
    : implementation_(std::make_unique<Implementation>(options)) {
  TUTTI_CHECK(!has_device_runtime(DeviceKind::fake));
  register_device_runtime(DeviceKind::fake, this);
}

FakeDevice::~FakeDevice() { register_device_runtime(DeviceKind::fake, nullptr); }

int FakeDevice::count() { return implementation_->options().devices; }

int64_t FakeDevice::synchronize_count() const { return implementation_->synchronize_count.load(); }

void* FakeDevice::allocate(size_t bytes, Device device) {
  const size_t rounded = (bytes + 63) / 64 * 64;
  void* memory = rounded < bytes ? nullptr : std::aligned_alloc(64, rounded == 0 ? 64 : rounded);
  if (memory == nullptr)
    throw Error(ErrorCode::out_of_memory,
                fmt::format("cannot allocate {} bytes on {}", bytes, to_string(device)));
  std::memset(memory, 0xa5, bytes);
  return memory;
}

void* FakeDevice::allocate_on(size_t bytes, Device device, StreamRef stream) {
  void* memory = allocate(bytes, device);
  implementation_->remember(memory, stream);
  return memory;
}

void FakeDevice::free(void* memory, Device) noexcept {
  StreamRef stream;
  if (!implementation_->forget(memory, stream)) return std::free(memory);
  implementation_->stream(stream).submit([memory] { std::free(memory); });
}

void* FakeDevice::allocate_host(size_t bytes) { return FakeDevice::allocate(bytes, {}); }

void FakeDevice::free_host(void* memory) noexcept { std::free(memory); }

uint64_t* FakeDevice::take_word() { return implementation_->take_word(); }

void FakeDevice::give_back_word(uint64_t* word) noexcept { implementation_->give_back_word(word); }

StreamRef FakeDevice::create_stream(Device) { return {implementation_->add_stream()}; }

void FakeDevice::destroy_stream(StreamRef stream) noexcept { implementation_->close(stream); }

void* FakeDevice::create_event(Device) { return new Event; }

void FakeDevice::destroy_event(void* event) noexcept { delete static_cast<Event*>(event); }

void FakeDevice::finish_streams() { implementation_->finish_streams(); }

void FakeDevice::fail_for_good(bool failed) {
  has_failed_ = failed;
  implementation_->fail(failed);
}

void FakeDevice::check_alive() const {
  if (has_failed_) throw Error(ErrorCode::unavailable, "an illegal memory access was met");
}

void FakeDevice::record(void* event, StreamRef stream) {
  check_alive();
  auto point = std::make_shared<Point>();
  implementation_->stream(stream).submit([point] { point->reached.store(true); });
  const std::lock_guard lock(event_of(event).mutex);
  event_of(event).latest = std::move(point);
}

bool FakeDevice::reached(void* event) {
  check_alive();
  const auto point = event_of(event).point();
  return point == nullptr || point->reached.load();
}

void FakeDevice::wait_event(StreamRef stream, void* event) {
  auto point = event_of(event).point();
  if (point == nullptr) return;
  auto& waiting = implementation_->stream(stream);
  waiting.submit([&waiting, point] { waiting.hold_until([&] { return point->reached.load(); }); });
}

void FakeDevice::copy(void* target, const void* source, size_t bytes, StreamRef stream) {
  implementation_->stream(stream).submit([=] {
    if (bytes > 0) std::memcpy(target, source, bytes);
  });
}

void FakeDevice::pack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                      bool veto, StreamRef stream) {
  host_function(stream, [=, pieces = std::vector(pieces.begin(), pieces.end())] {
    tutti::pack(pieces, bucket.dtype, bucket.data, 0, bucket.count, scale);
    for (int64_t lane = 0; lane < bucket.lanes; ++lane)
      set_lane(bucket, lane, (veto && lane == bucket.own_lane) != bucket.zero_vetoes);
  });
}

void FakeDevice::unpack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                        const DeviceOutcome& outcome, StreamRef stream) {
  host_function(stream, [=, pieces = std::vector(pieces.begin(), pieces.end()),
                         gates = std::vector(outcome.gates.begin(), outcome.gates.end())] {
    const bool clean = is_clean(bucket);
    if (clean) {
      tutti::unpack(pieces, bucket.dtype, bucket.data, 0, bucket.count, scale);
      for (auto* gate : gates) std::atomic_ref(*gate).store(1, std::memory_order_release);
    }
    if (outcome.word != nullptr)
      std::atomic_ref(*outcome.word)
          .store(clean ? outcome.clean : outcome.vetoed, std::memory_order_release);
  });
}

std::string FakeDevice::identity(Device) { return implementation_->options().identity; }

void FakeDevice::reduce(const DeviceReduction& reduction, StreamRef stream) {
  TUTTI_CHECK(reduction.op != ReduceOp::average && reduction.inputs.size() <= kMostReduced &&
              reduction.outputs.size() <= kMostReduced);
  host_function(stream, [inputs = std::vector(reduction.inputs.begin(), reduction.inputs.end()),
                         outputs = std::vector(reduction.outputs.begin(), reduction.outputs.end()),
                         what = reduction] {
    tutti::reduce(what.dtype, what.op, outputs, inputs, what.count, what.scale);
  });
}

void* FakeDevice::allocate_shared(size_t bytes, Device device, DeviceHandle& handle) {
  return implementation_->shared.allocate(bytes, device, handle);
}

void FakeDevice::free_shared(void* memory) noexcept { implementation_->shared.give_back(memory); }

void* FakeDevice::map_shared(const DeviceHandle& handle, Device) {
  return implementation_->shared.map(handle);
}

void FakeDevice::unmap_shared(void* memory) noexcept { implementation_->shared.unmap(memory); }

void FakeDevice::reduce_by_flags(const DeviceFlags& flags, StreamRef stream) {
  host_function(stream, fake_flags(flags, implementation_->options().seed));
}

void FakeDevice::host_function(StreamRef stream, std::function<void()> function) {
  implementation_->stream(stream).submit(std::move(function));
}

void FakeDevice::write_word(StreamRef stream, uint64_t* word, uint64_t value) {
  implementation_->stream(stream).submit(
      [=] { std::atomic_ref(*word).store(value, std::memory_order_release); });
}

void FakeDevice::wait_words(StreamRef stream, std::span<const AwaitedWord> words) {
  auto& waiting = implementation_->stream(stream);
  for (const auto& [word, value] : words)
    waiting.submit([&waiting, word = word, value = value] {
      const std::atomic_ref reference(const_cast<uint64_t&>(*word));
      waiting.hold_until([&] { return reference.load(std::memory_order_acquire) >= value; });
    });
}

void FakeDevice::synchronize(StreamRef stream) {
  check_alive();
  implementation_->synchronize_count.fetch_add(1);
  if (on_stream_thread)
    throw Error(ErrorCode::internal, "a host function called the device runtime");
  if (!implementation_->wait_until_idle(stream, Deadline::after(kSynchronizeSeconds)))
    throw Error(
        ErrorCode::timeout,
        fmt::format("a stream of the fake device did not finish within {} s", kSynchronizeSeconds));
}

}  // namespace tutti
