// Measures packing and unpacking a bucket on a GPU, compared with the GPU's own copy of the same
// size.
#include <fmt/format.h>

#include <algorithm>

#include "tools/bench/cases/cases.h"
#include "tools/bench/workload/gradient_set.h"
#include "tutti/base/text.h"
#include "tutti/tensor/device_runtime.h"
#include "tutti/tensor/tensor.h"

namespace tutti::bench {

namespace {

constexpr int64_t kPeriod = 127;  // smaller whole numbers are exact in every float type

// The gradients of a set on one GPU, one bucket that holds them all, and a stream of the bucket's
// own.
class Bucket {
 public:
  Bucket(DeviceRuntime& runtime, Device device, const std::vector<Gradient>& gradients,
         DataType wire)
      : runtime_(runtime), stream_(runtime.create_stream(device)), word_(runtime.take_word()) {
    for (const auto& gradient : gradients) {
      tensors_.emplace_back(Shape{gradient.count}, DataType::f32, device);
      pieces_.push_back({tensors_.back().data(), DataType::f32, count_, gradient.count});
      count_ += gradient.count;
    }
    memory_ = Tensor(Shape{count_}, wire, device);
    other_ = Tensor(Shape{count_}, wire, device);
    bucket_ = {memory_.data(), wire, count_, 0, 0, false};
  }
  ~Bucket() {
    runtime_.synchronize(stream_);
    runtime_.give_back_word(word_);
    runtime_.destroy_stream(stream_);
  }
  Bucket(const Bucket&) = delete;
  Bucket& operator=(const Bucket&) = delete;

  int64_t count() const { return count_; }
  int64_t wire_bytes() const { return memory_.bytes(); }
  void pack() { runtime_.pack(bucket_, pieces_, {}, false, stream_); }
  void unpack() { runtime_.unpack(bucket_, pieces_, {}, {word_, ++outcome_, 0, {}}, stream_); }
  void copy() {
    runtime_.copy(other_.data(), memory_.data(), static_cast<size_t>(wire_bytes()), stream_);
  }
  void finish() { runtime_.synchronize(stream_); }

  void write(int64_t start) {
    each([&](const Tensor& tensor, std::vector<float>& values, int64_t offset) {
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>((start + offset + static_cast<int64_t>(i)) % kPeriod);
      runtime_.copy(tensor.data(), values.data(), values.size() * sizeof(float), stream_);
    });
  }
  int64_t count_wrong(int64_t start) {
    int64_t wrong = 0;
    each([&](const Tensor& tensor, std::vector<float>& values, int64_t offset) {
      runtime_.copy(values.data(), tensor.data(), values.size() * sizeof(float), stream_);
      runtime_.synchronize(stream_);
      for (size_t i = 0; i < values.size(); ++i)
        wrong +=
            values[i] != static_cast<float>((start + offset + static_cast<int64_t>(i)) % kPeriod);
    });
    return wrong;
  }

 private:
  template <class Use>
  void each(Use&& use) {
    std::vector<float> values;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      values.resize(static_cast<size_t>(tensors_[i].count()));
      use(tensors_[i], values, pieces_[i].offset);
      runtime_.synchronize(stream_);
    }
  }

  DeviceRuntime& runtime_;
  const StreamRef stream_;
  uint64_t* const word_;
  uint64_t outcome_ = 0;
  std::vector<Tensor> tensors_;
  std::vector<Piece> pieces_;
  int64_t count_ = 0;
  Tensor memory_, other_;
  DeviceBucket bucket_;
};

}  // namespace

bool run_device(Session& session) {
  const auto& settings = session.settings();
  auto& runtime = device_runtime(DeviceKind::cuda);
  const Device device{DeviceKind::cuda, session.rank() % std::max(runtime.count(), 1)};
  const auto gradients = load_gradient_set(settings.set, settings.elements);
  auto& report = session.report();
  report.print(fmt::format(
      "# tutti-bench device --set {}: {} tensors of f32, {} on {}\n"
      "#{:>11} {:>8} {:>12} {:>12} {:>12} {:>12} {:>8} {:>6}\n",
      settings.set, gradients.size(), format_count(session.size(), "rank"), to_string(device),
      "what", "bucket", "time (us)", "min", "max", "moved (GB/s)", "of copy", "#wrong"));
  bool right = true;
  for (const auto wire : {DataType::f32, DataType::bf16}) {
    Bucket bucket(runtime, device, gradients, wire);
    bucket.write(0);
    bucket.pack();
    bucket.write(1);  // overwrites all that was packed
    bucket.unpack();
    const int64_t wrong = session.count(bucket.count_wrong(0));
    right &= wrong == 0;
    double copy_speed = 0;
    const auto measure = [&](const char* what, int64_t moved_bytes, auto&& once) {
      auto record = session.record(Way::blocking);
      record.way = what;
      record.set = settings.set;
      record.dtype = to_string(wire);
      record.op = "none";
      record.bytes = bucket.wire_bytes();
      session.set_timing(record, session.measure({nullptr, [&](int64_t iterations) {
                                                    for (int64_t i = 0; i < iterations; ++i) once();
                                                    bucket.finish();
                                                  }}));
      record.wrong = wrong;
      const double speed = static_cast<double>(moved_bytes) / record.time_us / 1000;
      if (copy_speed == 0) copy_speed = speed;
      record.extra["moved_gb_per_s"] = speed;
      record.extra["share_of_copy"] = speed / copy_speed;
      report.print(
          fmt::format(" {:>11} {:>8} {:>12.1f} {:>12.1f} {:>12.1f} {:>12.1f} {:>8.2f} {:>6}\n",
                      what, record.dtype, record.time_us, record.min_us, record.max_us, speed,
                      speed / copy_speed, record.wrong));
      report.add(record);
    };
    const int64_t both = bucket.count() * size_of(DataType::f32) + bucket.wire_bytes();
    measure("copy", 2 * bucket.wire_bytes(), [&] { bucket.copy(); });
    measure("pack", both, [&] { bucket.pack(); });
    measure("unpack", both, [&] { bucket.unpack(); });
  }
  return right;
}

}  // namespace tutti::bench
