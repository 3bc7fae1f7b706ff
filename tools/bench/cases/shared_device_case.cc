// Measures an allreduce whose ranks are threads of this process and share a GPU (backend peer),
// compared with the GPU's own copy.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "tools/bench/cases/cases.h"
#include "tutti/backends/plugins.h"
#include "tutti/backends/store.h"
#include "tutti/base/text.h"
#include "tutti/core/persistent_allreduce.h"
#include "tutti/tensor/device_runtime.h"
#include "tutti/tensor/tensor.h"

namespace tutti::bench {

namespace {

constexpr Device kDevice{DeviceKind::cuda, 0};
constexpr int kAhead = 4;

// A rank with the tensor that it reduces in place, on its own stream.
struct ThreadRank {
  std::unique_ptr<Communicator> comm;
  StreamRef stream;
  Tensor tensor;
  std::unique_ptr<PersistentAllreduce> persistent;  // null: the communicator reduces
};

constexpr std::string_view kPersistent = "persistent";

class ThreadRanks {
 public:
  // `way` is a backend or kPersistent.
  ThreadRanks(DeviceRuntime& runtime, std::string_view way, int size, int64_t bytes)
      : runtime_(runtime), ranks_(static_cast<size_t>(size)) {
    const auto store = make_memory_store();
    each([&](ThreadRank& own, int rank) {
      auto options = Options::thread_rank(rank, size, store);
      options.backend = way == kPersistent ? "memory" : way;
      own.comm = Communicator::create(std::move(options));
      own.stream = runtime_.create_stream(kDevice);
      own.tensor = Tensor(Shape{bytes / size_of(DataType::f32)}, DataType::f32, kDevice);
      if (way == kPersistent)
        own.persistent = std::make_unique<PersistentAllreduce>(*own.comm, "gradient", own.tensor);
    });
    copied_ = Tensor(ranks_[0].tensor.shape(), DataType::f32, kDevice);
    write();
  }
  ~ThreadRanks() {
    each([&](ThreadRank& own, int) {
      own.persistent.reset();
      own.comm.reset();
      runtime_.destroy_stream(own.stream);
    });
  }
  ThreadRanks(const ThreadRanks&) = delete;
  ThreadRanks& operator=(const ThreadRanks&) = delete;

  void write() {
    each([&](ThreadRank& own, int rank) {
      const std::vector<float> values(static_cast<size_t>(own.tensor.count()),
                                      static_cast<float>(rank + 1));
      runtime_.copy(own.tensor.data(), values.data(), static_cast<size_t>(own.tensor.bytes()),
                    own.stream);
      runtime_.synchronize(own.stream);
    });
  }
  void reduce(int64_t times) {
    each([&](ThreadRank& own, int) {
      if (own.persistent) {
        for (int64_t i = 0; i < times; ++i) own.persistent->launch(own.stream);
        runtime_.synchronize(own.stream);
        return own.persistent->check();
      }
      const TensorView view(own.tensor.data(), own.tensor.shape(), DataType::f32, kDevice,
                            own.stream);
      std::array<Work, kAhead> works;  // the host is at most this many calls ahead of the GPU
      for (int64_t i = 0; i < times; ++i) {
        auto& work = works[static_cast<size_t>(i) % kAhead];
        if (i >= kAhead) work.wait();
        work =
            own.comm->allreduce("gradient" + std::to_string(i % kAhead), view, ReduceOp::average);
        work.wait_on(own.stream);
      }
      runtime_.synchronize(own.stream);
      for (int64_t i = 0; i < std::min<int64_t>(times, kAhead); ++i)
        works[static_cast<size_t>(i)].wait();
    });
  }
  // Returns the number of wrong elements after one or more reductions.
  int64_t count_wrong() {
    std::vector<float> values(static_cast<size_t>(ranks_[0].tensor.count()));
    int64_t wrong = 0;
    for (auto& own : ranks_) {
      runtime_.copy(values.data(), own.tensor.data(), static_cast<size_t>(own.tensor.bytes()),
                    own.stream);
      runtime_.synchronize(own.stream);
      const float mean = static_cast<float>(ranks_.size() + 1) / 2;
      wrong += std::count_if(values.begin(), values.end(), [&](float v) { return v != mean; });
    }
    return wrong;
  }
  void copy(int64_t times) {
    auto& own = ranks_[0];
    const auto bytes = static_cast<size_t>(own.tensor.bytes());
    for (int64_t i = 0; i < times; ++i)
      runtime_.copy(copied_.data(), own.tensor.data(), bytes, own.stream);
    runtime_.synchronize(own.stream);
  }

 private:
  // Runs `body` in a thread per rank. Once all threads have ended, rethrows the error of the lowest
  // rank that failed.
  template <class Body>
  void each(Body&& body) {
    std::vector<std::exception_ptr> errors(ranks_.size());
    {
      std::vector<std::jthread> threads;
      for (size_t rank = 0; rank < ranks_.size(); ++rank)
        threads.emplace_back([&, rank] {
          try {
            body(ranks_[rank], static_cast<int>(rank));
          } catch (...) {
            errors[rank] = std::current_exception();
          }
        });
    }
    for (const auto& error : errors)
      if (error) std::rethrow_exception(error);
  }

  DeviceRuntime& runtime_;
  std::vector<ThreadRank> ranks_;
  Tensor copied_;
};

}  // namespace

bool run_shared_device(Session& session) {
  // Streams whose kernels wait for each other need separate hardware queues.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  auto& runtime = device_runtime(DeviceKind::cuda);
  auto& report = session.report();
  report.print(fmt::format(
      "# tutti-bench shared_device: allreduce of f32 in place, ranks are threads on {}\n"
      "#{:>11} {:>6} {:>12} {:>12} {:>12} {:>12} {:>12} {:>8} {:>6}\n",
      to_string(kDevice), "way", "ranks", "bytes", "time (us)", "min", "max", "moved (GB/s)",
      "of copy", "#wrong"));
  bool right = true;
  struct Form {
    std::string_view way;
    int size;
  };
  std::vector<Form> forms;
  for (const auto& listed : list_backends({}))
    if (listed.name == "nccl" && listed.plugin != nullptr) forms.push_back({"nccl", 1});
  for (const auto way : {std::string_view("peer"), kPersistent})
    for (const int size : {1, 2, 4, 8}) forms.push_back({way, size});
  for (const auto& [way, size] : forms)
    for (const int64_t bytes : {int64_t{4} << 10, int64_t{1} << 20, int64_t{64} << 20}) {
      ThreadRanks ranks(runtime, way, size, bytes);
      const auto copy = session.measure({nullptr, [&](int64_t times) { ranks.copy(times); }});
      ranks.write();
      auto record = session.record(Way::named);
      record.way = fmt::format("{} {}", way, format_count(size, "thread"));
      record.dtype = to_string(DataType::f32);
      record.op = "average";
      record.bytes = bytes;
      session.set_timing(record,
                         session.measure({nullptr, [&](int64_t times) { ranks.reduce(times); }}));
      record.wrong = session.count(ranks.count_wrong());
      right &= record.wrong == 0;
      // Each rank loads its share of every rank's input and stores it into every rank's output.
      const double speed = 2.0 * size * static_cast<double>(bytes) / record.time_us / 1000;
      const double of_copy = speed / (2.0 * static_cast<double>(bytes) / copy.median_us / 1000);
      record.extra["moved_gb_per_s"] = speed;
      record.extra["share_of_copy"] = of_copy;
      report.print(fmt::format(
          " {:>11} {:>6} {:>12} {:>12.1f} {:>12.1f} {:>12.1f} {:>12.1f} {:>8.2f} {:>6}\n", way,
          size, bytes, record.time_us, record.min_us, record.max_us, speed, of_copy, record.wrong));
      report.add(record);
    }
  return right;
}

}  // namespace tutti::bench
